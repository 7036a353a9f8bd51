"""Engines whose weights are rounded to integers: which, their memory, quality and drafts."""

import itertools
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from checks.lossless.families import make_family
from checks.lossless.poison import build_poisoned
from checks.lossless.published import PUBLISHED, write_published
from recipe.documents import documents
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.checkpoint.record_tensors import named_tensors, tensor_bytes
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.draft_staging import DraftStaging
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels import PackedWeight

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
UNSEEN = 987_654
"""Seed of documents; those of other seeds were the training's."""


def boot(quantization: str, target: Path = EXAMPLES / "target", **changes: object) -> EngineBoot:
    model = {"path": str(target), "dtype": "float32", "quantization": quantization}
    return EngineBoot.model_validate(
        {"model": model, "memory": {"page_size": 16}, "device": "cpu", "threads": 1, **changes}
    )


def perplexity(core: EngineCore, texts: list[tuple[int, ...]]) -> float:
    sampling = SamplingParams(seed=0, max_tokens=1, temperature=0.0, prompt_logprobs=0)
    for number, text in enumerate(texts):
        core.submit(Request(str(number), text, sampling))
    scores = [
        one.logprob
        for _ in iter(core.has_work, False)
        for output in core.step()
        for one in output.prompt_logprobs or ()
    ]
    return math.exp(-sum(scores) / len(scores))


MOST_LOST = {
    **dict.fromkeys(("int8", "w8a16", "w8a16-zeros", "float8"), 0.005),
    **dict.fromkeys(("int4", "w4a16", "w4a16-actorder", "mxfp4", "nvfp4"), 0.05),
}
"""Share of perplexity that weights in a form may lose."""


def test_answers_lose_little_precision(tmp_path: Path) -> None:
    """Also with checkpoints whose weights were rounded to the nearest, without a calibration."""
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    drawn = itertools.islice(documents(UNSEEN), 40)
    texts = [tuple(tokenizer(text)["input_ids"])[:400] for text in drawn]
    plain = perplexity(build_core(boot("auto")), texts)
    for form, most in MOST_LOST.items():
        published = form in PUBLISHED
        target = write_published(EXAMPLES / "target", form, tmp_path) if published else None
        config = boot("auto", target) if target else boot(form)
        lost = perplexity(build_core(config), texts) / plain - 1
        print(f"{form} loses {100 * lost:.3f} % of perplexity {plain:.3f}")
        assert lost != 0
        assert lost <= most


@pytest.mark.parametrize(
    ("quantization", "weights"),
    [
        ("auto", {"float32": 33}),
        ("int8", {"int8": 33}),
        ("int4", {"int4": 32, "int8": 1}),  # the head keeps 8 bits
    ],
)
def test_an_engine_reports_what_its_weights_are(quantization: str, weights: dict[str, int]) -> None:
    facts = build_poisoned(boot(quantization), 64).facts
    assert facts["model_quantization"] == quantization
    assert facts["linear_weights"] == weights


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_experts_are_rounded_and_routers_are_not(tmp_path: Path, implementation: str) -> None:
    target = make_family("qwen3_moe", EXAMPLES / "target", tmp_path / "mixture")
    config = boot("int4", target)
    model = config.model.model_copy(update={"implementation": implementation})
    facts = build_poisoned(config.model_copy(update={"model": model}), 64).facts
    # Attention has two maps, an MLP or the experts of a layer two; seven layers have routers.
    assert facts["linear_weights"] == {"float32": 7, "int4": 32, "int8": 1}


def test_weights_take_the_memory_that_a_check_reports() -> None:
    for quantization in ("auto", "int8", "int4"):
        options = CheckOptions(torch.float32, quantization=quantization)
        checked = check_pair(EXAMPLES / "target", None, options).target.weight_bytes
        core = build_poisoned(boot(quantization), 64)
        target = core.context.target
        assert isinstance(target, Llama)
        assert isinstance(target.head.weight, PackedWeight)
        # A check leaves out tables, and the copy of the embedding that is the head.
        others = target.head.weight.num_bytes + sum(angles.nbytes for angles in target.angles)
        taken = tensor_bytes(target) - others
        assert checked is not None
        assert checked <= taken <= 1.1 * checked


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    target = damaged(EXAMPLES / "target", tmp_path, "model.layers.1.mlp.down_proj.weight")
    with pytest.raises(
        CheckpointError, match=r"NaN or infinity .* set model\.quantization to auto"
    ):
        build_core(boot("int8", target))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_rounded_draft_is_exchanged_and_shares_the_rounded_head(
    tmp_path: Path, quantization: str
) -> None:
    """A new draft repeats the target's embedding and head, and is rounded as the running one."""
    head = shutil.copytree(EXAMPLES / "eagle", tmp_path / "head")
    tensors, target = (
        load_file(folder / "model.safetensors") for folder in (head, EXAMPLES / "target")
    )
    repeated = target["model.embed_tokens.weight"]
    copies = {"embed_tokens.weight": repeated.clone(), "lm_head.weight": repeated.clone()}
    save_file(tensors | copies, head / "model.safetensors")
    speculation = {"algorithm": "EAGLE", "draft_path": str(EXAMPLES / "eagle")}
    core = build_core(boot(quantization, speculation=speculation))
    staging = core.stage_draft
    assert isinstance(staging, DraftStaging)
    before = {name: one.clone() for name, one in named_tensors(staging.models.draft)}
    for piece in staging(head):
        piece()
    after = dict(named_tensors(staging.models.draft))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    name = next(one for one in tensors if one.endswith("down_proj.weight"))
    for place, wrong in enumerate((name, "lm_head.weight")):
        with pytest.raises(DraftRefused, match=r"NaN or infinity.*the running draft stays"):
            list(staging(damaged(head, tmp_path / str(place), wrong)))


def damaged(folder: Path, to: Path, name: str) -> Path:
    """Copy a checkpoint with a number in one tensor that is none."""
    copy = shutil.copytree(folder, to / "damaged")
    tensors = load_file(copy / "model.safetensors")
    tensors[name][0, 0] = torch.nan
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy
