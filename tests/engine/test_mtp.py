"""MTP in whole engines: the target's own modules, exports, and transformers' drafts as golden."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.zoo.models import randomise, read_models
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from tests.engine.mtp_checkpoints import export_module, with_modules

PROMPTS = ((3, 14, 15, 92, 65), tuple(range(40, 61)), (7,))
ANSWER = 20
MODULE_KEYS: dict[str, object] = {
    "num_mtp_layers": 1,
    "num_nextn_predict_layers": 1,
    "mtp_mlp_layer_types": ["sparse"],
}
"""Of a config.json whose module transformers computes too."""
PUBLISHED: dict[str, dict[str, object]] = {
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "deepseek_v3": {"attention_bias": False},
}
"""Models whose modules are published, and keys over those of the zoo."""


def make_core(
    target: Path,
    implementation: str = "auto",
    graphs: str = "auto",
    dtype: str = "float32",
    **speculation: object,
) -> EngineCore:
    document = {
        "model": {"path": str(target), "dtype": dtype, "implementation": implementation},
        "speculation": speculation,
        "memory": {"page_size": 4},
        "graphs": {"mode": graphs},
        "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": 8},
        "device": "cpu",
    }
    return build_core(EngineBoot.model_validate(document))


def run(core: EngineCore, temperature: float = 0.0) -> dict[str, list[int]]:
    sampling = SamplingParams(seed=5, max_tokens=ANSWER, temperature=temperature, ignore_eos=True)
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        answers[str(number)] = []
        core.submit(Request(str(number), prompt, sampling))
    while core.has_work():
        for output in core.step():
            answers[output.request_id] += output.token_ids
    return answers


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("layout", ["deepseek", "mimo", "qwen"])
def test_modules_in_the_targets_checkpoint_change_no_text(
    checkpoints: Any, tmp_path: Path, layout: str, topk: int, temperature: float
) -> None:
    number = 3 if layout == "deepseek" else 0
    folder = with_modules(checkpoints.target, tmp_path / "with", layout, number)
    plain = run(make_core(checkpoints.target), temperature)
    core = make_core(folder, algorithm="MTP", num_steps=3, topk=topk)
    assert run(core, temperature) == plain
    assert core.counters.decode.drafted_tokens > 0
    assert core.facts["mtp_modules"] == 1


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_a_target_with_modules_is_served_without_them(
    checkpoints: Any, tmp_path: Path, implementation: str
) -> None:
    folder = with_modules(checkpoints.target, tmp_path / "with", "deepseek", 3)
    core = make_core(folder, implementation, dtype="float64")
    assert run(core) == run(make_core(checkpoints.target, dtype="float64"))


def test_the_memory_plan_counts_the_module_without_what_is_the_targets(
    checkpoints: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_modules(checkpoints.target, tmp_path / "with", "deepseek", 3)
    stored = load_file(folder / "model.safetensors")
    own = sum(one.numel() for name, one in stored.items() if name.startswith("model.layers.3."))
    angles = 2 * 512 * 8
    with caplog.at_level("INFO"):
        make_core(folder, dtype="float64", algorithm="MTP", num_steps=1)
    (line,) = [one for one in caplog.messages if "draft's weights" in one]
    assert line.endswith(f" {8 * (own + angles) / 2**20:.1f} MiB")


def test_an_export_and_the_target_through_transformers_draft_the_same(
    checkpoints: Any, tmp_path: Path
) -> None:
    folder = export_module(checkpoints.target, tmp_path / "export")
    for implementation in ("native", "transformers"):
        options: dict[str, Any] = {"algorithm": "MTP", "draft_path": str(folder), "num_steps": 2}
        core = make_core(checkpoints.target, implementation, dtype="float64", **options)
        drafts = record_drafts(core)
        run(core)
        if implementation == "native":
            expected = drafts
    assert drafts == expected
    assert drafts


def record_drafts(core: EngineCore) -> list[list[int]]:
    """Note the tokens of every draft, one list for each request of a step."""
    drafter, found = core.context.drafter, list[list[int]]()
    assert drafter is not None
    draft = drafter.draft

    def recorded(*arguments: Any) -> Draft:
        made = draft(*arguments)
        found.extend(made.tokens.tolist())
        return made

    vars(drafter)["draft"] = recorded
    return found


@pytest.fixture(params=PUBLISHED)
def published(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Any]:
    """A tiny target with a module of its last layer whose drafts transformers makes too."""
    import transformers

    keys = {**read_models()[request.param].keys, **MODULE_KEYS, **PUBLISHED[request.param]}
    config = transformers.AutoConfig.for_model(request.param, **keys)
    auto: Any = transformers.AutoModelForCausalLM
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = auto.from_config(config, **options)
    randomise(model, seed=1)
    folder = tmp_path / "target"
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(load_file(file) | _module_of(load_file(file)), file, metadata={"format": "pt"})
    kind = type(model)
    # The released checkpoints have 46 and 92 layers.
    kind._keys_to_ignore_on_load_unexpected = [r"model\.layers\.3.*"]
    loaded = kind.from_pretrained(folder, dtype=torch.float64, **options)
    return folder, loaded.eval()


def _module_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make a module of the last layer's tensors with noise."""
    generator = torch.Generator().manual_seed(8)

    def noise(shape: Any) -> Tensor:
        return torch.randn(shape, generator=generator)

    module = {
        name.replace("model.layers.2.", "model.layers.3."): one + 0.1 * noise(one.shape)
        for name, one in tensors.items()
        if name.startswith("model.layers.2.")
    }
    prefix = "model.layers.3."
    for name in ("enorm", "hnorm", "shared_head.norm"):
        module[f"{prefix}{name}.weight"] = 1 + 0.2 * noise(64)
    module[f"{prefix}eh_proj.weight"] = noise((64, 128)) * 0.1
    return module


