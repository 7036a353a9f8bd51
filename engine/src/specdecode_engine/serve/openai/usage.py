"""Usage of a call: OpenAI's counts, extended by the figures of speculation."""

from collections.abc import Sequence
from itertools import zip_longest

from specdecode_engine.serve.openai.output_processor import OutputProcessor


def usage_of(
    prompt_tokens: int, choices: Sequence[OutputProcessor], cached_tokens: int | None = None
) -> dict[str, object]:
    """Return OpenAI's usage, with the figures of speculation in `specdecode`.

    The names are those of vLLM's metrics. `accept_length` is generated tokens per sequence and
    decode step, the target's own included; None without a decode step. The first token comes
    from prefill. `cached_tokens` of the prompt tokens were in the prefix cache; None leaves that
    out.
    """
    steps = sum(choice.decode_steps for choice in choices)
    drafted = sum(choice.drafted for choice in choices)
    by_position = zip_longest(*(choice.accepted_at for choice in choices), fillvalue=0)
    accepted_at = [sum(position) for position in by_position]
    accepted = sum(accepted_at)
    emitted = sum(choice.emitted for choice in choices)
    completion_tokens = sum(choice.completion_tokens for choice in choices)
    cached = (
        {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    )
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **cached,
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.reasoning_tokens for choice in choices),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        "specdecode": {
            "decode_steps": steps,
            "num_drafts": sum(choice.drafts for choice in choices),
            "num_draft_tokens": drafted,
            "num_accepted_tokens": accepted,
            "num_accepted_tokens_per_pos": accepted_at,
            "accept_length": emitted / steps if steps else None,
        },
    }
