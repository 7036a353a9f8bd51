"""The default tables."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from specdecode_api.speculation import Policy
from specdecode_api.table.entry import TableEntry

# SGLang's default, so that its launch commands behave the same here.
_EMA: Final = {
    "1": TableEntry(candidate_steps=(1, 3, 5, 7), down_hysteresis=-0.25),
    "8": TableEntry(candidate_steps=(0, 1, 3), down_hysteresis=0.0),
    "32": TableEntry(candidate_steps=(0, 1), down_hysteresis=0.0),
    "64": TableEntry(candidate_steps=(0,), down_hysteresis=0.0),
}
# One range: the measured costs decide which draft steps are too expensive at a batch size.
_GOODPUT: Final = {"1": TableEntry(candidate_steps=(0, 1, 2, 3, 5, 7))}


def default_table(policy: Policy) -> Mapping[str, TableEntry]:
    """Return the table that a policy uses where none is given; `static` needs none."""
    tables = {Policy.STATIC: {}, Policy.EMA: _EMA, Policy.GOODPUT: _GOODPUT}
    return MappingProxyType(tables[policy])