def test_the_first_draft_tokens_are_those_of_transformers(published: tuple[Path, Any]) -> None:
    """One module drafts one token there: our first draft token after every committed text."""
    from transformers.generation import candidate_generator

    folder, model = published
    prompt = torch.tensor([PROMPTS[1]])
    theirs: dict[int, int] = {}
    kind = candidate_generator.MTPCandidateGenerator
    get_candidates = kind.get_candidates

    def noted(self: Any, input_ids: Any, *arguments: Any, **options: Any) -> Any:
        found, logits = get_candidates(self, input_ids, *arguments, **options)
        if found.shape[1] > input_ids.shape[1]:
            theirs[input_ids.shape[1]] = int(found[0, input_ids.shape[1]])
        return found, logits

    kind.get_candidates = noted  # type: ignore[method-assign]
    try:
        text = model.generate(prompt, max_new_tokens=ANSWER, do_sample=False, use_mtp=True)
    finally:
        kind.get_candidates = get_candidates  # type: ignore[method-assign]
    core = make_core(folder, dtype="float64", algorithm="MTP", num_steps=1)
    ours = record_by_length(core)
    sampling = SamplingParams(seed=0, max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    core.submit(Request("r", PROMPTS[1], sampling))
    answer: list[int] = []
    while core.has_work():
        for output in core.step():
            answer += output.token_ids
    assert answer[: text.shape[1] - len(PROMPTS[1])] == text[0, len(PROMPTS[1]) :].tolist()
    common = theirs.keys() & ours.keys()
    assert len(common) >= 5
    assert {length: ours[length] for length in common} == {n: theirs[n] for n in common}


def record_by_length(core: EngineCore) -> dict[int, int]:
    """Note the first draft token after each number of committed tokens."""
    drafter, found = core.context.drafter, dict[int, int]()
    assert drafter is not None
    draft = drafter.draft

    def recorded(batch: Any, *arguments: Any) -> Draft:
        made = draft(batch, *arguments)
        found[int(batch.lengths[0]) + 1] = int(made.tokens[0, 0])
        return made

    vars(drafter)["draft"] = recorded
    return found
