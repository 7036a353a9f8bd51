"""Which CPUs an engine computes on: all but one, the configured number, or those named."""

import os
import threading
from collections.abc import Callable

import pytest
import torch

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.startup.build import use_threads
from specdecode_engine.startup.device import keep_to, read_cpu_list
from tests.engine.whole_engine import boot_of

FIRST = min(os.sched_getaffinity(0))


def in_a_thread(call: Callable[[], object]) -> object:
    """Affinity belongs to a thread: that of the tests stays as it is."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", {3}), ("0-2", {0, 1, 2}), ("0-1,8,4-5", {0, 1, 4, 5, 8})]
)
def test_a_list_of_processors(text: str, numbers: set[int]) -> None:
    assert read_cpu_list(text) == numbers


def test_a_thread_keeps_to_its_processors() -> None:
    before = os.sched_getaffinity(0)
    assert in_a_thread(lambda: (keep_to(str(FIRST)), os.sched_getaffinity(0))) == (1, {FIRST})
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-9999", r"names processors [0-9,-]{1,40}-9999, and this process may use [0-9,-]+; name"),
        ("9000,9002-9004", "names processors 9000,9002-9004, and this process"),
        ("3-1", "names no processor; a range goes upwards"),
    ],
)
def test_processors_that_it_may_not_use_are_named(text: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        keep_to(text)


def test_more_threads_than_processors_are_logged_as_a_warning(checkpoints, caplog) -> None:
    processors, before = len(os.sched_getaffinity(0)), torch.get_num_threads()
    for threads in (processors, processors + 1):
        document = boot_of(checkpoints, "NONE", 1) | {"threads": threads}
        use_threads(EngineBoot.model_validate(document))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    (warning,) = caplog.messages
    assert warning.startswith(f"threads is {processors + 1}, and the engine may use {processors} ")


def test_an_engine_computes_with_as_many_threads_as_it_has_processors(checkpoints) -> None:
    document = boot_of(checkpoints, "NONE", 1) | {"cpu_affinity": str(FIRST)}
    core = in_a_thread(lambda: build_poisoned(EngineBoot.model_validate(document), 64))
    assert core.facts["threads"] == 1  # type: ignore[attr-defined]
