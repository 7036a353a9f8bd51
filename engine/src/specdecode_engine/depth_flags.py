"""Who decides on the depth and where it starts, when flags and boot file leave that open."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from specdecode_api.speculation import Algorithm, Policy, effective_num_steps
from specdecode_api.table import (
    BadTable,
    SpeculationTable,
    candidates,
    default_table,
    read_table,
)
from specdecode_engine.table_file import read_table_file

Word = TypeVar("Word", bound=StrEnum)


def choose_policy(
    speculation: Mapping[str, Any], is_adaptive: bool, flag: str | None
) -> Policy | None:
    """Return the policy that `--speculative-adaptive` stands for; None where one is named.

    It is goodput, or ema where the table's file says so. A boot file's `static` gives way to the
    flag, another policy does not.

    Args:
        speculation: what boot file and flags say, unchecked.
        flag: value of `--speculative-adaptive-policy`.
    """
    named = speculation.get("policy", Policy.STATIC)
    if not is_adaptive or flag is not None or named != Policy.STATIC:
        return None
    table, _ = _table(speculation, Policy.GOODPUT, None)
    return Policy.EMA if table.policy is Policy.EMA else Policy.GOODPUT


def choose_start(speculation: Mapping[str, Any]) -> tuple[int | None, tuple[str, ...]]:
    """Return the depth at start where none is given, and what is wrong with the table's file.

    Args:
        speculation: what boot file and flags say, unchecked, policy included.
    """
    algorithm = _word(Algorithm, speculation.get("algorithm")) or Algorithm.NONE
    if algorithm is Algorithm.NONE:
        return None, ()
    given = speculation.get("num_steps")
    policy = _word(Policy, speculation.get("policy")) or Policy.STATIC
    table, mistakes = _table(speculation, policy, given if isinstance(given, int) else None)
    if "num_steps" in speculation:
        return None, mistakes
    return effective_num_steps(algorithm, None, candidates(table.entries)), mistakes


def _table(
    speculation: Mapping[str, Any], policy: Policy, num_steps: int | None
) -> tuple[SpeculationTable, tuple[str, ...]]:
    """Read the table that is used; a bad one inside the boot file is refused later, with it."""
    path, written = speculation.get("table_path"), speculation.get("table")
    try:
        if isinstance(path, str):
            return read_table_file(path, policy, num_steps), ()
        if written:
            return read_table(written, policy), ()
    except BadTable as error:
        return SpeculationTable({}), error.mistakes if isinstance(path, str) else ()
    return SpeculationTable(default_table(policy)), ()


def _word(words: type[Word], value: object) -> Word | None:
    return next((word for word in words if word == value), None)
