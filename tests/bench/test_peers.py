"""The comparison with peers: protocol, interleaving, ratios, targets, results, real workers."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cpu.engine.host_step import measure_host_steps
from bench.cpu.peers.contest import (
    OPENVINO,
    OWN,
    TRANSFORMERS,
    Entry,
    Samples,
    mismatches,
    run_contest,
)
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from bench.cpu.peers.figures import Model, contest_figures, ratio
from bench.cpu.peers.floors import Floors, Limits
from bench.cpu.peers.loads import FULL_LENGTHS, MIXED_REQUESTS, QUICK_LENGTHS, Load, draw_loads
from bench.cpu.peers.report import Report, write_results
from bench.cpu.peers.targets import TARGETS, Target, flatten, table_rows
from bench.cpu.peers.versus import Versus
from bench.cpu.peers.worker import Answer, PeerFailed, Worker, start_worker
from checks.harness.installation import PeerUnavailable, ensure_environment, environment_folder
from checks.harness.machine import ROOT

SMALL = Size(2, 64, vocab=512, heads=4, context=256, kv_heads=2, inner=96)
ASKED = (
    "plain_b1_vs_transformers", "plain_b1_vs_openvino", "plain_b1_of_limit", "verify8_over_1",
    "spec_b1_vs_plain", "spec_b1_vs_transformers_assisted", "spec_b1_vs_openvino",
    "b8_vs_transformers", "b8_vs_openvino", "mixed64_vs_generate_batch", "mixed64_of_static",
)  # fmt: skip
ECHO = """
from bench.cpu.peers.answering import Told, answer_questions
import sys
def load(setup):
    print("noise of a library")
    def echo(ask):
        with ask.timed():
            sum(range(200_000))
        # vocabulary: allow told: a class of peers.answering
        return Told([[7] * count for count in ask.tokens], {"depth": ask.depth})
    def fail(ask):
        raise ValueError("no such luck")
    def leave(ask):
        print("gone for good", file=sys.stderr)
        sys.exit(3)
    return {"echo": echo, "fail": fail, "leave": leave}, {"echo": setup.dtype}
