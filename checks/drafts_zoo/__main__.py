"""Checks every format of drafts.toml; the last line is JSON.

Exits with 1 if a check fails, or if a format is listed and not built, which is reported as missing.
"""

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from checks.drafts_zoo.acceptance import find_other_acceptance
from checks.drafts_zoo.drafting import draft_chain, find_wrong_token
from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.formats import all_formats
from checks.drafts_zoo.loading import find_unnamed_fault
from checks.drafts_zoo.ngram import (
    REPEATING_PROMPTS,
    NgramFormat,
    find_accepted_setting,
    find_other_text_state,
    find_wrong_draft,
    slow_chains,
)
from checks.drafts_zoo.states import find_other_state
from checks.drafts_zoo.texts import CASES, find_other_text

LIST = Path(__file__).parents[2] / "tests" / "drafts_zoo" / "drafts.toml"

Checks = dict[str, Callable[[], str | None]]


def main() -> int:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    messages: Any = logging
    messages.set_verbosity_error()  # a target with MTP modules has tensors that are not its own
    messages.disable_progress_bar()
    start, formats = time.monotonic(), all_formats()
    mismatches = 0
    wanted = options.only or read_list()
    chosen = [name for name in wanted if name in formats]
    for name in chosen:
        begin = time.monotonic()
        found = list(check(formats[name], options.seed, options.cases))
        mismatches += len(found)
        seconds = time.monotonic() - begin
        print(f"{name:22} {'; '.join(found) or 'agrees'} ({seconds:.1f} s)", flush=True)
    missing = [name for name in wanted if name not in formats]
    report = {
        "formats": len(chosen),
        "missing": missing,
        "mismatches": mismatches,
        "seed": options.seed,
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(report))
    return 1 if mismatches or missing else 0


def read_list() -> list[str]:
    """Return the names of the formats that must be served."""
    names: list[str] = tomllib.loads(LIST.read_text(encoding="utf-8"))["required"]
    return names


def check(form: DraftFormat | NgramFormat, seed: int, cases: int = CASES) -> Iterator[str]:
    """Run all checks of a format; yield what each found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = form.write(folder, seed)
        if isinstance(form, NgramFormat):
            checks = _checks_of_ngram(form, files, seed)
        else:
            checks = _checks_of_draft(form, files, seed, folder / "damaged")
        checks["texts"] = lambda: find_other_text(form, files, seed, cases)
        for what, find in checks.items():
            if found := find():
                yield f"{what}: {found}"


def _checks_of_draft(form: DraftFormat, files: DraftFiles, seed: int, scratch: Path) -> Checks:
    reference = form.reference(files)

    def draft(committed: Sequence[int], room: int) -> Sequence[int]:
        return draft_chain(reference, committed, form.num_steps)

    return {
        "loading": lambda: find_unnamed_fault(form, files, scratch),
        "drafted tokens": lambda: find_wrong_token(form, files, reference),
        "acceptance": lambda: find_other_acceptance(form, files, draft),
        "state": lambda: find_other_state(form, files, seed),
    }


def _checks_of_ngram(form: NgramFormat, files: DraftFiles, seed: int) -> Checks:
    return {
        "settings": lambda: find_accepted_setting(form, files),
        "drafted tokens": lambda: find_wrong_draft(form, files),
        "acceptance": lambda: find_other_acceptance(
            form, files, slow_chains(form, files), REPEATING_PROMPTS
        ),
        "state": lambda: find_other_text_state(form, files, seed),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="drafts_zoo", description=__doc__)
    parser.add_argument("only", nargs="*", help="Formats; all that are built by default.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of weights and cases.")
    parser.add_argument("--cases", type=int, default=CASES, help="Random cases of texts.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
