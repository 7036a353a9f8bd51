"""Without kernels in C, speculation and batching change no bit of an answer, on any BLAS."""

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.startup.build import build_core
from specdecode_kernels.choice import KERNELS_VARIABLE
from tests.engine.whole_engine import Answer, boot_of, requests_of, run
from tests.unsteady_blas import under_unsteady_blas

TOKENS = 6
REQUESTS = 3
CONFIGURATIONS = [
    ("NONE", 1, "float32"),
    ("STANDALONE", 1, "float32"),
    ("EAGLE", 2, "float32"),
    ("EAGLE3", 1, "float32"),
    ("EAGLE3", 3, "float32"),
    ("STANDALONE", 2, "bfloat16"),
    ("EAGLE3", 1, "float64"),
]


def answers_of(
    checkpoints, algorithm: str, topk: int, dtype: str, *, together: bool
) -> dict[str, Answer]:
    """Answers of requests that run together, or one after the other with prompts in one chunk."""
    document = boot_of(checkpoints, algorithm, topk)
    document["model"] = {"path": str(checkpoints.target), "dtype": dtype}
    if not together:
        document["scheduling"] = {"max_running_requests": 1, "chunked_prefill_tokens": 64}
    core = build_core(EngineBoot.model_validate(document))
    assert core.facts["linears"] == "plain"
    assert core.facts["target_attention"] == "torch"
    return run(core, requests_of(checkpoints.vocab, REQUESTS, TOKENS))


@pytest.mark.parametrize(("algorithm", "topk", "dtype"), CONFIGURATIONS)
def test_speculation_changes_no_bit_under_an_unsteady_blas(
    checkpoints, algorithm: str, topk: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "torch")

    def compare() -> None:
        plain = answers_of(checkpoints, "NONE", 1, dtype, together=False)
        assert answers_of(checkpoints, algorithm, topk, dtype, together=True) == plain
        assert all(len(answer.tokens) == TOKENS for answer in plain.values())

    under_unsteady_blas(compare)
