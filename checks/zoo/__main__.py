"""Serves every model type of models.toml, or reports why not; the last line is JSON.

Exits with 1 if logits or texts differ, or if a required type is not served. `--results` writes
what each type showed, of which docs/models.md is made.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from checks.lossless.run import build_plain
from checks.zoo.logits import TOLERANCE, draw_texts, worst_differences
from checks.zoo.lossless_runs import CASES, compare_texts, make_material, plain_engine
from checks.zoo.models import REFUSED, REQUIRED, ZooModel, read_models
from checks.zoo.results import Findings, write_results
from specdecode_api.boot import ModelImplementation
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.implementations import implementation_of, read_config
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from tests.engine.checkpoints import make_checkpoints

DRAFT_NOISE = 0.004


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.results and (options.only or options.logits_only):
        parser.error("--results is for a run of everything: leave out types and --logits-only")
    if options.results and not options.results.parent.is_dir():
        parser.error(f"--results {options.results}: its folder does not exist; make it first")
    torch.set_num_threads(options.threads)
    models = read_models()
    chosen = [models[name] for name in options.only or models]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        eagle3 = make_checkpoints(Path(folder)).eagle3
        checks = [
            _checked(_Check(model, Path(folder) / model.name, eagle3, options.seed), options)
            for model in chosen
        ]
    report = _report(checks, options.seed, time.monotonic() - start)
    if options.results:
        write_results(options.results, report, {one.model.name: one.findings for one in checks})
    print(json.dumps(report))
    served = {one.model.name for one in checks if one.is_served}
    unexpected = served & {model.name for model in chosen if model.group == REFUSED}
    return 1 if report["mismatches"] or report["required_missing"] or unexpected else 0


def _report(checks: "list[_Check]", seed: int, seconds: float) -> dict[str, object]:
    required = [one for one in checks if one.model.group == REQUIRED]
    return {
        "types": len(checks),
        "served": sum(one.is_served for one in checks),
        "mismatches": sum(bool(one.mismatch) for one in checks),
        "required_missing": [one.model.name for one in required if not one.is_served],
        "refused": {one.model.name: one.refusal for one in checks if one.refusal},
        "redrawn": sum(one.redrawn for one in checks),  # a router was close to other experts
        "seed": seed,
        "seconds": round(seconds, 1),
    }


def _checked(check: "_Check", options: argparse.Namespace) -> "_Check":
    try:
        check.mismatch = check.run(lossless=not options.logits_only)
    except CheckpointError as error:
        check.refusal = str(error).replace(f"{check.target}/", "")
        check.findings = {}
    result = f"refused: {check.refusal}" if check.refusal else check.mismatch or "served"
    print(f"{check.model.name:18} {result}", flush=True)
    return check


class _Check:
    """One model type: its checkpoints, its logits and its texts."""

    def __init__(self, model: ZooModel, folder: Path, eagle3: Path, seed: int) -> None:
        self.model = model
        self._folder = folder
        self.target = folder / "target"
        self._eagle3 = eagle3
        self._seed = seed
        self.redrawn = 0
        self.mismatch = self.refusal = ""
        self.findings: Findings = {}

    @property
    def is_served(self) -> bool:
        return not self.mismatch and not self.refusal

    def run(self, *, lossless: bool) -> str:
        """Return the first difference, empty if there is none.

        Raises:
            CheckpointError: if the type is refused.
        """
        target = self.target
        reference = self.model.make(target)
        texts = draw_texts(reference)
        self.redrawn = texts.redrawn
        if lossless:
            self.model.make(self._folder / "draft", change=DRAFT_NOISE)
        for implementation in implementations_of(target):
            found = self.findings[implementation] = {}
            model = load_alone(target, implementation)
            for way, difference in worst_differences(reference, model, texts).items():
                if not difference <= TOLERANCE:
                    return f"{implementation}, {way}: logits differ by {difference:.1e} of the most"
                found["logits"] = max(difference, found.get("logits", 0.0))
            result = self._texts(target, implementation, found) if lossless else ""
            if result:
                return f"{implementation}, {result}"
        return ""

    def _texts(
        self, target: Path, implementation: ModelImplementation, found: dict[str, float]
    ) -> str:
        drafts = {"STANDALONE": self._folder / "draft", "EAGLE3": self._eagle3}
        models, plain = plain_engine(target, drafts, implementation)
        float8 = replace(models, kv_cache_dtype="fp8_e4m3")
        own = "NGRAM" if self.model.has_states else "STANDALONE"  # such a model is never a draft
        ways = (
            (own, own, CASES, models, plain),
            ("EAGLE3", "EAGLE3", CASES, models, plain),
            ("fp8_e4m3", own, 1, float8, build_plain(float8)),
        )
        material = make_material(self.model.vocab)
        for name, algorithm, most, pair, alone in ways:
            runs = compare_texts(pair, algorithm, alone, material, self._seed, most=most)
            if runs.difference:
                return f"{name}: {runs.difference}"
            found[name] = runs.cases
            found["graph steps"] = found.get("graph steps", 0) + runs.graph_steps
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
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="zoo", description=__doc__)
    parser.add_argument("only", nargs="*", help="Model types; all of models.toml by default.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="Seed of the cases.")
    parser.add_argument("--threads", type=int, default=2, help="Threads of torch.")
    parser.add_argument("--logits-only", action="store_true", help="Run no engines.")
    parser.add_argument("--results", type=Path, help="File to write the findings to.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
