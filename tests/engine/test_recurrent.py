"""Targets with recurrent layers: texts, states, cached prefixes, own MTP modules, refusals."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.lossless.families import RECURRENT, make_family
from checks.lossless.poison import build_poisoned
from checks.lossless.recurrent_families import DELTA
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.schedule.cached_states import CachedStates
from specdecode_engine.startup.memory import CACHED_STATES_PER_REQUEST
from tests.engine.checkpoints import HIDDEN, VOCAB, Checkpoints
from tests.engine.mtp_checkpoints import draw_module
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

ALGORITHMS = ("NGRAM", "STANDALONE", "EAGLE", "EAGLE3", "MTP", "DFLASH", "DSPARK", "PEAGLE")
MAX_TOKENS = 16


@pytest.fixture(scope="module", params=RECURRENT)
def models(
    request: pytest.FixtureRequest,
    checkpoints: Checkpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Checkpoints:
    """A target with states; drafts are those for a Llama of its sizes."""
    folder = tmp_path_factory.mktemp("recurrent") / "target"
    return replace(checkpoints, target=make_family(request.param, checkpoints.target, folder))


def make_core(
    models: Checkpoints, algorithm: str = "NONE", topk: int = 1, **sections: Any
) -> EngineCore:
    sections = {"memory": {"page_size": 4}, **sections}
    boot = boot_of(models, algorithm, topk, num_steps=5, **sections)
    return build_poisoned(EngineBoot.model_validate(boot))


def with_frequent_states(core: EngineCore, count: int) -> EngineCore:
    """Keep states of prompts of a few tokens."""
    page_size = core.scheduler.limits.page_size
    core.scheduler.cached_states = CachedStates(count, page_size, least_tokens=4)
    return core


@pytest.fixture(scope="module")
def plain(models: Checkpoints) -> dict[str, Answer]:
    return run(make_core(models), requests_of(VOCAB, 4, MAX_TOKENS))


@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_text_equals_plain_text(
    models: Checkpoints, plain: dict[str, Answer], algorithm: str, topk: int
) -> None:
    graphs = {"mode": "static" if topk == 1 else "off"}
    core = make_core(models, algorithm, topk, graphs=graphs)
    assert run(core, requests_of(VOCAB, 4, MAX_TOKENS), preempted_at_step=6) == plain
    assert core.counters.decode.drafted_tokens > 0


def test_text_equals_that_of_transformers(models: Checkpoints, plain: dict[str, Answer]) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(models.target, dtype=torch.float32)
    for request in requests_of(VOCAB, 4, MAX_TOKENS)[::2]:  # greedy ones
        ids = list(request.prompt_ids)
        with torch.no_grad():
            for _ in range(MAX_TOKENS):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert plain[request.request_id].tokens == ids[len(request.prompt_ids) :]


def states_after(core: EngineCore, request: Request) -> dict[int, tuple[Tensor, Tensor]]:
    """Run a request; return its state by the number of its kept tokens, as steps left it."""
    states, found = core.context.states, dict[int, tuple[Tensor, Tensor]]()
    assert states is not None
    core.submit(request)
    while core.has_work():
        core.step()
        for sequence in core.scheduler.running:
            slot = sequence.req_index
            assert slot is not None
            parts = states.state.inputs[:, slot], states.state.matrices[:, slot]
            found[sequence.computed] = parts[0].clone(), parts[1].clone()
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("topk", [1, 3])
def test_states_after_accepted_drafts_are_those_of_plain_decoding(
    models: Checkpoints, topk: int, dtype: str
) -> None:
    """NGRAM repeats the prompt, of which the target accepts a part."""
    prompt = tuple(place % 7 for place in range(30))
    sampling = SamplingParams(0, 40, 0.0, ignore_eos=True, logit_bias=dict.fromkeys(range(7), 9.0))
    request = Request("one", prompt, sampling)
    model = {"path": str(models.target), "dtype": dtype}
    plain = states_after(make_core(models, model=model), request)
    core = make_core(models, "NGRAM", topk, model=model)
    drafted = states_after(core, request)
    assert core.counters.decode.accepted_tokens > 0
    assert len(drafted) < len(plain)
    for tokens, state in drafted.items():
        for part, wanted in zip(state, plain[tokens], strict=True):
            assert torch.equal(part, wanted), f"after {tokens} tokens"


def conversations(seed: int) -> list[Request]:
    """Prompts that continue and branch off one another."""
    rng, requests = random.Random(seed), list[Request]()
    stem = tuple(rng.randrange(VOCAB) for _ in range(60))
    for number in range(10):
        tail = tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(12)))
        sampling = SamplingParams(
            number, rng.choice((3, 9, 14)), 0.9 * (number % 2), ignore_eos=True, logprobs=1
        )
        requests.append(Request(str(number), stem[: rng.randrange(1, 60)] + tail, sampling))
    return requests


@pytest.mark.parametrize(
    ("algorithm", "topk", "count", "overlap"),
    [("NONE", 1, 2, True), ("STANDALONE", 3, 1, False), ("EAGLE3", 1, 6, True)],
)
def test_text_is_the_same_after_a_cached_prefix(
    models: Checkpoints, algorithm: str, topk: int, count: int, overlap: bool
) -> None:
    requests = conversations(seed=count)
    plain = run(make_core(models, memory={"prefix_cache": False}), requests)
    scheduling = {
        "max_running_requests": 3, "chunked_prefill_tokens": 11, "overlap": overlap,
    }  # fmt: skip
    core = make_core(models, algorithm, topk, scheduling=scheduling)
    with_frequent_states(core, count)
    for turn in range(2):
        assert run(core, requests, preempted_at_step=4 + turn) == plain
    assert core.scheduler.cache.hit_tokens > 0
    assert core.scheduler.preempted_total == 2


def test_a_prefix_without_a_state_is_not_used(models: Checkpoints) -> None:
    request = requests_of(VOCAB, 1, 4)[0]
    core = with_frequent_states(make_core(models), count=0)
    assert run(core, [request]) == run(core, [request])
    assert core.scheduler.cache.hit_tokens == 0
    assert core.scheduler.cache.pages > 0


def test_memory_for_states_is_planned(models: Checkpoints) -> None:
    core = make_core(models, "EAGLE3")
    states, limits, facts = core.context.states, core.scheduler.limits, core.facts
    assert states is not None
    layers = core.context.target.config.delta_layers
    assert layers is not None
    assert facts["recurrent_layers"] == layers.count == 1
    assert facts["cached_states"] == limits.cached_states == 4 * CACHED_STATES_PER_REQUEST
    each = layers.state_bytes(torch.float32)
    assert facts["state_bytes_per_request"] == each
    allocated = sum(
        part.nbytes for part in (states.state.inputs, states.state.matrices, *states.cached)
    )
    assert allocated == each * (limits.max_running + 1 + limits.cached_states)
    drafted = states.state.drafted.nbytes + states.state.drafted_gates.nbytes
    planned = layers.drafted_bytes(limits.max_draft_tokens, torch.float32)
    assert drafted == planned * (limits.max_running + 1)
    assert limits.max_draft_tokens == 6, "states are reserved for the widest draft"


def test_a_draft_with_states_is_refused(models: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match=r"recurrent layers, .*use a draft without them"):
        make_core(replace(models, draft=models.target), "STANDALONE")


def write_published(target: Path, into: Path) -> Path:
    """Write a target as Qwen3.5 is published: with a part for images and an MTP module."""
    into.mkdir()
    keys = json.loads((target / "config.json").read_text())
    text = {**keys, "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1}
    for name in ("architectures", "bos_token_id"):
        text.pop(name)
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5", "depth": 1, "hidden_size": 8},
        "tie_word_embeddings": False,
        "eos_token_id": keys["eos_token_id"],
    }
    (into / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(target / "model.safetensors").items()
    }
    tensors |= {"model.visual.patch_embed.proj.weight": torch.ones(8, 3)}
    save_file(tensors | _draw_gated_module(keys), into / "model.safetensors")
    return into


def _draw_gated_module(keys: dict[str, Any]) -> dict[str, Tensor]:
    module = draw_module(keys, "qwen", 0)
    attention = "mtp.layers.0.self_attn"
    queries = module[f"{attention}.q_proj.weight"].view(-1, keys["head_dim"], HIDDEN)
    both = torch.stack((queries, torch.zeros_like(queries)), dim=1)
    module[f"{attention}.q_proj.weight"] = both.flatten(0, 2).contiguous()
    for part in "qk":
        module[f"{attention}.{part}_norm.weight"] = torch.zeros(keys["head_dim"])
    return module


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("models", [DELTA], indirect=True)
def test_a_published_checkpoint_drafts_with_its_own_module(
    models: Checkpoints, plain: dict[str, Answer], tmp_path: Path, topk: int
) -> None:
    target = write_published(models.target, tmp_path / "published")
    boot = boot_of(replace(models, target=target), "NGRAM", topk)
    boot["speculation"] = {"algorithm": "MTP", "num_steps": 3, "topk": topk}
    core = build_poisoned(EngineBoot.model_validate(boot))
    assert core.facts["mtp_layout"] == "Qwen3-Next"
    assert core.facts["skipped_tensors"] == 1
    assert run(core, requests_of(VOCAB, 4, MAX_TOKENS)) == plain
    assert core.counters.decode.drafted_tokens > 0