answer_questions(load)
"""


@pytest.fixture
def echo() -> Iterator[Worker]:
    setup = json.dumps({"target": "t", "draft": "d", "dtype": "float32"})
    with Worker("echo", (sys.executable, "-c", ECHO, setup), [str(ROOT)]) as worker:
        yield worker


def test_a_worker_answers_and_reports_its_own_processor_time(echo: Worker) -> None:
    assert echo.versions() == {"echo": "float32"}
    answer = echo.ask("echo", [[1, 2]], [3], depth=5)
    assert answer.tokens == [[7, 7, 7]]
    assert answer.figures == {"depth": 5}
    assert 0 < answer.cpu_s < 5
    assert answer.rate == 3 / answer.cpu_s


def test_an_error_is_reported_and_the_worker_goes_on(echo: Worker) -> None:
    with pytest.raises(PeerFailed, match="echo: ValueError: no such luck"):
        echo.ask("fail")
    with pytest.raises(PeerFailed, match="no way 'sing' here; there are echo, fail, leave"):
        echo.ask("sing")
    assert echo.ask("echo", [[1]], [1]).tokens == [[7]]


def test_a_worker_that_ends_leaves_its_last_words(echo: Worker) -> None:
    with pytest.raises(PeerFailed, match="echo has ended: gone for good"):
        echo.ask("leave")


def test_what_failed_is_null_with_its_reason_and_the_others_go_on(echo: Worker) -> None:
    entries = [Entry(OWN, "echo", "single"), Entry(OWN, "fail", "single")]
    load = {"single": Load(((1, 2),), (4,))}
    samples = run_contest({OWN: echo}, entries, lambda seed: load, {"single": 2}, lambda: None)
    assert list(samples.of(entries[0])) == [0, 1]
    assert samples.of(entries[1]) == {}
    assert samples.reasons == {"own fail single": "echo: ValueError: no such luck"}
    assert ratio(samples, entries[0], entries[1]) is None


def test_loads_are_the_same_for_all_and_mixed_ones_as_long_as_even_ones() -> None:
    for lengths in (QUICK_LENGTHS, FULL_LENGTHS):
        loads = draw_loads(lengths, 4096, 3)
        assert loads == draw_loads(lengths, 4096, 3)
        assert loads != draw_loads(lengths, 4096, 4)
        mixed, even = loads["mixed"], loads["even"]
        assert len(mixed.prompts) == len(even.prompts) == MIXED_REQUESTS
        assert mixed.token_count == even.token_count
        prompt_tokens = [sum(len(p) for p in load.prompts) for load in (mixed, even)]
        assert prompt_tokens[0] == prompt_tokens[1]
        assert len(set(mixed.tokens)) > 5


def _answer(rate: float, decode: float = 1.0) -> Answer:
    figures = {"decode_tokens": 100.0, "decode_s": decode}
    return Answer([[7] * 100], figures, cpu_s=100 / rate, wall_s=1.0)


def test_figures_are_medians_of_ratios_within_a_repeat() -> None:
    rates = {
        Entry(OWN, "plain", "single"): (100, 50, 80),
        Entry(TRANSFORMERS, "plain", "single"): (50, 50, 20),  # ratios 2, 1, 4
        Entry(OWN, "speculative", "single", 3): (150, 150, 150),
        Entry(OWN, "speculative", "single", 7): (300, 100, 240),  # better: 3, 2, 3 of plain
        Entry(TRANSFORMERS, "speculative", "single", 7): (100, 100, 100),
    }
    samples = Samples(
        {entry: {n: _answer(rate) for n, rate in enumerate(row)} for entry, row in rates.items()}
    )
    floors = [Floors(0.02, 0.02, 1.0)] * 3  # 20 MB/s over 100 kB a token: at most 200 tokens/s
    widths = [{"one_row_ms": 2.0, "eight_rows_ms": 3.0}]
    figures = contest_figures(samples, widths, floors, Model(100_000))
    assert set(ASKED) <= set(figures)
    assert figures["plain_b1_vs_transformers"] == 2
    assert figures["spec_b1_vs_plain"] == 3
    assert figures["spec_b1_vs_transformers_assisted"] == 2.4
    assert figures["verify8_over_1"] == 1.5
    assert figures["plain_b1_of_limit"] == 0.5
    assert figures["plain_b1_vs_openvino"] is None


def test_tokens_that_differ_are_named_with_their_place() -> None:
    base, other = Entry(OWN, "plain", "single"), Entry(OPENVINO, "plain", "single")
    samples = Samples(
        {
            base: {0: Answer([[1, 2, 3]], {}, 1, 1)},
            other: {0: Answer([[1, 9, 3]], {}, 1, 1)},
        }
    )
    found = list(mismatches(samples, base))
    assert found == ["openvino plain single, repeat 1: request 0, token 1: 9 instead of 2"]


def test_a_target_is_met_missed_or_not_measured() -> None:
    least, most = Target("a", "", at_least=2.0), Target("b", "", at_most=1.4)
    assert (least.is_met(2.0), least.is_met(1.9), least.is_met(None)) == (True, False, None)
    assert (most.is_met(1.4), most.is_met(1.5)) == (True, False)
    named = {target.figure for target in TARGETS}
    assert {*ASKED, "prefix_match_us"} <= named
    assert {f"scheduler_us {size}" for size in (1, 16, 64, 256)} <= named
    rows = table_rows(flatten({"verify8_over_1": None, "scheduler_us": {"1": 60.0}}))
    assert [row[1:] for row in rows] == [
        ("–", "≤ 1.4", "not measured"),
        ("60", "≤ 50", "missed"),
    ]


def test_results_are_json_a_page_and_a_plot_without_paths(tmp_path: Path) -> None:
    report = Report(figures={"plain_b1_vs_transformers": 1.5, "adaptive": {}})
    row = {"tokens_per_cpu_s": 10.0, "least_cpu_ms_per_token": 90.0}
    report.contests["float32"] = Versus(
        rates={"own plain single": row}, unavailable={OPENVINO: "no wheel"}
    )
    report.add_machine(1.0)
    paths = write_results(report, tmp_path)
    assert [path.suffix for path in paths] == [".json", ".md", ".png"]
    summary = json.loads(paths[0].read_text())
    assert summary["plain_b1_vs_transformers"] == 1.5
    page = paths[1].read_text()
    assert "not measured (float32): openvino: no wheel" in page
    assert "missed" in page
    assert str(Path.home()) not in page + paths[0].read_text()
    assert os.uname().nodename not in page + paths[0].read_text()


def test_an_environment_that_is_there_is_taken_and_another_lock_is_another_one(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "peer.txt"
    lock.write_text("")
    python = ensure_environment(lock, tmp_path)
    assert python.exists()
    python.unlink()
    assert ensure_environment(lock, tmp_path) == python  # not created again
    before = environment_folder(lock, tmp_path)
    lock.write_text("# another")
    assert environment_folder(lock, tmp_path) != before


def test_what_cannot_be_installed_reports_why(tmp_path: Path) -> None:
    lock = tmp_path / "peer.txt"
    with pytest.raises(PeerUnavailable, match=r"there is no lock peer\.txt"):
        ensure_environment(lock, tmp_path)
    lock.write_text("certifi==2026.10.18\n")  # without hashes
    with pytest.raises(PeerUnavailable, match="uv pip install"):
        ensure_environment(lock, tmp_path)


def test_the_machines_limits_are_positive_and_reading_beats_nothing() -> None:
    floors = Limits().measure()
    assert floors.read_gb_s > 1
    assert floors.copy_gb_s > 1
    assert floors.product_gflop_s > 1
    has_pairs = "avx512_bf16" in Path("/proc/cpuinfo").read_text().split()
    assert (floors.pair_gflop_s > 1) == has_pairs


def test_the_hosts_part_of_a_round_is_timed_for_every_batch() -> None:
    times = measure_host_steps(2)
    assert list(times) == ["1", "16", "64", "256"]
    assert 0 < times["1"] < times["256"]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """Our engine and transformers, each loaded once."""
    target, draft = write_pair(tmp_path_factory.mktemp("pair"), SMALL, STRONG)
    setup = {"target": str(target), "draft": str(draft), "dtype": "float32"}
    with start_worker("own_worker", setup) as own, start_worker("transformers_worker", setup) as hf:
        yield {OWN: own, TRANSFORMERS: hf}


def test_our_engine_and_transformers_give_the_same_tokens_in_every_way(
    workers: dict[str, Worker],
) -> None:
    single = [[5, 9, 200, 17]]
    batch = [[number + 3, 9, 200, 17] for number in range(3)]
    asks = (
        ("plain", single, [12], 0),
        ("speculative", single, [12], 3),
        ("batch", batch, [9] * 3, 0),
    )
    told = {name: [worker.ask(*ask).tokens for ask in asks] for name, worker in workers.items()}
    assert told[OWN] == told[TRANSFORMERS]
    plain, speculative, _ = told[OWN]
    assert plain == speculative
    assert len(plain[0]) == 12


def test_our_engine_answers_mixed_requests_as_single_ones_and_times_widths(
    workers: dict[str, Worker],
) -> None:
    worker = workers[OWN]
    prompts = [[number + 3] * (2 + number % 5) for number in range(20)]
    lengths = [1 + number % 7 for number in range(20)]
    mixed = worker.ask("mixed", prompts, lengths).tokens
    assert worker.ask("few", prompts, lengths).tokens == mixed
    assert worker.ask("in_groups", prompts, lengths).tokens == mixed
    assert worker.ask("plain", prompts[3:4], lengths[3:4]).tokens == mixed[3:4]
    widths = worker.ask("widths").figures
    assert widths["one_row_ms"] > 0
    assert widths["eight_rows_ms"] > 0


CONTEST_REPEATS = 2


def test_a_contest_with_transformers_gives_equal_tokens_and_a_ratio(
    workers: dict[str, Worker],
) -> None:
    """How large the ratio is depends on model and processor: `make bench-engine` judges it."""
    entries = [Entry(who, "plain", "single") for who in (OWN, TRANSFORMERS)]
    samples = run_contest(
        workers,
        entries,
        lambda seed: draw_loads(QUICK_LENGTHS, SMALL.vocab, seed),
        {"single": CONTEST_REPEATS},
        lambda: None,
    )
    reached = ratio(samples, *entries)
    assert not samples.reasons
    assert reached is not None
    assert reached > 0
    assert not list(mismatches(samples, entries[0]))
