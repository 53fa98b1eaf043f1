"""Write the tables of parameters in docs/compatibility.md from the code that reads the bodies.

    python scripts/parameter_tables.py [--check]

Between the marks only, so that the text around them stays.
--check: write nothing, exit 1 when the file is not what it would be.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pydantic import BaseModel

from quire_gateway.anthropic import endpoints as anthropic_endpoints
from quire_gateway.anthropic import parameters as anthropic_parameters
from quire_gateway.openai import batch_endpoints, pooling_requests, response_request, token_requests
from quire_gateway.openai import parameters as openai_parameters
from quire_gateway.servicers.management import BODIES

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"
BEGIN, END = "<!-- parameters -->", "<!-- /parameters -->"

#: What each path makes of names that its model does not have; the other paths share those of completions.
NAMES = {
    "/v1/responses": response_request.NAMES,
    "/v1/batches": batch_endpoints.NAMES,
    "/tokenize": token_requests.NAMES,
    "/detokenize": token_requests.NAMES,
    "/v1/messages": anthropic_parameters.NAMES,
    "/v1/messages/count_tokens": anthropic_endpoints.COUNT_NAMES,
}


def tables() -> str:
    """All tables."""
    parts = []
    for path, model in BODIES.items():
        names = NAMES.get(path, openai_parameters.NAMES)
        if model.__module__ == pooling_requests.__name__:
            names = pooling_requests.NAMES
        parts += [f"### POST `{path}`", "", *_rows(model, names), ""]
    return "\n".join(parts)


def _rows(model: type[BaseModel], names: openai_parameters.Names) -> list[str]:
    served = {field.alias or name for name, field in model.model_fields.items()}
    neutral = sorted(set(names.neutral) - served)
    refused = sorted(set(names.unsupported) - served - set(neutral))
    values = [f"`{name}` ({' or '.join(repr(v) for v in names.neutral[name])})" for name in neutral]
    return [
        "| | parameters |",
        "|---|---|",
        f"| supported | {_listed(sorted(served))} |",
        f"| accepted, changes nothing | {_listed(sorted(set(names.harmless) - served))} |",
        f"| accepted with the value that asks for nothing, else refused by name | {', '.join(values) or '-'} |",
        f"| known and refused by name | {_listed(refused)} |",
        "| any other name | refused as unknown |",
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{tables()}{END}{after}"
    if is_check:
        if wanted != text:
            print(f"{DOCUMENT.name} is out of date: run python scripts/parameter_tables.py", file=sys.stderr)
        return int(wanted != text)
    DOCUMENT.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
