"""Grammars in a child process with limits: what passes, what is refused, and what it survives."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specdecode_engine.grammar import (
    Grammar,
    GrammarKind,
    GrammarRefused,
    GrammarSource,
    TokenBytes,
    TrialLimits,
    TrialProcess,
    TrialUnavailable,
)
from specdecode_engine.grammar.trial import walk
from specdecode_engine.grammar.trial_process import NICENESS

SPELLINGS = [*(bytes([byte]) for byte in range(256)), b"</s>"]
TOKENS = TokenBytes(SPELLINGS, frozenset({256}), frozenset({256}))
SIMPLE = GrammarSource(GrammarKind.REGEX, "a+")


def schema(**content: object) -> GrammarSource:
    return GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps({"type": "object", **content}))


OPTIONAL = schema(properties={f"p{n}": {"type": "string"} for n in range(500)})
ENUMS = {f"q{n}": {"enum": ["a", "b", "c"]} for n in range(800)}
LARGE = schema(properties={f"p{n}": {"type": "object", "properties": ENUMS} for n in range(9)})
# Where its mistake is takes 400 compilations of all definitions to find.
SLOW = schema(
    **{"$defs": {f"d{n}": {"type": "object", "properties": ENUMS} for n in range(8)}},
    properties={f"p{n}": {"$ref": f"#/$defs/d{n % 8}"} for n in range(500)} | {"z": {"type": "no"}},
)


@pytest.fixture
def start() -> Iterator[Callable[..., TrialProcess]]:
    started: list[TrialProcess] = []

    def begin(**limits: float) -> TrialProcess:
        # A process with a low priority gets few seconds of a busy machine.
        patient = {"seconds": 300.0, "start_seconds": 300.0} | limits
        started.append(TrialProcess(TOKENS, TrialLimits(**patient)))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for process in started:
        process.close()
        assert process.pid is None


@pytest.fixture(scope="module")
def process() -> Iterator[TrialProcess]:
    one = TrialProcess(TOKENS, TrialLimits())
    yield one
    one.close()


def test_one_process_tries_one_grammar_after_another(process: TrialProcess) -> None:
    assert "start: /a+/" in process.try_grammar(SIMPLE)
    first = process.pid
    with pytest.raises(GrammarRefused, match="unclosed group"):
        process.try_grammar(GrammarSource(GrammarKind.REGEX, "a("))
    assert "start: %json" in process.try_grammar(schema())
    assert process.pid == first is not None


def test_the_process_has_limits_and_loads_no_torch(process: TrialProcess) -> None:
    process.try_grammar(SIMPLE)
    folder = Path(f"/proc/{process.pid}")
    limits = {line[:26].strip(): line[26:].split() for line in _lines(folder / "limits")}
    assert 0 < int(limits["Max cpu time"][0]) < 60
    assert 2**28 < int(limits["Max address space"][0]) < 2**32
    assert limits["Max core file size"][0] == "0"
    assert (folder / "oom_score_adj").read_text().strip() == "1000"
    libraries = (folder / "maps").read_text()
    assert "llguidance" in libraries
    assert "torch" not in libraries
    assert "cuda" not in libraries


def test_the_process_yields_the_processors_to_the_engine(process: TrialProcess) -> None:
    """Niceness counts within a session only, where the kernel groups processes by session."""
    process.try_grammar(SIMPLE)
    pid = process.pid
    assert pid is not None
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + NICENESS, 19)
    assert os.getsid(pid) == os.getsid(0)
    assert os.getpgid(pid) == pid


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_grammar_that_fails_while_it_is_followed_is_refused(process: TrialProcess) -> None:
    with pytest.raises(GrammarRefused, match=r"it fails after 0 tokens .*max is 2000.*simplify it"):
        process.try_grammar(OPTIONAL)
    with pytest.raises(GrammarRefused, match=r"it fails after \d+ tokens .*too many expressions"):
        process.try_grammar(GrammarSource(GrammarKind.REGEX, "((.{0,100}){0,100}){0,100}"))


def test_a_grammar_that_takes_too_much_cpu_time_is_refused_and_the_next_is_tried(
    start: Callable[..., TrialProcess],
) -> None:
    process = start(cpu_seconds=1)
    with pytest.raises(GrammarRefused, match="took more than 1 s of CPU time; simplify it"):
        process.try_grammar(SLOW)
    assert process.pid is None
    assert process.try_grammar(SIMPLE)


def test_a_grammar_that_takes_too_much_memory_is_refused_and_the_next_is_tried(
    start: Callable[..., TrialProcess],
) -> None:
    process = start(memory_bytes=8 * 2**20)
    with pytest.raises(GrammarRefused, match="more than 8 MiB of memory"):
        process.try_grammar(LARGE)
    assert process.try_grammar(SIMPLE)
    assert start().try_grammar(LARGE)


def test_a_process_that_was_killed_is_started_again(start: Callable[..., TrialProcess]) -> None:
    process = start()
    process.try_grammar(SIMPLE)
    killed = process.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert process.try_grammar(SIMPLE)
    assert process.pid != killed


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGSEGV, GrammarRefused), (signal.SIGTERM, TrialUnavailable)],
)
def test_a_process_that_dies_in_a_trial_leaves_an_error(
    start: Callable[..., TrialProcess], number: signal.Signals, error: type[Exception]
) -> None:
    process = start()
    process.try_grammar(SIMPLE)
    raised: list[Exception] = []

    def run() -> None:
        try:
            process.try_grammar(SLOW)
        except (GrammarRefused, TrialUnavailable) as reason:
            raised.append(reason)

    pid = process.pid
    assert pid is not None
    thread = threading.Thread(target=run)
    _start_and_wait_for_cpu(thread, pid)
    os.kill(pid, number)
    thread.join(20)
    assert [type(each) for each in raised] == [error]
    assert process.try_grammar(SIMPLE)


def _start_and_wait_for_cpu(thread: threading.Thread, pid: int) -> None:
    """Start a thread and wait until a process has used 0.1 s of CPU time since."""
    before, deadline = _cpu_ticks(pid), time.monotonic() + 20
    thread.start()
    while _cpu_ticks(pid) < before + 10:
        assert time.monotonic() < deadline
        thread.join(0.01)


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_trial_that_takes_too_long_is_given_up(start: Callable[..., TrialProcess]) -> None:
    process = start(seconds=0.2)
    with pytest.raises(TrialUnavailable, match=r"within 0.2 s"):
        process.try_grammar(SLOW)


def test_closing_ends_the_process_and_a_running_trial(
    start: Callable[..., TrialProcess],
) -> None:
    process = start()
    process.try_grammar(SIMPLE)
    pid = process.pid
    assert pid is not None
    raised: list[Exception] = []

    def run() -> None:
        try:
            process.try_grammar(SLOW)
        except TrialUnavailable as reason:
            raised.append(reason)

    thread = threading.Thread(target=run)
    _start_and_wait_for_cpu(thread, pid)
    process.close()
    thread.join(20)
    assert len(raised) == 1
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(TrialUnavailable, match="stopping"):
        process.try_grammar(SIMPLE)


def test_a_walk_starts_again_where_a_grammar_ends_and_names_the_step_that_fails(
    compile_text: Callable[..., Grammar],
) -> None:
    walk(compile_text("choice", '["yes", "no"]'), 4)
    walk(compile_text("json_schema", '{"type": "object"}'), 4)
    with pytest.raises(GrammarRefused, match=r"it fails after [1-9]\d* tokens"):
        walk(compile_text("regex", "((a{0,100}){0,100}){0,100}"), 4)
