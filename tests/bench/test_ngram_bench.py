"""The scripted target of the NGRAM bench answers with its text, with drafts and without."""

import random
from pathlib import Path

import pytest
import torch

from bench.cpu.dialled.dial import Dial
from bench.cpu.dialled.heads import write_heads
from bench.cpu.ngram.__main__ import TARGET, compare_modes
from bench.cpu.ngram.fallback import ANSWER, PROMPT, compare, make_roles, make_texts
from bench.cpu.ngram.scripted_target import answer, build_scripted, script
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from specdecode_api.boot import EngineBoot
from specdecode_engine.startup.build import build_core

TEXT = tuple(range(3, 33)) * 2


@pytest.mark.parametrize("algorithm", ["NONE", "NGRAM"])
def test_a_scripted_target_answers_with_its_text(algorithm: str) -> None:
    drafts = {"algorithm": algorithm, "num_steps": 5 if algorithm == "NGRAM" else 0}
    document = {
        "model": {"path": str(TARGET), "dtype": "float32"},
        "speculation": drafts,
        "scheduling": {"max_running_requests": 1, "overlap": False},
        "device": "cpu",
    }
    core = build_core(EngineBoot.model_validate(document))
    sampler = script(core)
    answer(core, sampler, TEXT, len(TEXT) // 2)
    steps = core.counters.decode.request_steps
    assert steps == 29 if algorithm == "NONE" else steps < 15


def test_texts_of_the_fallback_differ_in_their_first_token_and_repeat_as_named() -> None:
    texts = make_texts(random.Random(1), vocab=4096, count=2)
    firsts = [text[0] for several in texts.values() for text in several]
    assert len(set(firsts)) == len(firsts)
    for several in texts.values():
        assert {len(text) for text in several} == {PROMPT + ANSWER}
    (edit, _), (unique, _) = texts["edit"], texts["no repetition"]
    copied = sum(a == b for a, b in zip(edit[1:PROMPT], edit[PROMPT + 1 :], strict=True))
    assert copied > 0.9 * (PROMPT - 1)
    assert len(set(unique)) == len(unique)


def test_an_engine_is_compared_with_itself_without_drafts() -> None:
    core, sampler = build_scripted(TARGET, {"algorithm": "NGRAM", "num_steps": 5})
    plain_text = tuple(range(3, 103))
    found = compare_modes(core, sampler, plain_text, batch_size=2, repeats=1)
    assert found.keys() == {"plain again", "drafting", "share"}
    decode = core.counters.decode
    assert decode.request_steps == 3 * 2 * 2 * 49  # modes, repeats and a warm-up, requests
    assert decode.drafted_tokens == 0
    answer(core, sampler, TEXT, len(TEXT) // 2)
    assert core.counters.decode.drafted_tokens > 0


def test_roles_of_the_fallback_take_the_steps_of_engines_of_their_own(tmp_path: Path) -> None:
    size = Size(3, 32, vocab=1024, heads=2)
    target, _ = write_pair(tmp_path, size, STRONG)
    head = {"algorithm": "EAGLE3", "draft_path": str(write_heads(tmp_path, size)["EAGLE3"])}
    core, sampler = build_scripted(target, {**head, "num_steps": 5, "fallback": "NGRAM"})
    texts = make_texts(random.Random(1), size.vocab, count=2)["edit"]
    Dial(torch.tensor(texts), PROMPT, (0.9,) * 16, size.vocab).install(core)
    found = compare(core, sampler, make_roles(core), texts, turns=1)
    steps = found["steps_per_answer"]
    assert isinstance(steps, dict)
    assert steps["plain"] == ANSWER - 1
    assert steps["NGRAM"] == steps["NGRAM again"] < ANSWER / 2
    assert steps["EAGLE-3"] < ANSWER / 2
    ngram, _ = build_scripted(target, {"algorithm": "NGRAM", "num_steps": 5})
    answer(ngram, script(ngram), texts[1], PROMPT)
    assert ngram.counters.decode.request_steps == steps["NGRAM"]
