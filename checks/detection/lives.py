"""False alarms over whole lives of an engine: requests that even its sound head drafts badly.

A life lasts until the detection has the evidence that it needs at least. Requests that do not
follow the target's own distribution do not count: a life of them ends after one group.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from checks.detection.served import (
    EXAMPLES,
    SOUND,
    draft_of,
    example_requests,
    run_all,
    served_with,
)
from checks.lossless.grammars import Constraints
from specdecode_engine.adaptive.draft_health import MIN_PROPOSALS
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.grammar import Grammar, GrammarKind

BATCH, GROUPS = 24, 12

Make = Callable[[int], list[Request]]
"""Makes a group of requests from a seed."""


def short_random_requests(seed: int) -> list[Request]:
    """Prompts of random tokens, answers of at most six, sampled."""
    rng = random.Random(seed)
    return [
        Request(
            f"{seed}-{number}",
            tuple(rng.randrange(3, 1000) for _ in range(rng.randint(1, 8))),
            SamplingParams(rng.randrange(1 << 30), rng.randint(2, 6), 1.0, ignore_eos=True),
        )
        for number in range(BATCH)
    ]


def measure(lives: int, note: Callable[[], object] = lambda: None) -> dict[str, dict[str, float]]:
    """Count lives with an alarm, by kind of request, and those with enough evidence for one."""
    with (
        TemporaryDirectory() as folder,
        served_with(SOUND, Path(folder) / "head", policy="static") as core,
    ):
        return {name: _lives(core, makes(core), lives, note) for name, makes in MAKERS.items()}


def _hot(_: EngineCore) -> Make:
    """The example prompts at temperature 1.5."""
    return _from_examples(lambda number: (SamplingParams(number, 6, 1.5, ignore_eos=True), None))


def _under_grammars(core: EngineCore) -> Make:
    """The example prompts, answered in JSON."""
    compiled = Constraints(EXAMPLES / "target", core.eos_token_ids).grammars
    grammars = [each for each in compiled if each.source.kind is GrammarKind.JSON_SCHEMA]
    return _from_examples(
        lambda number: (SamplingParams(number, 6, 0.0), grammars[number % len(grammars)])
    )


def _from_examples(limits: Callable[[int], tuple[SamplingParams, Grammar | None]]) -> Make:
    prompts = [each.prompt_ids for each in example_requests(8 * BATCH)]

    def make(seed: int) -> list[Request]:
        numbers = range(seed * BATCH, (seed + 1) * BATCH)
        answers = ((number, *limits(number)) for number in numbers)
        return [
            Request(str(number), prompts[number % len(prompts)], sampling, grammar=grammar)
            for number, sampling, grammar in answers
        ]

    return make


def _lives(
    core: EngineCore, make: Make, lives: int, note: Callable[[], object]
) -> dict[str, float]:
    alarms = judged = proposed = accepted = 0
    for life in range(lives):
        for at in range(GROUPS):
            run_all(core, make(life * GROUPS + at))
            if not 0 < draft_of(core).evidence.proposed < MIN_PROPOSALS:
                break
        seen = draft_of(core).evidence
        alarms += draft_of(core).is_unfit
        judged += seen.proposed >= MIN_PROPOSALS
        proposed, accepted = proposed + seen.proposed, accepted + seen.accepted
        core.finish_draft_exchange()  # begins another life
        note()
    rate = round(accepted / proposed, 4) if proposed else 0.0
    return {"lives": lives, "alarms": alarms, "judged": judged, "acceptance": rate}


MAKERS: Mapping[str, Callable[[EngineCore], Make]] = {
    "short random requests": lambda _: short_random_requests,
    "temperature 1.5": _hot,
    "JSON grammars": _under_grammars,
}
KINDS = len(MAKERS)
