"""Serves every model type of models.toml, or reports why not; the last line is JSON.

Exits with 1 if logits or texts differ, or if a required type is not served.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from specdecode_api.boot import ModelImplementation
from specdecode_engine.model.config_file import CheckpointError
from specdecode_engine.model.implementations import implementation_of, read_config
from specdecode_engine.model.language_model import LanguageModel
from specdecode_engine.model.layers import Linears
from specdecode_engine.model.llama import Llama
from specdecode_engine.model.transformers.config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from tests.engine.checkpoints import make_checkpoints
from zoo.logits import TOLERANCE, draw_texts, worst_differences
from zoo.lossless_runs import find_mismatch, make_material, plain_engine
from zoo.models import REFUSED, REQUIRED, ZooModel, read_models

DRAFT_NOISE = 0.004


def main() -> int:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    models = read_models()
    chosen = [models[name] for name in options.only or models]
    start = time.monotonic()
    mismatches: dict[str, str] = {}
    redrawn = 0
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        eagle3 = make_checkpoints(Path(folder)).eagle3
        for model in chosen:
            check = _Check(model, Path(folder) / model.name, eagle3, options.seed)
            try:
                result = check.run(lossless=not options.logits_only)
            except CheckpointError as error:
                refused[model.name] = str(error)
                result = f"refused: {error}"
            else:
                if result:
                    mismatches[model.name] = result
            redrawn += check.redrawn
            print(f"{model.name:18} {result or 'served'}", flush=True)
    served = [m for m in chosen if m.name not in refused and m.name not in mismatches]
    missing = [m.name for m in chosen if m.group == REQUIRED and m not in served]
    unexpected = [m.name for m in served if m.group == REFUSED]
    report = {
        "types": len(chosen),
        "served": len(served),
        "mismatches": len(mismatches),
        "required_missing": missing,
        "refused": refused,
        "redrawn": redrawn,  # texts for which a router was close to other experts
        "seed": options.seed,
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(report))
    return 1 if mismatches or missing or unexpected else 0


class _Check:
    """One model type: its checkpoints, its logits and its texts."""

    def __init__(self, model: ZooModel, folder: Path, eagle3: Path, seed: int) -> None:
        self._model = model
        self._folder = folder
        self._eagle3 = eagle3
        self._seed = seed
        self.redrawn = 0

    def run(self, *, lossless: bool) -> str:
        """Return the first difference, empty if there is none."""
        target = self._folder / "target"
        reference = self._model.make(target)
        texts = draw_texts(reference)
        self.redrawn = texts.redrawn
        if lossless:
            self._model.make(self._folder / "draft", change=DRAFT_NOISE)
        for implementation in implementations_of(target):
            model = load_alone(target, implementation)
            for way, difference in worst_differences(reference, model, texts).items():
                if not difference <= TOLERANCE:
                    return f"{implementation}, {way}: logits differ by {difference:.1e} of the most"
            result = self._texts(target, implementation) if lossless else ""
            if result:
                return f"{implementation}, {result}"
        return ""

    def _texts(self, target: Path, implementation: ModelImplementation) -> str:
        drafts = {"STANDALONE": self._folder / "draft", "EAGLE3": self._eagle3}
        models, plain = plain_engine(target, drafts, implementation)
        material = make_material(self._model.vocab)
        for algorithm in drafts:
            difference = find_mismatch(models, algorithm, plain, material, self._seed)
            if difference:
                return difference
        return ""


def implementations_of(folder: Path) -> tuple[ModelImplementation, ...]:
    """Return the implementations that can compute a model: transformers, and perhaps our own."""
    first = implementation_of(read_config(folder))
    return ("transformers",) if first == "transformers" else ("transformers", first)


def load_alone(
    folder: Path,
    implementation: ModelImplementation = "transformers",
    linears: Linears | None = None,
) -> LanguageModel:
    """Load a model outside of an engine; without `linears`, with plain weights."""
    config, device = read_config(folder, implementation), torch.device("cpu")
    if isinstance(config, TransformersConfig):
        return TransformersModel.load(config, device=device, linears=linears)
    return Llama.load(folder, config=config, device=device, linears=linears)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    parser.add_argument("only", nargs="*", help="Model types; all of models.toml by default.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="Seed of the cases.")
    parser.add_argument("--threads", type=int, default=2, help="Threads of torch.")
    parser.add_argument("--logits-only", action="store_true", help="Run no engines.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
