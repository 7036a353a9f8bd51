"""topk 1 takes the chain's path, without scores, sorts or gathers; a tree never does."""

import pytest
import torch

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.speculate import tree as expander
from specdecode_engine.startup.build import build_core
from specdecode_kernels.testing import LaunchCounter
from tests.engine.backends import counted_launches
from tests.kernels.launched import launches


def make_boot(checkpoints, topk: int) -> EngineBoot:
    document = {
        "model": {"path": str(checkpoints.target)},
        "speculation": {
            "algorithm": "EAGLE3",
            "draft_path": str(checkpoints.eagle3),
            "num_steps": 4,
            "topk": topk,
        },
        "device": "cpu",
    }
    return EngineBoot.model_validate(document)


def make_core(checkpoints, topk: int) -> EngineCore:
    return build_poisoned(make_boot(checkpoints, topk))


def generate(core: EngineCore) -> list[int]:
    params = SamplingParams(seed=1, max_tokens=30, temperature=0.0, ignore_eos=True)
    core.submit(Request("r", (5, 6, 7), params))
    tokens: list[int] = []
    while core.has_work():
        for output in core.step():
            tokens += output.token_ids
    return tokens


def refuse(name: str):
    def raise_error(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"{name} was called")

    return raise_error


def ops_of(counter: LaunchCounter) -> set[str]:
    return {op for op, _ in counter.counts}


def test_a_chain_scores_sorts_and_moves_nothing(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    chain = expander.DraftTreeBuilder._expand_chain

    def counted(self, *args):
        calls.append(1)
        return chain(self, *args)

    with counted_launches() as counter:
        core = make_core(checkpoints, topk=1)
    monkeypatch.setattr(expander.DraftTreeBuilder, "_expand_chain", counted)
    monkeypatch.setattr(expander, "grow_tree", refuse("grow_tree"))
    monkeypatch.setattr(Sampler, "score_draft", refuse("score_draft"))
    for name in ("sort", "topk", "log_softmax", "gather"):
        monkeypatch.setattr(torch, name, refuse(name))
    tokens = generate(core)
    monkeypatch.undo()
    assert not ops_of(counter) & {"verify_tree", "gather_accepted", "compact_kv"}
    assert len(calls) == core.counters.decode.steps > 0
    assert tokens == generate(make_core(checkpoints, topk=4))


def test_a_tree_never_takes_the_chains_path(checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expander.DraftTreeBuilder, "_expand_chain", refuse("_expand_chain"))
    with counted_launches() as counter:
        core = make_core(checkpoints, topk=2)
    assert len(generate(core)) == 30
    assert "verify_tree" in ops_of(counter)
    assert "verify_chain" not in ops_of(counter)
    assert core.counters.decode.drafted_tokens > 0


def test_plain_decoding_on_a_cpu_computes_each_layer_in_one_call_of_c(checkpoints) -> None:
    """What makes it fast on every processor: no torch and nearly no Python between maps."""
    document = {"model": {"path": str(checkpoints.target), "dtype": "float32"}, "device": "cpu"}
    with launches() as counts:  # entered first: a backend binds the C functions when it is made
        core = build_core(EngineBoot.model_validate(document))
        core.submit(Request("r", (5, 6, 7), SamplingParams(seed=1, max_tokens=30, ignore_eos=True)))
        for _ in range(4):  # past the prompt, and past the step that overlaps with it
            core.step()
        counts.clear()
        core.step()
    functions = ("lay_out_rows", "decoder_layers", "rms_norm", "linear", "append_tokens")
    assert counts == dict.fromkeys(functions, 1)


@pytest.mark.parametrize("topk", [1, 2])
def test_a_speculative_step_on_a_cpu_computes_layers_in_calls_of_c(checkpoints, topk: int) -> None:
    """Those of the draft, of its draft steps, and of the target over chains and trees."""
    with launches() as counts:
        core = build_core(make_boot(checkpoints, topk))
        core.submit(Request("r", (5, 6, 7), SamplingParams(seed=1, max_tokens=30, ignore_eos=True)))
        for _ in range(4):
            core.step()
        counts.clear()
        core.step()
    draft_forwards, aux_layers = 4, len(core.context.aux_spec.layers)
    assert counts["decoder_layers"] == draft_forwards + aux_layers
    assert counts["lay_out_rows"] == (2 if topk == 1 else 1)  # nodes of a tree are not consecutive
    assert counts["verify_chain"] == (topk == 1)
    assert counts["append_tokens"] == 1
    assert not counts.keys() & {"attend", "rope_and_store_kv", "apply_rope", "silu_and_mul"}
