"""What the simulator needs of a policy: the part of the engine's protocol that every rival has."""

from typing import Protocol

from specdecode_engine.adaptive.policy import Decision, Feedback


class Chooser(Protocol):
    """Chooses the depth of a step and learns from its result."""

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Choose for a batch; see `AdaptivePolicy.decide`."""
        ...

    def observe(self, feedback: Feedback) -> None:
        """Learn from a finished step."""
        ...
