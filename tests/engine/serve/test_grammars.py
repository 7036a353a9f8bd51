"""Grammars of simultaneous requests: shared trials, and slow grammars that occupy every process."""

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from specdecode_engine.grammar import (
    GrammarKind,
    GrammarSource,
    TokenBytes,
    TrialLimits,
    trial_process,
)
from specdecode_engine.serve.errors import HttpError
from specdecode_engine.serve.text.grammars import (
    TRIAL_PROCESSES,
    Grammars,
    GrammarTrial,
    TrialCache,
)

SPELLINGS = [*(bytes([byte]) for byte in range(256)), b"</s>"]
TOKENS = TokenBytes(SPELLINGS, frozenset({256}), frozenset({256}))
ENUMS = {f"q{n}": {"enum": ["a", "b", "c"]} for n in range(800)}


def regex(text: str) -> GrammarSource:
    return GrammarSource(GrammarKind.REGEX, text)


def slow(name: str) -> GrammarSource:
    """A schema whose mistake takes 400 compilations of all definitions to find."""
    definitions = {f"d{n}": {"type": "object", "properties": ENUMS} for n in range(8)}
    properties = {f"{name}{n}": {"$ref": f"#/$defs/d{n % 8}"} for n in range(500)}
    schema = {"$defs": definitions, "properties": {**properties, "z": {"type": "no"}}}
    return GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema))


@pytest.fixture
def make() -> Iterator[Callable[..., Grammars]]:
    made: list[Grammars] = []

    def start(wait_seconds: float = 5.0, **limits: float) -> Grammars:
        # A process with a low priority gets few seconds of a busy machine.
        patient = {"seconds": 300.0, "start_seconds": 300.0} | limits
        made.append(Grammars(TrialLimits(**patient), wait_seconds))  # type: ignore[arg-type]
        made[-1].prepare(TOKENS)
        return made[-1]

    yield start
    for grammars in made:
        grammars.close()


async def refusal(grammars: Grammars, source: GrammarSource) -> HttpError:
    with pytest.raises(HttpError) as refused:
        await grammars.translate("guided", source)
    return refused.value


def test_a_request_waits_for_a_free_process_but_not_for_long(make: Callable[..., Grammars]) -> None:
    async def main() -> None:
        grammars = make(wait_seconds=0.5, cpu_seconds=2)
        await grammars.translate("guided", regex("known"))
        slow_ones = [asyncio.create_task(refusal(grammars, slow(name))) for name in "ab"]
        await asyncio.sleep(0)  # both tasks begin, and take both processes
        error = await refusal(grammars, regex("new"))
        assert (error.status, error.code) == (503, "grammar_unavailable")
        assert error.response().headers["retry-after"] == "1"
        assert "other grammars are being compiled; try again" in str(error)
        assert not any(task.done() for task in slow_ones)
        await grammars.translate("guided", regex("known"))
        assert not any(task.done() for task in slow_ones)
        for task in slow_ones:
            error = await task
            assert (error.status, error.code) == (400, "invalid_grammar")
            assert "took more than 2 s of CPU time" in str(error)
        await grammars.translate("guided", regex("new"))

    asyncio.run(main())


# Stands in for a library that fails: following `odd` raises an error, and `panic` what Rust's
# panics are in Python.
FAILING = """
import os
os.nice({})
from specdecode_engine.grammar import trial
class PanicException(BaseException): pass
real = trial.walk
def walk(grammar, *arguments):
    if grammar.source.text == "odd":
        raise ValueError("a number is odd")
    if grammar.source.text == "panic":
        raise PanicException("index out of range")
    real(grammar, *arguments)
trial.walk = walk
trial.serve({})
"""


def test_whatever_the_library_raises_refuses_one_grammar(
    make: Callable[..., Grammars],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    async def main() -> None:
        grammars = make()
        await grammars.translate("guided", regex("known"))
        eventually(lambda: len(pids(grammars)) == TRIAL_PROCESSES + 1)
        before = pids(grammars)
        for text, words in (("odd", "a number is odd"), ("panic", "index out of range")):
            error = await refusal(grammars, regex(text))
            assert (error.status, error.code) == (400, "invalid_grammar")
            assert f"cannot read it: {words}; simplify it" in str(error)
            await grammars.translate("guided", regex(f"after a {text}"))
            if text == "odd":
                assert before == pids(grammars)
        assert before - pids(grammars), "a panic ends its process"

    monkeypatch.setattr(trial_process, "_PROGRAM", FAILING)
    asyncio.run(main())


def test_a_process_that_a_grammar_ended_starts_again(
    make: Callable[..., Grammars],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    monkeypatch.setattr(trial_process, "_PROGRAM", FAILING)
    grammars = make()
    asyncio.run(refusal(grammars, regex("panic")))
    eventually(lambda: len(pids(grammars)) == TRIAL_PROCESSES + 1)


def pids(grammars: Grammars) -> set[int]:
    return {process.pid for process in grammars._processes if process.pid is not None}


def test_a_client_that_leaves_does_not_free_the_process_that_works_for_it(
    make: Callable[..., Grammars],
) -> None:
    async def main() -> None:
        grammars = make(wait_seconds=0.2, cpu_seconds=2)
        await grammars.translate("guided", regex("known"))
        slow_ones = [asyncio.create_task(refusal(grammars, slow(name))) for name in "ab"]
        await asyncio.sleep(0)
        for task in slow_ones:
            task.cancel()
        assert (await refusal(grammars, regex("new"))).status == 503

    asyncio.run(main())


def test_equal_grammars_share_one_trial_and_results_are_forgotten_by_size() -> None:
    started: list[str] = []

    async def main() -> None:
        cache = TrialCache(max_chars=1000)

        async def run(source: GrammarSource) -> GrammarTrial:
            started.append(source.text)
            await asyncio.sleep(0)
            return GrammarTrial(translated=source.text * 300)

        async def get(text: str, is_strict: bool = True) -> GrammarTrial:
            source = GrammarSource(GrammarKind.REGEX, text, is_strict)
            return await cache.get(source, lambda: asyncio.ensure_future(run(source)))

        results = await asyncio.gather(*(get("a") for _ in range(8)))
        assert {result.translated for result in results} == {"a" * 300}
        assert started == ["a"]
        await get("a", is_strict=False)  # another grammar; the first one no longer fits
        await get("a", is_strict=False)
        assert started == ["a", "a"]
        await get("a")
        assert started == ["a", "a", "a"]

    asyncio.run(main())


def test_a_trial_without_a_result_is_repeated() -> None:
    async def main() -> None:
        cache, source = TrialCache(), regex("a")

        async def fail() -> GrammarTrial:
            raise ValueError("no process")

        async def succeed() -> GrammarTrial:
            return GrammarTrial(translated="a")

        with pytest.raises(ValueError, match="no process"):
            await cache.get(source, lambda: asyncio.ensure_future(fail()))
        assert (await cache.get(source, lambda: asyncio.ensure_future(succeed()))).translated == "a"

    asyncio.run(main())


def test_a_vocabulary_without_an_end_refuses_every_grammar() -> None:
    async def main() -> None:
        grammars = Grammars()
        grammars.prepare(TokenBytes(SPELLINGS, frozenset({256}), frozenset()))
        try:
            error = await refusal(grammars, regex("a"))
        finally:
            grammars.close()
        assert (error.status, error.code) == (400, "invalid_grammar")
        assert "names a token that ends" in str(error)

    asyncio.run(main())
