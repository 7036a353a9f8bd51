"""The engine core on tiny random checkpoints: speculation, endings, preemption, errors."""

import itertools
from pathlib import Path

import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine import engine
from specdecode_engine.batch.request import FinishReason, Output, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.config_file import DraftMismatch
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import CannotServe
from specdecode_engine.startup.memory import NotEnoughMemory


def make_boot(target: Path, **speculation: object) -> EngineBoot:
    return EngineBoot.model_validate(
        {
            "model": {"path": str(target), "dtype": "float64"},
            "speculation": speculation,
            "memory": {"page_size": 4},
            "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": 8},
            "device": "cpu",
        }
    )


def run_all(core: EngineCore, *requests: Request) -> dict[str, list[Output]]:
    for request in requests:
        core.submit(request)
    outputs: dict[str, list[Output]] = {request.request_id: [] for request in requests}
    while core.has_work():
        for output in core.step():
            outputs[output.request_id].append(output)
        core.scheduler.check()
    return outputs


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def make_request(name: str = "r", **sampling: object) -> Request:
    params = {"seed": 5, "max_tokens": 20, "temperature": 0.0, "ignore_eos": True, **sampling}
    return Request(name, (3, 14, 15, 92, 65), SamplingParams(**params))  # type: ignore[arg-type]


@pytest.mark.parametrize("num_steps", [1, 3, 6])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_the_target_is_always_right(
    checkpoints, num_steps: int, temperature: float
) -> None:
    """The oracle: every step emits exactly num_steps + 1 tokens, sampling included."""
    core = build_poisoned(
        make_boot(
            checkpoints.target,
            algorithm="STANDALONE",
            draft_path=str(checkpoints.target),
            num_steps=num_steps,
        )
    )
    answer = 1 + 4 * (num_steps + 1)
    run_all(core, make_request(max_tokens=answer, temperature=temperature))
    assert core.counters.decode.request_steps == 4
    assert core.counters.decode.emitted_tokens == 4 * (num_steps + 1)
    assert (
        core.counters.decode.accepted_tokens == core.counters.decode.drafted_tokens == 4 * num_steps
    )


@pytest.mark.parametrize(("algorithm", "draft"), [("STANDALONE", "draft"), ("EAGLE3", "eagle3")])
def test_stops_are_found_at_every_place_of_an_accepted_run(
    checkpoints, algorithm: str, draft: str
) -> None:
    plain = build_poisoned(make_boot(checkpoints.target))
    full = tokens_of(run_all(plain, make_request())["r"])
    core = build_poisoned(
        make_boot(
            checkpoints.target,
            algorithm=algorithm,
            draft_path=str(getattr(checkpoints, draft)),
            num_steps=5,
        ),
    )
    for stop, cap in itertools.product(sorted(set(full)), (1, 2, 5, 19, 20)):
        outputs = run_all(core, make_request(stop_token_ids=frozenset([stop]), max_tokens=cap))["r"]
        place = full.index(stop) + 1
        assert tokens_of(outputs) == full[: min(place, cap)]
        last = outputs[-1]
        expected = (FinishReason.STOP, stop) if place <= cap else (FinishReason.LENGTH, None)
        assert (last.finish_reason, last.stop_token_id) == expected


def test_eos_of_the_checkpoint_ends_an_answer_unless_ignored(checkpoints) -> None:
    core = build_poisoned(make_boot(checkpoints.target))
    bias = {5: 100.0}
    stopped = run_all(core, make_request(logit_bias=bias, ignore_eos=False))["r"]
    ignored = run_all(core, make_request(logit_bias=bias, ignore_eos=True))["r"]
    assert (tokens_of(stopped), stopped[-1].finish_reason) == ([5], FinishReason.STOP)
    assert tokens_of(ignored) == [5] * 20


def test_an_answer_may_fill_the_context_to_its_last_token(checkpoints) -> None:
    document = make_boot(
        checkpoints.target, algorithm="EAGLE3", draft_path=str(checkpoints.eagle3), num_steps=7
    ).model_dump()
    document["model"]["context_length"] = 64
    core = build_poisoned(EngineBoot.model_validate(document))
    plain = build_poisoned(make_boot(checkpoints.target))
    request = make_request(max_tokens=59)
    assert core.context_length == 64
    assert tokens_of(run_all(core, request)["r"]) == tokens_of(run_all(plain, request)["r"])


def test_an_aborted_request_is_forgotten_and_its_memory_freed(checkpoints) -> None:
    core = build_poisoned(make_boot(checkpoints.target))
    core.submit(make_request("gone"))
    core.step()
    core.abort("gone")
    core.abort("never there")
    assert not core.has_work()
    assert core.scheduler.available_pages == core.scheduler.pages.total
    assert core.step() == []


def test_a_second_request_of_the_same_id_is_refused(checkpoints) -> None:
    core = build_core(make_boot(checkpoints.target))
    core.submit(make_request("twice"))
    with pytest.raises(ValueError, match="'twice' is in use"):
        core.submit(make_request("twice"))


def test_a_draft_of_another_vocabulary_is_refused_with_the_numbers(checkpoints, tmp_path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    other = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    LlamaForCausalLM(other).save_pretrained(tmp_path)
    boot = make_boot(
        checkpoints.target, algorithm="STANDALONE", draft_path=str(tmp_path), num_steps=2
    )
    with pytest.raises(DraftMismatch, match="vocabulary of 50 tokens, the target of 97"):
        build_core(boot)


def test_a_cache_that_is_too_small_is_refused_with_the_numbers(checkpoints) -> None:
    document = make_boot(checkpoints.target).model_dump()
    document["memory"]["kv_cache_bytes"] = 3000
    with pytest.raises(NotEnoughMemory, match="pages of"):
        build_core(EngineBoot.model_validate(document))


def test_a_context_beyond_what_the_model_was_trained_for_is_refused(checkpoints) -> None:
    document = make_boot(checkpoints.target).model_dump()
    document["model"]["context_length"] = 513
    with pytest.raises(CannotServe, match="513 is more than the 512 positions"):
        build_core(EngineBoot.model_validate(document))


def test_an_idle_engine_checks_its_invariants_and_logs_the_violated_one(
    checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "CHECK_STEPS", 5)
    core = build_poisoned(make_boot(checkpoints.target))
    run_all(core, make_request())
    assert not core.idle_step()
    assert not caplog.records, "nothing is wrong"
    run_all(core, make_request("again"))
    core.scheduler.pages.take(1)  # a leak
    assert not core.idle_step()
    assert "invariant is violated" in caplog.text
    assert "do not add up" in caplog.text
    caplog.clear()
    assert not core.idle_step()
    assert not caplog.records, "not checked again before more steps have run"
