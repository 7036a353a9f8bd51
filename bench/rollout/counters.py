"""The same trial as the operator sees it: counters of processes that restart, and its ledger.

A pod counts since its process started, under each table it ran; a restart sets it to zero, and
what it did since it was read last is lost. Blocks are what the ledger cuts off between readings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from rollout.arrangements import SLOT_S, SLOTS
from rollout.fleet import Seen
from rollout.rules import ENDS, End
from rollout.scrape import counted, elapsed_s
from specdecode_operator.fleet.ledger import Ledger
from specdecode_operator.fleet.reading import Reading
from specdecode_operator.judge.blocks import Block, judge_blocks
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey, Role
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.pooled import pool

KEYS = {role: ArmKey("config", role.value) for role in Role}
BEGUN_S = 1.0  # before the first process


def in_turns_by_ledger(seen: Seen) -> End:
    """The operator's judge over blocks that its ledger cut off, asked as `rules.in_turns` is."""
    guard, length = Guard(), seen.arrangement.block_slots
    ledger, processes = (
        Ledger.begin(BEGUN_S),
        [Process(pod) for pod in range(seen.arrangement.pods)],
    )
    blocks: list[Block] = []
    for slot in range(SLOTS):
        for process in processes:
            process.work(seen, slot)
        ledger = ledger.take(process.tell() for process in processes)
        if slot % length == 0:  # the washout is over
            ledger, _ = ledger.cut()
        if (slot + 1) % length == 0:
            ledger, found = ledger.cut()
            blocks += _blocks(seen, slot, found)
        is_end = (slot + 1) % (2 * length) == 0
        if is_end or slot < 2 * length:
            growing = () if is_end else _blocks(seen, slot, ledger.block, is_finished=False)
            judgement = judge_blocks([*blocks, *growing], guard, elapsed_s(slot + 1))
            if judgement.verdict in ENDS:
                return End(judgement.verdict, slot + 1, judgement.reason)
    return End(Verdict.INCONCLUSIVE, SLOTS)


class Process:
    """One pod's counters; owned by the loop above."""

    def __init__(self, pod: int) -> None:
        self._pod, self._start_s = pod, BEGUN_S + 1.0
        self._arms = dict.fromkeys(KEYS.values(), ArmEvidence())

    def work(self, seen: Seen, slot: int) -> None:
        """Count a slot; a restart within it forgets everything up to its end."""
        if seen.restarts[slot, self._pod]:
            self._start_s = BEGUN_S + 1.0 + (slot + 1) * SLOT_S
            self._arms = dict.fromkeys(KEYS.values(), ArmEvidence())
            return
        role = Role.CANDIDATE if seen.arrangement.candidate[slot, self._pod] else Role.BASELINE
        new = replace(counted(seen, slice(slot, slot + 1), [self._pod]), restarts=0.0)
        self._arms[KEYS[role]] = pool((self._arms[KEYS[role]], new))

    def tell(self) -> Reading:
        """What a scrape would read now."""
        return Reading(f"pod-{self._pod}", self._start_s, KEYS[Role.BASELINE], dict(self._arms))


def _blocks(
    seen: Seen, slot: int, found: Mapping[ArmKey, ArmEvidence], is_finished: bool = True
) -> Iterator[Block]:
    for role, key in KEYS.items():
        runs_candidate = seen.arrangement.candidate[slot]
        of_role = np.flatnonzero(runs_candidate == (role is Role.CANDIDATE)).tolist()
        pair = slot // (2 * seen.arrangement.block_slots)
        if of_role and key in found:
            evidence = replace(found[key], pods=len(of_role))
            yield Block(pair, f"pods {of_role}", role, evidence, is_finished)
