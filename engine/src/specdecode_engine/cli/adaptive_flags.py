"""The speculation table, the policy and the draft steps at start, from flags and boot file.

The table's file is read once, here. What follows from it is computed before the boot file is
validated, because its fields may be absent.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from specdecode_api.key_mask import without_key
from specdecode_api.speculation import MAX_STEPS, Algorithm, Policy
from specdecode_api.table import (
    SpeculationTable,
    TableError,
    candidates,
    default_table,
    read_table,
    table_warnings,
)
from specdecode_engine.cli.json_file import read_json

Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """What the table determines.

    `policy` and `num_steps` are None if they are given or nothing determines them; `table` is None
    if no file was read. `mistakes` are errors in the file, `warnings` are about any table.
    """

    policy: Policy | None = None
    num_steps: int | None = None
    table: SpeculationTable | None = None
    mistakes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def resolve_table(
    speculation: Mapping[str, Any], is_adaptive: bool, policy_flag: str | None
) -> ResolvedTable:
    """Read the table and resolve policy and draft steps at start.

    `--speculative-adaptive` stands for policy goodput, or ema where the table's file names it. It
    replaces `static` in a boot file, and no other policy.

    Args:
        speculation: the section of flags and boot file, not validated.
        policy_flag: value of `--speculative-adaptive-policy`.
    """
    path = speculation.get("table_path")
    try:
        document = read_json(Path(path)) if isinstance(path, str) else speculation.get("table")
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; correct speculation.table_path"
        return ResolvedTable(mistakes=(f"{without_key(str(path))}: {reason}",))
    except ValueError as error:
        return ResolvedTable(mistakes=(f"{path}: {error}; correct the file",))
    policy = _policy(speculation, document, is_adaptive, policy_flag)
    algorithm = _word(Algorithm, speculation.get("algorithm")) or Algorithm.NONE
    if algorithm is Algorithm.NONE:
        return ResolvedTable(policy)
    running = policy or _word(Policy, speculation.get("policy")) or Policy.STATIC
    given = speculation.get("num_steps")
    try:
        table = _read(document, running, given if isinstance(given, int) else None, algorithm)
    except TableError as error:
        # A table inside the boot file is refused with the rest of the boot file.
        found = error.mistakes if isinstance(path, str) else ()
        return ResolvedTable(policy, mistakes=tuple(f"{path}: {mistake}" for mistake in found))
    start = None
    if "num_steps" not in speculation:
        prepared = candidates(table.entries)
        start = _steps_of_nodes(speculation, algorithm)
        if prepared and start not in prepared:
            start = None
    from_file = table if isinstance(path, str) else None
    return ResolvedTable(policy, start, from_file, warnings=table.warnings)


def _steps_of_nodes(speculation: Mapping[str, Any], algorithm: Algorithm) -> int | None:
    """Return the draft steps that follow from the number of nodes, as SGLang computes them."""
    nodes, topk = speculation.get("num_draft_tokens"), speculation.get("topk", 1)
    if not isinstance(nodes, int) or not isinstance(topk, int) or nodes < 2 or topk < 1:
        return None
    if topk == 1:
        return min(nodes - 1, MAX_STEPS)
    return min(max(nodes // topk, 1), MAX_STEPS) if algorithm is Algorithm.NGRAM else None


def _policy(
    speculation: Mapping[str, Any], document: object, is_adaptive: bool, policy_flag: str | None
) -> Policy | None:
    named = speculation.get("policy", Policy.STATIC)
    if not is_adaptive or policy_flag is not None or named != Policy.STATIC:
        return None
    with suppress(TableError):
        if _read(document, Policy.GOODPUT, None).policy is Policy.EMA:
            return Policy.EMA
    return Policy.GOODPUT


def _read(
    document: object,
    policy: Policy,
    num_steps: int | None,
    algorithm: Algorithm = Algorithm.NONE,
) -> SpeculationTable:
    if not document and not isinstance(document, list):
        entries = default_table(policy, algorithm.most_default_steps)
        return SpeculationTable(entries, table_warnings(entries, policy))
    return read_table(document, policy, num_steps)


def _word(words: type[Word], value: object) -> Word | None:
    return next((word for word in words if word == value), None)
