"""llama.cpp as a peer: what is installed, what is compared, and what is null with its reason."""

import hashlib
import platform
import tarfile
from pathlib import Path

import pytest

from engine.epsilon_pair import Size
from peers import quantized
from peers.contest import Entry, Samples
from peers.installation import PeerUnavailable
from peers.llama_cpp import SHA512, VERSION, ensure_llama_cpp, unpack
from peers.loads import QUICK_LENGTHS
from peers.quantized import QuantizedExtent, llama_cpp, measure_quantized, own, quantized_figures
from peers.targets import TARGETS
from peers.worker import Answer

SMALL = Size(2, 64, vocab=512, heads=4, context=256, kv_heads=2, inner=96)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "library.so").write_text("code")
    path = tmp_path / "some.tgz"
    with tarfile.open(path, "w:gz") as packed:
        packed.add(tmp_path / "library.so", "package/library.so")
    return path


def test_an_archive_is_unpacked_only_if_its_checksum_is_the_expected_one(
    archive: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "unpacked"
    with pytest.raises(PeerUnavailable, match=rf"some\.tgz has the checksum .*, not {SHA512[:12]}"):
        unpack(archive, SHA512, folder)
    assert not folder.exists()
    unpack(archive, hashlib.sha512(archive.read_bytes()).hexdigest(), folder)
    assert (folder / "package" / "library.so").read_text() == "code"


def test_another_kind_of_machine_is_refused_and_libraries_that_are_there_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"llama-cpp-{VERSION}-{SHA512[:12]}"
    folder.mkdir()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(PeerUnavailable, match="for Linux on x86_64 only, not Linux on aarch64"):
        ensure_llama_cpp(tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert ensure_llama_cpp(tmp_path).is_relative_to(folder)


def _answers(*seconds: float, token: int = 7) -> dict[int, Answer]:
    """Answers of ten tokens; decoding nine of them takes half the time."""
    return {
        n: Answer([[token] * 10], {"decode_s": cpu_s / 2, "decode_tokens": 9}, cpu_s, cpu_s)
        for n, cpu_s in enumerate(seconds)
    }


def _samples(token: int) -> Samples:
    """int8: ours takes half the time, a third and a quarter; llama.cpp's draft never ran."""
    return Samples(
        {
            Entry(own("float32"), "plain", "single"): _answers(4, 4, 4),
            Entry(llama_cpp("F32"), "plain", "single"): _answers(4, 4, 4, token=token),
            Entry(own("int8"), "plain", "single"): _answers(1, 1, 1),
            Entry(llama_cpp("Q8_0"), "plain", "single"): _answers(2, 3, 4, token=8),
            Entry(own("int8"), "speculative", "single", 3): _answers(1, 1, 1),
        }
    )


def test_ratios_to_llama_cpp_are_medians_with_quartiles() -> None:
    figures = dict(quantized_figures(_samples(token=7)))
    assert figures["float32_vs_llamacpp"] == 1
    assert figures["int8_vs_llamacpp"] == 3
    assert figures["int8_vs_llamacpp_quartiles"] == [2.5, 3.5]
    assert figures["int8_decode_vs_llamacpp"] == 3
    assert figures["int8_spec_vs_llamacpp"] is None
    assert figures["int4_vs_llamacpp"] is None


def test_nothing_is_compared_where_float32_has_other_tokens_or_did_not_run() -> None:
    named = {one.figure for one in TARGETS if one.figure.endswith("_vs_llamacpp")}
    assert len(named) == 9
    for samples in (_samples(token=9), Samples()):
        assert dict(quantized_figures(samples)) == dict.fromkeys(named)


def test_our_figures_come_without_llama_cpp_and_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable() -> Path:
        raise PeerUnavailable("no package today")

    monkeypatch.setattr(quantized, "ensure_llama_cpp", unavailable)
    monkeypatch.setattr(quantized, "TYPES", {"int8": "Q8_0"})
    versus = measure_quantized(QuantizedExtent(SMALL, 1, (3,), QUICK_LENGTHS))
    assert versus.unavailable == {"llama.cpp": "no package today"}
    names = ("int8_vs_llamacpp", "int8_decode_vs_llamacpp", "int8_spec_vs_llamacpp")
    assert versus.figures == dict.fromkeys(names)
    assert set(versus.rates) == {"own int8 plain single", "own int8 speculative single depth 3"}
    assert versus.depths == {"own int8": 3}
