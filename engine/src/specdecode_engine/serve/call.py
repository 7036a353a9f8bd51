"""One HTTP call as the core will see it: its requests, and what is needed to answer it."""

import hashlib
from dataclasses import dataclass

from specdecode_engine.request import Request

ID_PREFIXES = {
    "text_completion": "cmpl",
    "chat.completion": "chatcmpl",
    "chat.completion.chunk": "chatcmpl",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call after every check. Sequence i of the answer is `requests[i]`.

    `echoes` is what each answer's text begins with. `prompt_tokens` counts a prompt once, however
    many answers it gets. `started_s` is on the service's monotonic clock.
    """

    call_id: str
    created: int
    started_s: float
    model: str
    requests: tuple[Request, ...]
    echoes: tuple[str, ...]
    prompt_tokens: int
    stops: tuple[str, ...]
    include_usage: bool

    def head(self, kind: str) -> dict[str, object]:
        """Return the fields that every object of the answer begins with."""
        return {
            "id": f"{ID_PREFIXES[kind]}-{self.call_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def chunk_head(self, kind: str) -> dict[str, object]:
        """Return the same for an object of a stream."""
        return self.head(kind) | ({"usage": None} if self.include_usage else {})


def sequence_seed(seed: int, index: int) -> int:
    """Return the seed of answer `index` to one prompt; answer 0 has the call's own."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
