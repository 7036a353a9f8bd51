"""What the simulator asks of a policy: the part of the engine's protocol that every rival has."""

from typing import Protocol

from specdecode_engine.depth.decision import Decision, Feedback


class Chooser(Protocol):
    """Chooses the depth of a round, and hears what became of it."""

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Choose for a batch; see `DepthPolicy.decide`."""
        ...

    def observe(self, feedback: Feedback) -> None:
        """Learn from a finished round."""
        ...
