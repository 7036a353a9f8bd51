"""Make the five tiny models and the held-out prompts: `uv run python examples/models/train.py`."""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

import record
from recipe import (
    answers,
    dflash_training,
    documents,
    draft,
    eagle3_training,
    eagle_training,
    target,
    vocabulary,
)

FOLDER = Path(__file__).parent
PROMPT_SEED, PROMPTS = 7, 60
ANSWER_SEED, ANSWERS = 8, 768
TARGET_STEPS = 2200

Train = Callable[[Path, Path, Path, int], float]  # folder, target, answers, steps -> seconds
DRAFTS: dict[str, tuple[Train, int]] = {
    "draft": (draft.train, 1800),
    "eagle": (eagle_training.train, 1000),
    "eagle3": (eagle3_training.train, 1000),
    "dflash": (dflash_training.train, 1600),  # as much time of a core as EAGLE-3
}
"""How each draft is trained, by its folder, and for how many steps."""


def _in_own_process(train: Train, folder: Path, base: Path, texts: Path, steps: int) -> None:
    torch.set_num_threads(1)
    seconds = train(folder, base, texts, steps)
    _report(folder.name, seconds, steps)


def _report(name: str, seconds: float, steps: int) -> None:
    busy = time.process_time()  # on a shared machine much less than the seconds that passed
    print(f"{name}: {seconds:.0f} s for {steps} steps, {busy:.0f} s of them on a core", flush=True)


def main() -> None:
    """Write the prompts, train the target, let it answer, then train the drafts side by side."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models go")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual steps")
    parser.add_argument("--keep-target", action="store_true", help="train only the drafts")
    parser.add_argument(
        "--drafts", nargs="+", choices=list(DRAFTS), default=list(DRAFTS), help="train only these"
    )
    flags = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    folder: Path = flags.folder
    base = folder / "target"
    if not flags.keep_target:
        steps = round(flags.scale * TARGET_STEPS)
        _report("target", target.train(base, steps), steps)
    drawn = documents.prompts(PROMPT_SEED, PROMPTS, per_topic=3, held_out=True)
    held_out = [asdict(p) for p in drawn]
    (folder / "prompts.json").write_text(json.dumps(held_out, indent=2) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        texts = Path(scratch) / "answers.json"
        model, tokenizer = target.load(base), vocabulary.load(base)
        answers.save(answers.generate(model, tokenizer, ANSWER_SEED, ANSWERS), texts)
        spawn = multiprocessing.get_context("spawn")
        jobs = [
            spawn.Process(
                target=_in_own_process,
                args=(train, folder / name, base, texts, round(flags.scale * steps)),
            )
            for name, (train, steps) in DRAFTS.items()
            if name in flags.drafts
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    if any(job.exitcode for job in jobs):
        raise SystemExit("a draft was not trained: see the error above")
    record.write(folder)
    print(f"everything: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
