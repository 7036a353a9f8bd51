"""Decides what to recommend, or says why not yet."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry, candidates
from specdecode_operator.recommend.gain import Outlook, gain, interval, outlook
from specdecode_operator.recommend.pool import Pool, ValidityKey
from specdecode_operator.recommend.table import Bounds, Current, entries_of

LEAST_ROUNDS = 500.0
"""Decode rounds of a band before anything is said about it."""


@dataclass(frozen=True, slots=True)
class BandAdvice:
    """One band of batch sizes, for people to look at."""

    band: int
    rounds: float
    share_of_time: float
    rates: Mapping[int, float]  # tokens per second and request, by depth
    best: int | None  # None where what it does now should stay


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A table that should be faster, as long as `key` holds.

    `gain` is the share of tokens per second more, expected over the batch sizes that were seen,
    and `gain_low` to `gain_high` hold it at 90 %. `num_steps` is the depth at start to write beside
    the entries.
    """

    key: ValidityKey
    policy: Policy
    entries: Mapping[str, TableEntry]
    table_hash: str
    num_steps: int
    gain: float
    gain_low: float
    gain_high: float
    rounds: float
    pods: int
    bands: tuple[BandAdvice, ...]

    def holds_for(self, key: ValidityKey) -> bool:
        """Whether engines of `key` may be expected to do as those that were measured."""
        return self.key == key


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing to recommend: `reason` is one word, for a condition, `message` what is missing."""

    reason: str
    message: str
    bands: tuple[BandAdvice, ...] = ()


def recommend(pool: Pool | None, current: Current, bounds: Bounds) -> Recommendation | NotYet:
    """Look for the depths with the most tokens per second in each band.

    What a band does now stays where another depth is not better by `bounds.least_gain`, where too
    few rounds were seen, and where what another depth costs is not known.
    """
    if pool is None or not pool.rounds:
        return NotYet("NoRounds", "no engine has decoded anything yet; wait for traffic")
    depths = sorted(bounds.depths)
    view = outlook(pool.pods, depths)
    rounds = _rounds(pool)
    enough = [band for band in view.seconds if rounds[band] >= LEAST_ROUNDS]
    if not enough:
        return NotYet(
            "TooFewRounds",
            f"at most {max(rounds.values()):.0f} rounds were run at similar batch sizes; "
            f"{LEAST_ROUNDS:.0f} are needed",
            _bands(view, rounds, {}),
        )
    best = {band: top for band in enough if (top := _best(view, band, bounds)) is not None}
    bands = _bands(view, rounds, best)
    if all(len(view.rates[band]) < 2 for band in enough):
        return NotYet(
            "CostsUnknown",
            f"only depth {_shown(view, enough)} was run at these batch sizes, so that what others "
            "cost is not known; let policy goodput measure, or try another depth",
            bands,
        )
    entries = entries_of(current, view.rates, best, bounds)
    name = table_hash(current.policy, entries)
    if not best or name == table_hash(current.policy, current.entries):
        return NotYet(
            "NoGain",
            f"no depth is better than what runs now by {bounds.least_gain:.0%} or more",
            bands,
        )
    low, high = interval(pool, depths, best)
    return Recommendation(
        key=pool.key,
        policy=current.policy,
        entries=entries,
        table_hash=name,
        num_steps=_start(current, view, best, candidates(entries)),
        gain=gain(view, best),
        gain_low=low,
        gain_high=high,
        rounds=pool.rounds,
        pods=len(pool.pods),
        bands=bands,
    )


def _rounds(pool: Pool) -> dict[int, float]:
    rounds: dict[int, float] = {}
    for (band, _), cell in pool.depths.items():
        rounds[band] = rounds.get(band, 0.0) + cell.rounds
    return rounds


def _best(view: Outlook, band: int, bounds: Bounds) -> int | None:
    """The depth to change to, compared with what the band did on average."""
    rates = view.rates[band]
    if not rates:
        return None
    top = max(rates, key=lambda steps: rates[steps])
    now = view.tokens[band] / view.batch_size[band] / view.seconds[band]
    return top if rates[top] >= now * (1.0 + bounds.least_gain) else None


def _bands(
    view: Outlook, rounds: Mapping[int, float], best: Mapping[int, int]
) -> tuple[BandAdvice, ...]:
    seconds = sum(view.seconds.values())
    return tuple(
        BandAdvice(
            band, rounds[band], view.seconds[band] / seconds, view.rates[band], best.get(band)
        )
        for band in sorted(view.seconds)
    )


def _shown(view: Outlook, bands: list[int]) -> str:
    return ", ".join(map(str, sorted({steps for band in bands for steps in view.rates[band]})))


def _start(
    current: Current, view: Outlook, best: Mapping[int, int], allowed: tuple[int, ...]
) -> int:
    """The depth at start: of the band that takes most time, else today's, or what is nearest."""
    busiest = max(view.seconds, key=lambda band: view.seconds[band])
    wanted = best.get(busiest, current.num_steps)
    return min(allowed, key=lambda steps: (abs(steps - wanted), steps))
