"""`min_tokens`, `bad_words` and `allowed_token_ids` of a body as rules on tokens."""

from dataclasses import dataclass

from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.protocol import GenerationBody
from specdecode_engine.serve.text.tokenizer import TextProcessor

MAX_WORD_TOKENS = 32


@dataclass(frozen=True, slots=True)
class BodyRules:
    """The fields as `SamplingParams` has them."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: frozenset[int] | None = None


def read_rules(
    body: GenerationBody, text: TextProcessor, eos_token_ids: frozenset[int]
) -> BodyRules:
    """Encode and check the fields, or raise `HttpError`; safe in any thread."""
    words = tuple(dict.fromkeys(each for word in body.bad_words or () for each in _ids(word, text)))
    allowed = None
    if body.allowed_token_ids is not None:
        allowed = frozenset(body.allowed_token_ids)
        if max(allowed) >= text.vocab_size:
            raise errors.invalid(
                "allowed_token_ids",
                f"allowed_token_ids has token id {max(allowed)}; valid ids are 0 to "
                f"{text.vocab_size - 1}",
            )
    forbidden = {word[-1] for word in words}
    if body.min_tokens:
        forbidden |= frozenset(body.stop_token_ids or ()) | eos_token_ids
    if forbidden.issuperset(range(text.vocab_size) if allowed is None else allowed):
        field = "bad_words" if allowed is None else "allowed_token_ids"
        message = f"{field} leaves no token that may be generated; allow others than the last ones"
        raise errors.invalid(field, f"{message} of bad_words and those that end the text")
    return BodyRules(words, allowed)


def rule_field(body: GenerationBody) -> str | None:
    """Return a field of `body` that makes rules; None without one."""
    fields = ("min_tokens", "bad_words", "allowed_token_ids")
    return next((field for field in fields if getattr(body, field)), None)


def _ids(word: str, text: TextProcessor) -> list[tuple[int, ...]]:
    """Return the ids of a word at the start of a text and after a space, as in vLLM."""
    found = [text.encode(prefix + word.lstrip(), add_special_tokens=False) for prefix in ("", " ")]
    if not all(found) or max(map(len, found)) > MAX_WORD_TOKENS:
        raise errors.invalid(
            "bad_words",
            f"bad_words has {word[: errors.SHOWN_VALUE_CHARS]!r}; each word needs 1 to "
            f"{MAX_WORD_TOKENS} tokens; shorten it",
        )
    return found
