"""Log-probabilities in the formats of OpenAI's two APIs."""

from collections.abc import Sequence

from specdecode_engine.batch.request import TokenLogprobs
from specdecode_engine.serve.openai.output_processor import ScoredToken
from specdecode_engine.serve.text.vocabulary import Vocabulary

# JSON has no infinity; OpenAI writes this value for a probability of 0.
LOWEST = -9999.0


def chat_logprobs(scored: Sequence[ScoredToken], vocabulary: Vocabulary) -> dict[str, object]:
    """Return the format of chat completions: one record per token, with the bytes of its text."""
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
    """Return the format of completions: parallel lists; the top ones include the sampled token.

    The first token of a prompt has null in both lists of log-probabilities: nothing precedes it.
    """
    records = [token.logprobs for token in scored]
    return {
        "tokens": [_token_text(token.token_id, vocabulary) for token in scored],
        "token_logprobs": [record and max(record.logprob, LOWEST) for record in records],
        "top_logprobs": [record and _top(record, vocabulary) for record in records],
        "text_offset": [token.text_offset for token in scored],
    }


def _top(record: TokenLogprobs, vocabulary: Vocabulary) -> dict[str, float]:
    sampled = (record.token_id, record.logprob)
    return {
        _token_text(token_id, vocabulary): max(logprob, LOWEST)
        for token_id, logprob in (*record.top, sampled)
    }


def _token_text(token_id: int, vocabulary: Vocabulary) -> str:
    return vocabulary.spelling(token_id).decode(errors="replace")
