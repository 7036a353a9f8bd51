"""What an engine logs when it is ready: where it answers, with which model, and how it drafts."""

from collections.abc import Iterator
from dataclasses import dataclass

from specdecode_api.metrics import core
from specdecode_api.speculation import Algorithm
from specdecode_engine.stats.snapshot import CoreSnapshot

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of this machine, and the one on which itself reaches them."""


@dataclass(frozen=True, slots=True)
class ReadyEngine:
    """An engine that accepts requests; `kv_tokens` is None where the core does not report them."""

    host: str
    port: int
    model: str
    kv_tokens: int | None
    algorithm: Algorithm
    max_steps: int
    needs_key: bool

    def lines(self, seconds: float) -> Iterator[str]:
        """Yield what to log after a start that took `seconds`."""
        parts = [f"ready in {seconds:.1f} s: {self.url}", f"model {self.model}"]
        if self.kv_tokens is not None:
            parts.append(f"{self.kv_tokens} tokens of KV cache")
        yield ", ".join([*parts, self._drafting()])
        if self.host in _EVERYWHERE:
            keys = "with an API key" if self.needs_key else "without an API key"
            yield (
                f"other machines can reach it, {keys}: it listens on {self.host}; "
                "--host 127.0.0.1 limits it to this machine"
            )

    @property
    def url(self) -> str:
        """Base URL of the API for clients on this machine."""
        host = _EVERYWHERE.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/v1"

    def _drafting(self) -> str:
        if self.algorithm is Algorithm.NONE:
            return "no speculation"
        return f"{self.algorithm} up to {self.max_steps} draft steps"


def kv_tokens(snapshot: CoreSnapshot) -> int | None:
    """Return the tokens that the KV cache holds; None before the core has counted its pages."""
    sizes = snapshot.values.get(core.CACHE_CONFIG_INFO, {})
    return next((int(page_size) * int(pages) for page_size, pages in sizes), None)
