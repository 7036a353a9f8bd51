"""Estimates of every number of draft steps for one batch, and which positions each verifies."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_engine.adaptive.acceptance import AcceptanceModel, count_by_position
from specdecode_engine.adaptive.budget import PADDED_ROWS, BatchCost, Positions, Prefix
from specdecode_engine.adaptive.cost import CostModel
from specdecode_engine.adaptive.cost_curve import MIN_GAIN
from specdecode_engine.adaptive.exploration import PROBE_DRAFTS
from specdecode_engine.adaptive.policy import Feedback, Requests
from specdecode_engine.adaptive.request_acceptance import OffsetModel, shifted, survival

HOLD_STEPS = 4  # with the same estimates


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step is decided for.

    `groups` contains the group of each request: its mark and the most positions that it can use, as
    one number. Requests of a group are verified alike.
    """

    size: int
    kv_tokens: int
    groups: list[int]


@dataclass(slots=True)
class Estimates:
    """Estimates of candidates for one batch."""

    candidates: tuple[int, ...]
    prefixes: list[Prefix]  # of positions that are worth verifying, by candidate
    batch_size: int
    steps: int = 0  # results since they were made, and those of requests
    results: int = 0
    is_expired: bool = False  # acceptance has changed since

    @property
    def best(self) -> int:
        rates = [prefix.rate for prefix in self.prefixes]
        return self.candidates[rates.index(max(rates))]

    @property
    def best_rate(self) -> float:
        """Expected tokens per second of the batch with the best candidate."""
        return max([prefix.rate for prefix in self.prefixes])

    @property
    def saved_share(self) -> float:
        """Share of the time that the best candidate saves to 0 draft steps; 0 without these."""
        return 0.0 if self.candidates[0] else 1.0 - self.prefixes[0].rate / self.best_rate

    def age(self, results: int, *, is_expired: bool) -> None:
        """Note a result of a step of so many requests, and whether they hold no more."""
        self.steps += 1
        self.results += results
        self.is_expired |= is_expired

    def holds_for(self, batch: Batch, candidates: tuple[int, ...]) -> bool:
        """Whether less than a few steps, or results than a probe brings, came since.

        The requests of the batch may differ from those before.
        """
        has_few = self.steps < HOLD_STEPS or self.results < PROBE_DRAFTS
        is_like = self.batch_size == batch.size and self.candidates == candidates
        return has_few and is_like and not self.is_expired

    def of(self, num_steps: int) -> Prefix:
        return self.prefixes[self.candidates.index(num_steps)]

    def loss(self, prefix: Prefix) -> float:
        """Seconds that a step with a candidate loses to the best one."""
        return prefix.seconds * (1.0 - prefix.rate / self.best_rate)


class Estimator:
    """Learns acceptance and costs, and estimates from them.

    Args:
        topk: nodes of a draft per draft step.
        is_padded: whether a step computes the rows of whole drafts, whatever it verifies of them.
    """

    def __init__(self, cost: CostModel, topk: int, *, is_padded: bool = False) -> None:
        self.cost = cost
        self.acceptance = AcceptanceModel(positions=1)
        self.offsets = OffsetModel()
        self.is_padded = is_padded
        self._topk = topk
        self._most_steps = 1
        self._rates: Sequence[float] = ()
        self._survival: dict[int, Sequence[float]] = {}  # by group, at `_rates`

    def resize(self, most_steps: int) -> None:
        """Prepare for as many draft steps."""
        self._most_steps = most_steps
        self.acceptance.resize(most_steps)
        self._survival.clear()

    def forget_draft(self) -> None:
        self.acceptance = AcceptanceModel(self._most_steps)
        self.offsets = OffsetModel()

    def batch(self, size: int, kv_tokens: int, requests: Requests = ()) -> Batch:
        """Group the requests of a batch; without requests, as those without evidence."""
        most, stride = self._most_steps, self._most_steps + 1
        if not requests:
            return Batch(size, kv_tokens, [most] * size)
        groups = [one.mark * stride + (one.most if one.most < most else most) for one in requests]
        return Batch(size, kv_tokens, groups)

    def most_of(self, group: int) -> int:
        return group % (self._most_steps + 1)

    def learn(self, feedback: Feedback, *, is_probe: bool) -> bool:
        """Learn the acceptance of a step; return whether it has changed."""
        steps, accepted = feedback.decision.num_steps, feedback.accepted
        if not accepted:
            return False
        expected = rates = self.acceptance.now.rates()
        if feedback.requests:
            verified = feedback.verified or (steps,) * len(accepted)
            offset = self.offsets.learn(feedback.requests, accepted, verified, rates)
            expected = shifted(rates, offset) if offset else rates
        counts = count_by_position(accepted, steps, feedback.verified)
        return self.acceptance.learn(counts, is_probe, expected)

    def estimate(self, batch: Batch, candidates: tuple[int, ...]) -> Estimates:
        """Estimate candidates, each with the best positions to verify."""
        groups, (fixed, per_row) = Counter(batch.groups), self.cost.kv_slopes
        row_s = per_row * batch.kv_tokens / batch.size
        cost = BatchCost(fixed * batch.kv_tokens, row_s, self.cost.verify_pieces())
        self._refresh_survival()
        chances = {group: self.survival_of(group) for group in groups}
        due = {group for group in groups if candidates[0] or self._is_due(group)}
        positions = Positions(groups, chances, due, self._topk)
        prefixes = [self._best_prefix(positions, steps, cost) for steps in candidates]
        return Estimates(candidates, prefixes, batch.size)

    def rows(self, batch_size: int, num_steps: int, positions: int) -> int:
        """Count the rows that the target computes to verify so many positions."""
        return batch_size + self._topk * (batch_size * num_steps if self.is_padded else positions)

    def verified(self, groups: list[int], num_steps: int, least: float) -> list[int]:
        """Count the positions of each request that survive with this probability, or are due."""
        counts = dict.fromkeys(groups, 0)
        for group in counts:
            chances = self.survival_of(group)[:num_steps]
            survivors = sum([chance >= least for chance in chances])
            counts[group] = survivors or min(self._is_due(group), len(chances))
        return [counts[group] for group in groups]

    def survival_of(self, group: int) -> Sequence[float]:
        found = self._survival.get(group)
        if found is None:
            mark, most = divmod(group, self._most_steps + 1)
            found = self._survival[group] = survival(self._rates, mark // 2)[:most]
        return found

    def _best_prefix(self, positions: Positions, num_steps: int, cost: BatchCost) -> Prefix:
        drafting_s = self.cost.drafting(positions.requests, num_steps)
        if not self.is_padded:
            return positions.best_prefix(num_steps, drafting_s, cost)
        rows = self.rows(positions.requests, num_steps, 0)
        fixed_s = cost.fixed_s + cost.row_s * rows + self.cost.verify(rows)
        padded = BatchCost(fixed_s, 0.0, PADDED_ROWS)
        prefix = positions.best_prefix(num_steps, drafting_s, padded)
        # What is computed is verified.
        return prefix._replace(least=0.0) if prefix.deepest else prefix

    def _is_due(self, group: int) -> int:
        """Return 1 if the first position of a group is to be tried, else 0."""
        return group // (self._most_steps + 1) % 2

    def _refresh_survival(self) -> None:
        """Compute survival again if rates have moved."""
        rates, used = self.acceptance.now.rates(), self._rates
        moves = [abs(rate - other) for rate, other in zip(rates, used, strict=False)]
        if len(used) != len(rates) or max(moves) > MIN_GAIN:
            self._rates = rates
            self._survival.clear()
