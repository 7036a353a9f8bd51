"""What speculation did for one call, as clients are told: an extension of OpenAI's usage."""

from collections.abc import Iterable

from specdecode_engine.request import RequestStats


def speculation_usage(stats: Iterable[RequestStats]) -> dict[str, int | float | None]:
    """Sum over a call's sequences.

    `accept_length` is tokens per sequence and decode round, the target's own included; null where
    no decode round was run. The first token of an answer comes with the prompt and is in no round.
    """
    known = list(stats)
    rounds = sum(one.rounds for one in known)
    drafted = sum(one.drafted for one in known)
    accepted = sum(one.accepted for one in known)
    return {
        "rounds": rounds,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "accept_length": sum(one.emitted for one in known) / rounds if rounds else None,
        "wasted_tokens": drafted - accepted,
    }
