"""`prompt_logprobs` of a response, in the form of vLLM."""

from collections.abc import Sequence
from typing import Any

from specdecode_engine.batch.request import TokenLogprobs
from specdecode_engine.serve.openai.protocol import LOWEST_LOGPROB
from specdecode_engine.serve.text.tokenizer import Vocabulary


def prompt_logprob_objects(
    records: Sequence[TokenLogprobs], vocabulary: Vocabulary
) -> list[dict[str, Any] | None]:
    """Return an object for each token of the prompt; None for the first: nothing precedes it.

    Keys are token ids. The likeliest tokens have their rank; the prompt's own token has none if it
    is not among them.
    """
    return [None, *(_places(record, vocabulary) for record in records)]


def _places(record: TokenLogprobs, vocabulary: Vocabulary) -> dict[str, Any]:
    ranked = {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(record.top, 1)}
    scored = {record.token_id: (record.logprob, None), **ranked}
    return {
        str(token_id): {
            "logprob": max(logprob, LOWEST_LOGPROB),
            "rank": rank,
            "decoded_token": vocabulary.shown(token_id),
        }
        for token_id, (logprob, rank) in scored.items()
    }
