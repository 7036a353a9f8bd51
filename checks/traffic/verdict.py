"""The result of an event, and what of it counts as an error."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from checks.traffic.routers import NO_COUNTS, RouterCounts
from checks.traffic.tally import Tally
from checks.traffic.witness import Findings

PATIENCE_S = 5.0
"""How long a status may lag behind what it describes, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One event, over."""

    name: str
    seconds: float
    """From its beginning until the resource had come to rest."""
    tally: Tally
    findings: Findings
    routers: RouterCounts = NO_COUNTS

    @property
    def longest_untrue_s(self) -> float:
        """How long the status was wrong, at the longest."""
        return max(self.findings.untrue.values(), default=0.0)

    @property
    def longest_stray_s(self) -> float:
        """How long a child was missing, twice there, or without its owner, at the longest."""
        return max(self.findings.strays.values(), default=0.0)

    def faults(self) -> list[str]:
        """Sentences about what must not be."""
        tally, found = self.tally, self.findings
        listed = [f"a request failed: {reason}" for reason in tally.failures]
        if tally.failed > len(tally.failures):
            listed.append(f"{tally.failed} requests failed in all")
        if tally.wrong_text:
            listed.append(f"{tally.wrong_text} answers are not those of plain decoding")
        if not tally.answered:
            listed.append("no request was answered")
        if not found.fewest_ready and not found.may_be_without:
            listed.append("at some time no engine was ready")
        if self.routers.unresumable:
            listed.append(f"{self.routers.unresumable} streams could not be continued")
        for texts in (found.untrue, found.strays):
            listed += [f"{text}, for {s:.1f} s" for text, s in texts.items() if s > PATIENCE_S]
        return listed

    def record(self) -> dict[str, object]:
        """Counts of the event, for JSON."""
        left_out = ("failures", "forms")
        counts = {key: value for key, value in asdict(self.tally).items() if key not in left_out}
        return {
            "sent": self.tally.sent,
            **counts,
            "forms": {
                f"{form}, {'streamed' if is_stream else 'whole'}": answers
                for (form, is_stream), answers in sorted(self.tally.forms.items())
            },
            "longest_s": round(self.tally.longest_s, 2),
            "converged_s": round(self.seconds, 1),
            "looks": self.findings.looks,
            "fewest_ready": self.findings.fewest_ready,
            "untrue_s": round(self.longest_untrue_s, 1),
            "stray_s": round(self.longest_stray_s, 1),
            "reasons": self.findings.reasons,
            **asdict(self.routers),
        }


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The whole run, for JSON."""
    faults: Mapping[str, list[str]] = {each.name: each.faults() for each in outcomes}
    fields = {
        "sent": "sent", "answered": "answered", "streamed": "streamed", "failed": "failed",
        "wrong": "wrong_text", "kills": "kills", "kills_with_streams": "kills_with_streams",
        "cut_by_router_kill": "cut_by_kill",
    }  # fmt: skip
    sums = {
        name: sum(getattr(each.tally, field) for each in outcomes) for name, field in fields.items()
    }
    counted = {
        name: sum(getattr(each.routers, name) for each in outcomes)
        for name in ("resumed", "held", "unresumable")
    }
    return {
        "passed": not any(faults.values()),
        **sums,
        **counted,
        "faults": {name: listed for name, listed in faults.items() if listed},
        "events": {each.name: each.record() for each in outcomes},
    }


def line(outcome: Outcome) -> str:
    """One line of the table."""
    tally = outcome.tally
    return (
        f"{outcome.name:<22} {tally.answered:>5}/{tally.sent:<5} {tally.failed:>6} "
        f"{tally.wrong_text:>5} {tally.cut_by_kill:>4} {tally.kills:>5} "
        f"{outcome.routers.resumed:>7} {outcome.seconds:>7.1f} "
        f"{outcome.longest_untrue_s:>7.1f} {outcome.longest_stray_s:>6.1f}"
    )


HEAD = (
    f"{'event':<22} {'answered/sent':>11} {'failed':>6} {'wrong':>5} {'cut':>4} {'kills':>5} "
    f"{'resumed':>7} "
    f"{'rest s':>7} {'untrue':>7} {'stray':>6}"
)
