"""The limit on the body of a request, by the context of the model."""

from specdecode_server.body import DEFAULT_MAX_BODY_BYTES

BASE_BODY_BYTES = 64 * 2**10
BYTES_PER_PROMPT_BYTE = 8


def max_body_bytes(context_length: int, longest_token_bytes: int, most: int | None) -> int:
    """Return the limit on a body: what a prompt that fills the context may need.

    It is at most `most`, by default 4 MiB.

    `64 KiB + 8 x context length x longest token in bytes`: JSON writes a byte of text in up to
    6 bytes, and the other fields and messages have room.
    """
    longest_prompt_bytes = context_length * longest_token_bytes
    derived = BASE_BODY_BYTES + BYTES_PER_PROMPT_BYTE * longest_prompt_bytes
    return min(derived, DEFAULT_MAX_BODY_BYTES if most is None else most)
