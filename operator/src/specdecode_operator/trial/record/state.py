"""What is known of a trial while it runs; frozen, each step makes a new one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from specdecode_api.table import TableEntry
from specdecode_operator.fleet import Ledger
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey, Stratum
from specdecode_operator.judge.judgement import Judgement
from specdecode_operator.judge.trial_evidence import PodEvidence, TurnEvidence
from specdecode_operator.owned.hashes import digest
from specdecode_operator.trial.record.overrides import Override

Table = Mapping[str, TableEntry]


class Kind(StrEnum):
    """How a trial is made."""

    HOT = "Hot"  # pods take turns with two tables, crosswise
    CANARY = "Canary"  # pods of their own
    SWITCHBACK = "Switchback"  # the only pod takes turns, or all pods restart in turns


class Origin(StrEnum):
    """Who asked for a trial."""

    EDIT = "Edit"
    RECOMMENDATION = "Recommendation"
    USER = "User"


class Phase(StrEnum):
    """How far a trial is."""

    PREPARING = "Preparing"  # until pods are there and report that they run what they should
    WARMING_UP = "WarmingUp"
    MEASURING = "Measuring"
    PROMOTING = "Promoting"
    ROLLING_BACK = "RollingBack"

    @property
    def is_ending(self) -> bool:
        """Whether the verdict is given."""
        return self in (Phase.PROMOTING, Phase.ROLLING_BACK)


class End(StrEnum):
    """What became of a trial."""

    PROMOTED = "Promoted"
    PASSED = "Passed"
    ROLLED_BACK = "RolledBack"
    INCONCLUSIVE = "Inconclusive"
    ABORTED = "Aborted"
    SUPERSEDED = "Superseded"


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How a trial ends, and why: in a word for programs and a sentence for people."""

    end: End
    reason: str
    message: str


class Startup(NamedTuple):
    """How long pods take to start, in seconds."""

    pod_s: float = 0.0
    """From the creation of a pod until it serves."""
    all_s: float = 0.0
    """Until all pods of a resource are replaced."""


NO_STARTUP = Startup()


@dataclass(frozen=True, slots=True)
class Period:
    """One of the two halves of a pair in which pods run one table each.

    `placed_s` is when all of them were seen to; `counted_s` when the washout was over.
    """

    number: int = 0
    placed_s: float | None = None
    counted_s: float | None = None
    first_half_s: float = 0.0
    """Measured time of the pair's first period."""
    began_s: float | None = None
    """When its pods were asked for, where pods restart."""
    startup: Startup = NO_STARTUP
    """The longest of this pair."""

    @property
    def pair(self) -> int:
        """Number of its pair."""
        return self.number // 2


class KnownStratum(NamedTuple):
    """Requests of one stratum that the baseline's pods have answered before a trial."""

    stratum: Stratum
    requests: float
    tokens: float
    steps: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Restarts:
    """How a trial restarts its pods."""

    startup: Startup = NO_STARTUP
    """As measured in the pair before; at first by the pods that serve."""
    image: str = ""
    """Engine image where the spec names none; the live Deployment may run the candidate's."""
    may_interrupt: bool = False
    """Whether a user chose the strategy, so that the only pod may stop before its replacement."""
    is_in_place: bool = False
    """Whether no node had room for a further pod."""
    known: tuple[KnownStratum, ...] = ()
    """The baseline just before the trial: alarms of the first pair compare with it."""
    history: tuple[KnownStratum, ...] = ()
    """The baseline since its pods started, by which a change of content is recognized."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is tried. Of an edit the whole spec is kept; a table alone changes the table."""

    id: str
    arm: ArmKey
    table: Table | None = None
    """None where the configuration brings its own."""
    spec: Mapping[str, Any] | None = None
    overrides: tuple[Override, ...] = ()
    """Fields of the spec that its promotion overrides; none for edits and tables."""


def target_id(arm: ArmKey) -> str:
    """Sixteen digits that stand for a configuration and its table."""
    return digest([arm.config_hash, arm.table_hash])


@dataclass(frozen=True, slots=True)
class HalfPair:
    """What all pods did in each role of a pair so far, washouts left out."""

    baseline: ArmEvidence = field(default_factory=ArmEvidence)
    candidate: ArmEvidence = field(default_factory=ArmEvidence)


NO_HALF = HalfPair()


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that runs. Times are seconds since 1970."""

    target: Target
    kind: Kind
    origin: Origin
    old: ArmKey
    old_table: Table
    started_s: float
    since_s: float
    """When the phase began."""
    progress_s: float = 0.0
    """When the latest phase, pair or window was complete, or a pause ended."""
    phase: Phase = Phase.PREPARING
    name: str = ""
    """Its SpecDecodeTrial."""
    is_published: bool = False
    """Whether the SpecDecodeTrial was observed; it does not begin before."""
    is_report: bool = False
    """Whether it ends as passed where others are promoted."""
    guard: Mapping[str, Any] = field(default_factory=dict)
    """Differences from the deployment's `rollout.guard`, as in the spec."""
    seed: int = 0
    promote_alpha: float = 0.004
    measured_s: float = 0.0
    is_paused: bool = False
    paused_s: float = 0.0
    """Length of the pauses so far; the present one began at `pause_began_s`."""
    pause_began_s: float = 0.0
    has_fresh_baseline: bool = False
    restarts: Restarts | None = None
    """How pods restart between the turns; None where they need not."""
    pods: tuple[str, ...] = ()
    """Uids of the pods that take turns, in the order in which they were taken."""
    period: Period = Period()
    ledgers: Mapping[str, Ledger] = field(default_factory=lambda: MappingProxyType({}))
    """By the uid of the pod."""
    evidence: TurnEvidence | PodEvidence = field(default_factory=TurnEvidence)
    """Complete pairs of turns, or complete windows of arms on separate pods."""
    first_half: HalfPair = field(default_factory=HalfPair)
    """The open pair's first turn, while its second turn runs."""
    open: HalfPair = field(default_factory=HalfPair)
    """The open pair so far, for alarms."""
    window: int = 0
    """Number of the open window of arms on separate pods, which began at `window_s`."""
    window_s: float = 0.0
    judgement: Judgement | None = None
    blocked_by: str = ""
    """Why it does not continue."""
    settled: frozenset[str] = frozenset()
    """Uids of the pods that run the table of the verdict."""
    outcome: TrialOutcome | None = None

    @property
    def kept(self) -> "Trial":
        """The part that outlives the process: it changes at ends of pairs, windows and phases only.

        A process that continues from it repeats the open pair, or loses part of the open window.
        """
        judgement = replace(self.judgement, strata=(), rails=()) if self.judgement else None
        return replace(
            self,
            period=Period(2 * self.period.pair),
            first_half=NO_HALF,
            open=NO_HALF,
            ledgers=MappingProxyType({}),
            settled=frozenset(),
            judgement=judgement if self.phase.is_ending else None,
            blocked_by="",
        )

    def elapsed_s(self, now_s: float) -> float:
        """Time since it began, without pauses."""
        pause_s = now_s - self.pause_began_s if self.is_paused else 0.0
        return now_s - self.started_s - self.paused_s - pause_s
