"""Quantized weights next to the peers': what is compared, and what is null with its reason."""

from pathlib import Path

import pytest

from bench.cpu.engine import quantized
from bench.cpu.engine.quantized import (
    LLAMA_CPP,
    QuantizedExtent,
    measure_quantized,
    own,
    quantized_figures,
)
from bench.cpu.peers.contest import OPENVINO, Entry, Samples
from bench.cpu.peers.epsilon_pair import Size
from bench.cpu.peers.loads import QUICK_LENGTHS
from bench.cpu.peers.targets import TARGETS
from bench.cpu.peers.worker import Answer
from checks.harness.installation import PeerUnavailable

SMALL = Size(2, 64, vocab=512, heads=4, context=256, kv_heads=2, inner=96)
FIGURES = {
    one.figure
    for one in TARGETS
    if one.figure.startswith(("float32_", "int8_", "int4_")) and one.figure[-8:] != "_vs_bf16"
}


def _answers(*seconds: float, token: int = 7) -> dict[int, Answer]:
    """Answers of ten tokens; decoding nine of them takes half the time."""
    return {
        n: Answer([[token] * 10], {"decode_s": cpu_s / 2, "decode_tokens": 9}, cpu_s, cpu_s)
        for n, cpu_s in enumerate(seconds)
    }


def _samples(llama_cpp_token: int = 7, openvino_token: int = 7) -> Samples:
    """int8: ours takes half the time of llama.cpp, a third, a quarter; of OpenVINO a half."""
    drafted = "speculative", "single", 3
    return Samples(
        {
            Entry(own("float32"), "plain", "single"): _answers(4, 4, 4),
            Entry("llama.cpp F32", "plain", "single"): _answers(4, 4, 4, token=llama_cpp_token),
            Entry("openvino float32", "plain", "single"): _answers(6, 6, 6, token=openvino_token),
            Entry(own("int8"), "plain", "single"): _answers(1, 1, 1),
            Entry("llama.cpp Q8_0", "plain", "single"): _answers(2, 3, 4, token=8),
            Entry("openvino int8", "plain", "single"): _answers(2, 2, 2, token=9),
            Entry("openvino int8 weight-only", "plain", "single"): _answers(3, 3, 3, token=9),
            Entry(own("int8"), *drafted): _answers(1, 1, 1),
            Entry("openvino int8", *drafted): _answers(4, 4, 4, token=9),
        }
    )


def test_ratios_to_the_peers_are_medians_with_quartiles() -> None:
    figures = dict(quantized_figures(_samples()))
    assert figures["float32_vs_llamacpp"] == 1
    assert figures["int8_vs_llamacpp"] == 3
    assert figures["int8_vs_llamacpp_quartiles"] == [2.5, 3.5]
    assert figures["int8_decode_vs_llamacpp"] == 3
    assert figures["float32_vs_openvino"] == 1.5
    assert figures["int8_vs_openvino"] == 2
    assert figures["int8_vs_openvino_quartiles"] == [2, 2]
    assert figures["int8_vs_openvino_weight_only"] == 3
    assert figures["int8_spec_vs_openvino"] == 4


def test_what_did_not_run_is_null() -> None:
    figures = dict(quantized_figures(_samples()))
    for name in ("int8_spec_vs_llamacpp", "int4_vs_llamacpp", "int8_vs_openvino_groups_of_128"):
        assert figures[name] is None
    assert dict(quantized_figures(Samples())) == dict.fromkeys(FIGURES)


@pytest.mark.parametrize(
    ("samples", "other_key"),
    [
        (_samples(llama_cpp_token=9), "_vs_openvino"),
        (_samples(openvino_token=9), "_vs_llamacpp"),
    ],
    ids=[LLAMA_CPP, OPENVINO],
)
def test_nothing_is_compared_with_a_peer_whose_float32_has_other_tokens(
    samples: Samples, other_key: str
) -> None:
    measured = {name for name, value in quantized_figures(samples) if value is not None}
    assert {f"float32{other_key}", f"int8{other_key}"} <= measured
    assert all(other_key in name for name in measured)


def test_openvino_need_only_begin_with_our_tokens() -> None:
    samples = _samples()
    for name in ("openvino float32", "llama.cpp F32"):
        for answer in samples.of(Entry(name, "plain", "single")).values():
            answer.tokens[0][1] = 9
    figures = dict(quantized_figures(samples))
    assert figures["int8_vs_openvino"] == 2
    assert figures["int8_vs_llamacpp"] is None


def test_our_figures_come_without_the_peers_and_with_the_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(*_: Path) -> Path:
        raise PeerUnavailable("no package today")

    monkeypatch.setattr(quantized, "ensure_llama_cpp", unavailable)
    monkeypatch.setattr(quantized, "ensure_environment", unavailable)
    monkeypatch.setattr(quantized, "TYPES", ("int8",))
    versus = measure_quantized(QuantizedExtent(SMALL, 1, (3,), QUICK_LENGTHS))
    assert versus.unavailable == dict.fromkeys((LLAMA_CPP, OPENVINO), "no package today")
    assert versus.figures == dict.fromkeys(FIGURES)
    assert set(versus.rates) == {"own int8 plain single", "own int8 speculative single depth 3"}
    assert versus.depths == {"own int8": 3}
