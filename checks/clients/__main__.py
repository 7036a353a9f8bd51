"""`python -m checks.clients [--only NAME …] [--docs]`: run every client and print a table.

The last line is JSON. `--docs` writes the table into docs/clients.md. The exit status is 1 if a
check failed; a client that cannot be installed here does not fail it.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from checks.clients.programs import CLIENTS, ClientProgram, ClientResult, run_client
from checks.fuzz.served import serve_example
from checks.harness.page_table import with_table
from checks.request_trace.__main__ import EXAMPLES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
LAST_MESSAGE = (
    "<|im_start|>user\n{{ messages[-1]['content'] }}<|im_end|>\n<|im_start|>assistant\n"
    "{# calls are read as in the model's own template: #}"
    '{% if false %}<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>{% endif %}'
)


def main() -> int:
    """Serve the model, run the clients one after another, print what each did."""
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="clients", description=__doc__)
    parser.add_argument("--only", nargs="+", default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--docs", action="store_true", help="write the table into docs/clients.md")
    options = parser.parse_args()
    if unknown := set(options.only) - set(names):
        parser.error(f"no client is called {', '.join(unknown)}; there are {', '.join(names)}")
    results = run_all(options.only)
    shown = table(results)
    print(shown)
    if options.docs:
        DOCS.write_text(with_table(DOCS.read_text(), "clients", shown))
    failed = [result.client.name for result in results if result.checks and not result.has_passed()]
    missing = {r.client.name: r.unavailable for r in results if r.unavailable}
    checks = sum(len(result.checks) for result in results)
    print(json.dumps({"checks": checks, "failed": failed, "unavailable": missing}))
    return 1 if failed else 0


def run_all(names: Sequence[str]) -> list[ClientResult]:
    """Run the named clients, against one engine for each form of prompts."""
    results = dict[str, ClientResult]()
    for shows_all in (True, False):
        wanted = [each for each in CLIENTS if each.name in names and each.shows_all is shows_all]
        if wanted:
            with tempfile.TemporaryDirectory() as folder:
                results |= _run(wanted, Path(folder), shows_all=shows_all)
    return [results[client.name] for client in CLIENTS if client.name in results]


def _run(
    clients: Sequence[ClientProgram], folder: Path, *, shows_all: bool
) -> dict[str, ClientResult]:
    target = EXAMPLES / "target" if shows_all else with_last_message(folder)
    results = dict[str, ClientResult]()
    with serve_example(folder, target=target) as engine:
        for client in clients:
            print(f"{client.name} …", file=sys.stderr, flush=True)
            results[client.name] = run_client(client, engine.server.url, target)
            for check in results[client.name].checks:
                mark = f"FAILED: {check.error}" if check.error else "passed"
                print(f"  {check.check}: {mark}", file=sys.stderr, flush=True)
    return results


def with_last_message(folder: Path) -> Path:
    """Write the example model with a template of the last message alone."""
    target = folder / "target"
    shutil.copytree(EXAMPLES / "target", target)
    config = target / "tokenizer_config.json"
    document = json.loads(config.read_text())
    document["chat_template"] = LAST_MESSAGE
    config.write_text(json.dumps(document))
    return target


def table(results: Sequence[ClientResult]) -> str:
    """Return a Markdown table: a row for each client."""
    rows = ["| client | version | works | does not |", "|---|---|---|---|"]
    for result in results:
        works = ", ".join(check.check for check in result.checks if not check.error) or "–"
        fails = ", ".join(check.check for check in result.checks if check.error) or "–"
        if result.unavailable:
            fails = f"not installed: {result.unavailable}".replace("|", "/")
        rows.append(f"| {result.client.name} | {result.version} | {works} | {fails} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
