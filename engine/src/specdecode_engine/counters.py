"""What the engine counts over its life, as plain numbers."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Monotonic totals; owned by the engine core.

    `emitted_tokens` and `request_rounds` count decode rounds only, so that their ratio is the
    accept length, the bonus token included.
    """

    steps: int = 0
    decode_rounds: int = 0
    request_rounds: int = 0
    prompt_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
