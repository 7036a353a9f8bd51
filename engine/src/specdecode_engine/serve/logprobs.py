"""Log-probabilities in the two forms that OpenAI's APIs have for them."""

from collections.abc import Sequence

from specdecode_engine.serve.transcript import ScoredToken
from specdecode_engine.serve.vocabulary import Vocabulary

# JSON has no infinity; this is what OpenAI writes for "never".
LOWEST = -9999.0


def chat_logprobs(scored: Sequence[ScoredToken], vocabulary: Vocabulary) -> dict[str, object]:
    """Return the form of chat completions: one record per token, bytes where it has text."""
    content = [
        _chat_token(token.logprobs.token_id, token.logprobs.logprob, vocabulary)
        | {
            "top_logprobs": [
                _chat_token(token_id, logprob, vocabulary)
                for token_id, logprob in token.logprobs.top
            ]
        }
        for token in scored
    ]
    return {"content": content, "refusal": None}


def _chat_token(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, object]:
    return {
        "token": _token_text(token_id, vocabulary),
        "logprob": max(logprob, LOWEST),
        "bytes": list(vocabulary.text_bytes(token_id)) or None,
    }


def completion_logprobs(scored: Sequence[ScoredToken], vocabulary: Vocabulary) -> dict[str, object]:
    """Return the form of completions: parallel lists; the chosen token is among the top ones."""
    return {
        "tokens": [_token_text(token.logprobs.token_id, vocabulary) for token in scored],
        "token_logprobs": [max(token.logprobs.logprob, LOWEST) for token in scored],
        "top_logprobs": [_top(token, vocabulary) for token in scored],
        "text_offset": [token.text_offset for token in scored],
    }


def _top(token: ScoredToken, vocabulary: Vocabulary) -> dict[str, float]:
    chosen = (token.logprobs.token_id, token.logprobs.logprob)
    return {
        _token_text(token_id, vocabulary): max(logprob, LOWEST)
        for token_id, logprob in (*token.logprobs.top, chosen)
    }


def _token_text(token_id: int, vocabulary: Vocabulary) -> str:
    return vocabulary.spelling(token_id).decode(errors="replace")
