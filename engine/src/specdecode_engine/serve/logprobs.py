"""Log-probabilities in the two forms that OpenAI's APIs have for them."""

from collections.abc import Sequence

from specdecode_engine.request import TokenLogprobs
from specdecode_engine.serve.transcript import ScoredToken
from specdecode_engine.serve.vocabulary import Vocabulary

# JSON has no infinity; this is what OpenAI writes for "never".
LOWEST = -9999.0


def chat_logprobs(scored: Sequence[ScoredToken], vocabulary: Vocabulary) -> dict[str, object]:
    """Return the form of chat completions: one record per token, bytes where it has text."""
    records = [token.logprobs for token in scored if token.logprobs is not None]
    content = [
        _chat_token(record.token_id, record.logprob, vocabulary)
        | {"top_logprobs": [_chat_token(*likely, vocabulary) for likely in record.top]}
        for record in records
    ]
    return {"content": content, "refusal": None}


def _chat_token(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, object]:
    return {
        "token": _token_text(token_id, vocabulary),
        "logprob": max(logprob, LOWEST),
        "bytes": list(vocabulary.text_bytes(token_id)) or None,
    }


def completion_logprobs(scored: Sequence[ScoredToken], vocabulary: Vocabulary) -> dict[str, object]:
    """Return the form of completions: parallel lists; the chosen token is among the top ones.

    A prompt's first token has null for both, since nothing precedes it.
    """
    records = [token.logprobs for token in scored]
    return {
        "tokens": [_token_text(token.token_id, vocabulary) for token in scored],
        "token_logprobs": [record and max(record.logprob, LOWEST) for record in records],
        "top_logprobs": [record and _top(record, vocabulary) for record in records],
        "text_offset": [token.text_offset for token in scored],
    }


def _top(record: TokenLogprobs, vocabulary: Vocabulary) -> dict[str, float]:
    chosen = (record.token_id, record.logprob)
    return {
        _token_text(token_id, vocabulary): max(logprob, LOWEST)
        for token_id, logprob in (*record.top, chosen)
    }


def _token_text(token_id: int, vocabulary: Vocabulary) -> str:
    return vocabulary.spelling(token_id).decode(errors="replace")
