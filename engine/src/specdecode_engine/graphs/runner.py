"""What a captured pass offers, whatever it was captured with."""

from typing import Protocol

from specdecode_engine.forward.passes import PassInputs, PassOutputs
from specdecode_engine.graph_plan.passes import PassShape


class Runner(Protocol):
    """One pass of one shape."""

    @property
    def shape(self) -> PassShape:
        """The largest batch that it takes, and everything else that is fixed."""
        ...

    def run(self, inputs: PassInputs) -> PassOutputs:
        """Run a batch of at most that size; the outputs are overwritten by later runs.

        Nothing is allocated but views of the outputs.
        """
        ...
