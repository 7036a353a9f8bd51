"""LoRA adapters in whole engines: texts do not depend on neighbours, drafts or cached prefixes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.harness.adapter_files import ATTENTION, EVERYWHERE, MLP, random_factors, write_adapter
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.adapters import AdapterNotLoaded
from specdecode_engine.batch.request import Request, SamplingParams, TokenLogprobs
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import CannotServe, resolve
from specdecode_engine.steps import logprobs
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import Answer, boot_of, run

SETS = {"all": EVERYWHERE, "attention": ATTENTION, "mlp": MLP, "head": ("lm_head",)}
PROMPT = tuple(place * 7 % 97 for place in range(18))
MODES = [
    ("NONE", 1),
    ("STANDALONE", 1),
    ("EAGLE", 1),
    ("EAGLE3", 3),
    ("MTP", 1),
    ("MTP_CHAIN", 1),
    ("FROZEN_KV_MTP", 2),
    ("DFLASH", 1),
    ("DSPARK", 1),
    ("PEAGLE", 1),
    ("NGRAM", 1),
]


@pytest.fixture(scope="module")
def adapters(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Adapters of unlike maps and ranks, as in a boot file."""
    folder = tmp_path_factory.mktemp("adapters")
    found = {}
    for number, (name, maps) in enumerate(SETS.items(), start=1):
        rank = 2 * number
        tensors = random_factors(checkpoints.target, maps, rank=rank, seed=number)
        found[name] = str(write_adapter(folder / name, tensors, {"r": rank}))
    return found


def make_core(
    checkpoints: Checkpoints,
    adapters: Mapping[str, str],
    algorithm: str = "NONE",
    topk: int = 1,
    **sections: Any,
) -> EngineCore:
    document = boot_of(checkpoints, algorithm, topk, **sections)
    if adapters:
        document["adapters"] = {"modules": dict(adapters)}
    return build_poisoned(EngineBoot.model_validate(document))


def requests_of(names: Sequence[str], *, max_tokens: int = 20) -> list[Request]:
    """One request for each adapter: prompts of many lengths that begin the same."""
    found = []
    for number, adapter in enumerate(names):
        sampling = SamplingParams(
            seed=number,
            max_tokens=max_tokens,
            temperature=0.9 * (number % 2),
            ignore_eos=True,
            logprobs=2,
            prompt_logprobs=1 if number % 3 == 0 else None,
        )
        tail = tuple((number * 31 + place) % 97 for place in range(1 + 9 * number))
        found.append(Request(str(number), PROMPT + tail, sampling, adapter=adapter))
    return found


def alone(core: EngineCore, requests: Sequence[Request]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for request in requests:
        answers |= run(core, [request])
    return answers


NAMES = ["", "all", "attention", "mlp", "", "head", "all"]


@pytest.fixture(scope="module")
def truth(checkpoints: Checkpoints, adapters: dict[str, str]) -> dict[str, Answer]:
    """Each request alone in an engine with its adapter alone, decoded plainly."""
    answers: dict[str, Answer] = {}
    for request in requests_of(NAMES):
        own = {name: path for name, path in adapters.items() if name == request.adapter}
        answers |= run(make_core(checkpoints, own), [request])
    return answers


@pytest.mark.parametrize(("algorithm", "topk"), MODES)
def test_texts_in_a_mixed_batch_are_those_of_each_alone(
    checkpoints: Checkpoints,
    adapters: dict[str, str],
    truth: dict[str, Answer],
    algorithm: str,
    topk: int,
) -> None:
    core = make_core(checkpoints, adapters, algorithm, topk)
    assert run(core, requests_of(NAMES), preempted_at_step=9) == truth
    # Whatever is cached now is not taken from another adapter.
    assert alone(core, requests_of(NAMES)) == truth


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [5, 200])
def test_texts_do_not_depend_on_how_prompts_are_cut(
    checkpoints: Checkpoints,
    adapters: dict[str, str],
    truth: dict[str, Answer],
    tokens: int,
    overlap: bool,
) -> None:
    """Long chunks of prompts without adapters leave rows of the last layer out."""
    scheduling = {
        "max_running_requests": 7,
        "chunked_prefill_tokens": tokens,
        "overlap": overlap,
    }
    core = make_core(checkpoints, adapters, "EAGLE3", 1, scheduling=scheduling)
    assert run(core, requests_of(NAMES)) == truth


