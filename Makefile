# Quire: every command a developer or CI needs. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The port that clients use. Services take the ports after it; several suites run side by side on different ones.
QUIRE_PORT ?= 8080
# More flags for `quire up`, for instance QUIRE_ARGS="--simulate --step-ms 10".
QUIRE_ARGS ?=
# More flags for pytest, for instance ARGS="-k block_pool".
ARGS ?=

# Another interpreter or torch: make setup PYTHON=python3.12 TORCH=torch==2.13.0 TORCH_INDEX=<url of a wheel index>
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(if $(shell $(name) --version 2>/dev/null),$(name))))
TORCH ?= $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# A folder of the repository is never taken for a library of the same name.
export PYTHONSAFEPATH := 1

PROJECTS := $(patsubst %/pyproject.toml,%,$(wildcard protos/pyproject.toml services/*/pyproject.toml \
	kernels/pyproject.toml deploy/envoy/pyproject.toml benchmarks/pyproject.toml))
SOURCES := services kernels deploy tests benchmarks examples protos/tests protos/generate.py protos/hatch_build.py
CODE := $(wildcard $(SOURCES))
PROTOS := $(shell find protos/quire -name '*.proto' 2>/dev/null)
# The modules that hold jitted code, once the worker can warm them.
CPU_KERNELS := $(if $(wildcard services/worker/quire_worker/warm.py),$(shell find kernels/quire_kernels -name '*.py'))
DESCRIPTORS := protos/gen/quire/descriptors.binpb
BASELINE := $(lastword $(sort $(wildcard protos/baseline/*.txtpb)))

.PHONY: help setup protos run up down status chat logs test e2e lint lint-protos format types check coverage \
	bench bench-steps bench-suite bench-cpu bench-structured baseline compat constraints clean

help: ## List the commands
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'

# ---- Set-up -------------------------------------------------------------------------------------------------------

setup: $(VENV)/.installed protos $(VENV)/.warmed ## Make .venv with everything pinned in constraints.txt (again only after a change)

$(VENV)/.created:
	@bash scripts/make_venv.sh "$(PYTHON)" "$(VENV)"
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt $(PROJECTS:%=%/pyproject.toml)
	@bash scripts/install.sh "$(VENV)" "$(TORCH)" "$(TORCH_INDEX)" $(PROJECTS)
	@touch $@

protos: protos/gen/.generated ## Generate stubs and the descriptor set from protos/quire

protos/gen/.generated: $(VENV)/.installed protos/generate.py $(PROTOS)
	@$(BIN)/python protos/generate.py
	@touch $@

# Kernels are compiled once here, so that the first start is as quick as the others.
$(VENV)/.warmed: $(VENV)/.installed protos/gen/.generated $(CPU_KERNELS)
	@$(if $(CPU_KERNELS),$(BIN)/python -m quire_worker.warm)
	@touch $@

constraints: ## Write the present environment's versions to constraints.txt
	@{ sed '/^[^#]/,$$d' constraints.txt; $(BIN)/pip freeze --exclude-editable; } > constraints.new
	@mv constraints.new constraints.txt

# ---- The suite on this machine --------------------------------------------------------------------------------------

run: setup ## Run the whole suite in the foreground on QUIRE_PORT (Ctrl-C stops it)
	@$(BIN)/quire up --port $(QUIRE_PORT) $(QUIRE_ARGS)

up: setup ## Start the suite in the background; returns when it is ready, or fails and says why
	@$(BIN)/quire up --detach --port $(QUIRE_PORT) $(QUIRE_ARGS)

down: ## Stop the suite on QUIRE_PORT
	@$(BIN)/quire down --port $(QUIRE_PORT)

status: ## Health and load of the suite on QUIRE_PORT
	@$(BIN)/quire status --port $(QUIRE_PORT)

chat: setup ## Talk to the suite on QUIRE_PORT
	@$(BIN)/quire chat --port $(QUIRE_PORT)

logs: ## The logs of the suite on QUIRE_PORT
	@$(BIN)/quire logs --port $(QUIRE_PORT)

# ---- Checks ---------------------------------------------------------------------------------------------------------

test: setup ## Run all tests
	@$(BIN)/pytest $(ARGS)

e2e: setup ## Run only the tests that start the whole suite
	@$(BIN)/pytest -m e2e $(ARGS)

lint: setup lint-protos ## Check style, import rules and contracts
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports

lint-protos: setup ## Check the contracts' style, and that they break no release's clients
	$(BIN)/buf lint $(DESCRIPTORS) --config protos/buf.yaml
	$(BIN)/buf format protos --path protos/quire --diff --exit-code
	$(if $(BASELINE),$(BIN)/buf breaking $(DESCRIPTORS) --config protos/buf.yaml --against $(BASELINE))

format: setup ## Rewrite code and contracts in the one style
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/buf format protos --path protos/quire --write

types: setup ## Check types (mypy, strict)
	$(BIN)/mypy

check: lint types test ## Everything CI checks

COMPAT_PORT ?= 8180
compat: setup ## Run clients of other people against a suite, and write what they showed to docs/compatibility.md
	@[ -x .venv-compat/bin/pytest ] || { python3 -m venv .venv-compat && .venv-compat/bin/pip install -q -r tests/compat/requirements.txt; }
	@$(BIN)/quire up --detach --port $(COMPAT_PORT) --embedding-model minilm
	@cd tests/compat && QUIRE_URL=http://127.0.0.1:$(COMPAT_PORT) ../../.venv-compat/bin/pytest -c pytest.ini --rootdir=. . --table ../../docs/compatibility.md $(ARGS); \
	  status=$$?; ../../$(BIN)/quire down --port $(COMPAT_PORT); exit $$status

coverage: setup ## Run the unit tests with line coverage
	@$(BIN)/pytest --cov --cov-report=term --cov-report=html -m "not e2e" $(ARGS)

baseline: setup ## Freeze the contracts as the baseline of a release: make baseline RELEASE=v0.1.0
	@[ -n "$(RELEASE)" ] || { echo "baseline: name the release, for instance RELEASE=v0.1.0" >&2; exit 1; }
	@[ ! -e protos/baseline/$(RELEASE).txtpb ] || { echo "baseline: $(RELEASE) is frozen already" >&2; exit 1; }
	@mkdir -p protos/baseline
	$(BIN)/buf build $(DESCRIPTORS) --exclude-source-info -o protos/baseline/$(RELEASE).txtpb

# ---- Benchmarks -----------------------------------------------------------------------------------------------------

bench: bench-steps bench-suite ## The benchmarks that need no model

bench-steps: setup ## Time of a step: scheduler and simulated worker over gRPC; the last line is JSON
	@$(BIN)/python benchmarks/step_loop.py $(ARGS)

bench-suite: setup ## Throughput and added latency of the whole suite with a simulated model; the last line is JSON
	@$(BIN)/python benchmarks/suite.py $(ARGS)

bench-cpu: setup ## Speed of the real model on this CPU; the last line is JSON
	@$(BIN)/python benchmarks/cpu.py $(ARGS)

bench-structured: setup ## Structured output of the real model: validity, cost of masks; the last line is JSON
	@$(BIN)/python benchmarks/structured.py $(ARGS)

clean: ## Remove the environment, generated code and caches
	rm -rf $(VENV) protos/gen .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis htmlcov .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
