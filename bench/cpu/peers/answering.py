"""The worker's side of the protocol: a question per line of JSON comes in, an answer goes out.

Only the standard library: it runs in the Python of every peer. What libraries print goes to
standard error, so that answers stay alone on standard output. Time is the process's own, all its
threads together, and only within `Ask.timed`.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Ask:
    """One question: answer these prompts, so many tokens each."""

    way: str
    prompts: list[list[int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    depth: int = 0  # tokens drafted at a time, where the way drafts
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what happens within."""
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.cpu_s += time.process_time() - cpu_began_s
            self.wall_s += time.perf_counter() - began_s


@dataclass(frozen=True, slots=True)
class Told:
    """What a way came to: new tokens of each prompt, and further figures."""

    tokens: list[list[int]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


Way = Callable[[Ask], Told]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is started with."""

    target: str
    draft: str
    dtype: str
    quantization: str = "auto"  # of weights: our engine's and OpenVINO's
    activation_group: str = ""  # of OpenVINO's int8: values with one scale; 0: they stay float32
    libraries: str = ""  # folder of llama.cpp's

    @classmethod
    def from_arguments(cls) -> "Setup":
        """Read it from the command line: one JSON object."""
        return cls(**json.loads(sys.argv[1]))


def answer_questions(load: Callable[[Setup], tuple[Mapping[str, Way], dict[str, str]]]) -> None:
    """Load, print `{"versions": …}`, then answer line by line until there are no more.

    Args:
        load: returns the ways by name, and versions to report.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        ways, versions = load(Setup.from_arguments())
        print(json.dumps({"versions": versions}), file=out)
        for line in sys.stdin:
            print(json.dumps(_answer(ways, json.loads(line))), file=out)


def _answer(ways: Mapping[str, Way], question: dict[str, Any]) -> dict[str, Any]:
    ask = Ask(**question)
    if ask.way not in ways:
        return {"error": f"no way {ask.way!r} here; there are {', '.join(sorted(ways))}"}
    try:
        answered = ways[ask.way](ask)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "tokens": answered.tokens,
        "figures": answered.figures,
        "cpu_s": ask.cpu_s,
        "wall_s": ask.wall_s,
    }