@pytest.mark.parametrize("piece_rows", [logprobs.PIECE_ROWS, 7])
def test_prompt_logprobs_are_those_of_the_adapter(
    checkpoints: Checkpoints,
    adapters: dict[str, str],
    piece_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logprobs, "PIECE_ROWS", piece_rows)
    core = make_core(checkpoints, adapters, scheduling={"chunked_prefill_tokens": 64})
    requests = [
        replace(one, sampling=replace(one.sampling, prompt_logprobs=2))
        for one in requests_of(NAMES, max_tokens=2)
    ]
    together = prompt_logprobs(core, requests)
    for request in requests:
        assert prompt_logprobs(core, [request])[request.request_id] == together[request.request_id]
    others = [replace(one, adapter="") for one in requests]
    plain = prompt_logprobs(core, others)
    assert [plain[one.request_id] == together[one.request_id] for one in requests] == [
        not name for name in NAMES
    ]


def prompt_logprobs(
    core: EngineCore, requests: Sequence[Request]
) -> dict[str, tuple[TokenLogprobs, ...]]:
    for request in requests:
        core.submit(request)
    found: dict[str, tuple[TokenLogprobs, ...]] = {}
    while core.has_work():
        for output in core.step():
            if output.prompt_logprobs is not None:
                found[output.request_id] = output.prompt_logprobs
    return found


def test_adapters_change_texts_each_in_its_own_way(truth: dict[str, Answer]) -> None:
    texts = {tuple(answer.tokens) for answer in truth.values()}
    assert len(texts) == len(NAMES)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_texts_do_not_depend_on_neighbours_in_16_bits(
    checkpoints: Checkpoints, adapters: dict[str, str], dtype: str
) -> None:
    model = {"path": str(checkpoints.target), "dtype": dtype}
    core = make_core(checkpoints, adapters, "EAGLE3", 1, model=model)
    requests = requests_of(NAMES, max_tokens=8)
    assert run(core, requests) == alone(core, requests)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_texts_do_not_depend_on_neighbours_over_integers(
    checkpoints: Checkpoints, adapters: dict[str, str], quantization: str
) -> None:
    model = {"path": str(checkpoints.target), "dtype": "float32", "quantization": quantization}
    core = make_core(checkpoints, adapters, "STANDALONE", 1, model=model)
    requests = requests_of(NAMES, max_tokens=8)
    answers = run(core, requests)
    assert answers == alone(core, requests)
    assert answers["1"].tokens != run(core, [replace(requests[1], adapter="")])["1"].tokens


def test_cached_prefixes_are_those_of_the_same_adapter(
    checkpoints: Checkpoints, adapters: dict[str, str]
) -> None:
    core = make_core(checkpoints, adapters, memory={"page_size": 4})
    sampling = SamplingParams(seed=1, max_tokens=4, ignore_eos=True)
    hits = {}
    for adapter in ("", "all", "mlp"):
        request = Request("r", PROMPT, sampling, adapter=adapter)
        first = run_cached(core, request)
        hits[adapter] = first, run_cached(core, request)
    assert hits == {"": (0, 16), "all": (0, 16), "mlp": (0, 16)}


def run_cached(core: EngineCore, request: Request) -> int:
    core.submit(request)
    found = 0
    while core.has_work():
        found = max(found, *[one.cached_tokens for one in core.step()], 0)
    return found


def test_an_unknown_adapter_is_refused(checkpoints: Checkpoints, adapters: dict[str, str]) -> None:
    sampling = SamplingParams(seed=1, max_tokens=4)
    for core in (make_core(checkpoints, adapters), make_core(checkpoints, {})):
        with pytest.raises(AdapterNotLoaded, match="adapter 'other' is not loaded"):
            core.submit(Request("r", PROMPT, sampling, adapter="other"))
        assert not core.has_work()


def test_batches_without_adapters_run_the_base(
    checkpoints: Checkpoints, adapters: dict[str, str]
) -> None:
    core = make_core(checkpoints, adapters)
    pool = core.context.adapters
    assert pool is not None
    run(core, requests_of(["all"]))
    core.submit(requests_of([""])[0])
    core.step()
    (sequence,) = core.scheduler.running
    assert sequence.req_index is not None
    rows = core.context.staging.put([sequence.req_index] * 3)
    with pool.applied(rows) as target:
        assert target is core.context.target


def test_adapted_requests_are_no_evidence_about_the_draft(
    checkpoints: Checkpoints, adapters: dict[str, str]
) -> None:
    """A draft of the base may draft badly for an adapter, and still fit the base."""
    assert not requests_of(["all"])[0].is_unrestricted
    plain = replace(requests_of([""])[0], sampling=SamplingParams(seed=1, max_tokens=4))
    assert plain.is_unrestricted


def test_facts_and_memory_name_the_adapters(
    checkpoints: Checkpoints,
    adapters: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        core = make_core(checkpoints, adapters)
    facts = core.facts["adapters"]
    assert isinstance(facts, list)
    assert [one["name"] for one in facts] == list(SETS)
    assert [one["ranks"] for one in facts] == [[2], [4], [6], [8]]
    assert len({one["sha256"] for one in facts}) == len(SETS)
    assert re.search(r"LoRA adapters: 4, 0\.[1-9] MiB", caplog.text)
    assert "adapters" not in make_core(checkpoints, {}).facts


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"graphs": {"mode": "static"}}, "graphs.mode is static; set it to off"),
        ({"adapters": {"max_rank": 3}}, "rank 4, and adapters.max_rank is 3"),
        ({"model": {"implementation": "transformers"}}, "which take no LoRA adapters"),
    ],
)
def test_engines_that_cannot_apply_adapters_do_not_start(
    checkpoints: Checkpoints,
    adapters: dict[str, str],
    sections: dict[str, Any],
    reason: str,
) -> None:
    document = boot_of(checkpoints, "NONE", 1)
    document |= sections | {"model": document["model"] | sections.get("model", {})}
    document["adapters"] = {"modules": {"a": adapters["attention"]}, **sections.get("adapters", {})}
    with pytest.raises((CannotServe, CheckpointError), match=reason):
        build_core(EngineBoot.model_validate(document))


def test_a_damaged_adapter_is_named_before_weights(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "a", random_factors(checkpoints.target, ["q_proj"]))
    (folder / "adapter_model.safetensors").write_bytes(b"cut")
    document = boot_of(checkpoints, "NONE", 1)
    document["adapters"] = {"modules": {"a": str(folder)}}
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors: damaged"):
        resolve(EngineBoot.model_validate(document))


@pytest.mark.parametrize(("key", "value"), [("use_dora", True), ("r", 3), ("peft_type", "IA3")])
def test_adapters_that_do_not_fit_are_refused_before_weights(
    checkpoints: Checkpoints, tmp_path: Path, key: str, value: object
) -> None:
    tensors = random_factors(checkpoints.target, ["q_proj"])
    folder = write_adapter(tmp_path / "a", tensors, {key: value})
    document = boot_of(checkpoints, "NONE", 1)
    document["adapters"] = {"modules": {"a": str(folder)}}
    with pytest.raises(CheckpointError, match=r"adapter_config\.json|instead of \[3, 64\]"):
        resolve(EngineBoot.model_validate(document))


def test_no_adapters_on_a_gpu(
    checkpoints: Checkpoints, adapters: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "specdecode_engine.startup.config.choose_device", lambda wanted: torch.device("cuda")
    )
    document = boot_of(checkpoints, "NONE", 1) | {"adapters": {"modules": adapters}}
    with pytest.raises(CannotServe, match="computed on a CPU alone, and the engine runs on cuda"):
        resolve(EngineBoot.model_validate(document))
