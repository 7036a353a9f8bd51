"""From samples to figures: ratios within a repeat, then their median; rates and least times."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from bench.cpu.peers.contest import OPENVINO, OWN, TRANSFORMERS, Entry, Samples
from bench.cpu.peers.floors import Floors
from bench.cpu.peers.worker import Answer

Figure = float | None


@dataclass(frozen=True, slots=True)
class Model:
    """What a decoded token has to read at least."""

    streamed_bytes: int


def contest_figures(
    samples: Samples, widths: Sequence[Mapping[str, float]], floors: Sequence[Floors], model: Model
) -> dict[str, Figure]:
    """Work out the figures of one number type; null where either side did not run."""
    plain = Entry(OWN, "plain", "single")
    batch = Entry(OWN, "batch", "batch")
    mixed = Entry(OWN, "mixed", "mixed")
    speculative = best_num_steps(samples, OWN)
    assisted, drafted = (best_num_steps(samples, peer) for peer in (TRANSFORMERS, OPENVINO))
    return {
        "plain_b1_vs_transformers": ratio(samples, plain, _of(plain, TRANSFORMERS)),
        "plain_b1_vs_openvino": ratio(samples, plain, _of(plain, OPENVINO)),
        "plain_b1_of_limit": share_of_limit(samples, plain, floors, model),
        "verify8_over_1": verify_ratio(widths),
        "spec_b1_vs_plain": ratio(samples, speculative, plain),
        "spec_b1_vs_transformers_assisted": ratio(samples, speculative, assisted),
        "spec_b1_vs_openvino": ratio(samples, speculative, drafted),
        "b8_vs_transformers": ratio(samples, batch, _of(batch, TRANSFORMERS)),
        "b8_vs_openvino": ratio(samples, batch, _of(batch, OPENVINO)),
        "mixed64_vs_generate_batch": ratio(samples, mixed, _of(mixed, TRANSFORMERS)),
        "mixed64_vs_openvino": ratio(samples, mixed, _of(mixed, OPENVINO)),
        "mixed64_of_static": ratio(
            samples, Entry(OWN, "few", "mixed"), Entry(OWN, "in_groups", "even")
        ),
    }


def ratio(samples: Samples, own: Entry | None, other: Entry | None) -> Figure:
    """Median of the ratios of both rates within each repeat."""
    both = ratios(samples, own, other)
    return round(statistics.median(both), 3) if both else None


def ratios(
    samples: Samples,
    own: Entry | None,
    other: Entry | None,
    rate: Callable[[Answer], float] = attrgetter("rate"),
) -> list[float]:
    """Return the ratios of both rates within each repeat; none where a side did not run."""
    if own is None or other is None:
        return []
    ours, theirs = samples.of(own), samples.of(other)
    return [rate(ours[n]) / rate(theirs[n]) for n in ours if n in theirs]


def best_num_steps(samples: Samples, contestant: str) -> Entry | None:
    """Return the depth with the greatest median rate on the single request."""
    entries = samples.entries(contestant, "speculative", "single")
    return max(entries, key=lambda entry: median_rate(samples, entry), default=None)


def median_rate(samples: Samples, entry: Entry) -> float:
    """Tokens per second of processor time."""
    return statistics.median(answer.rate for answer in samples.of(entry).values())


def share_of_limit(
    samples: Samples, entry: Entry, floors: Sequence[Floors], model: Model
) -> Figure:
    """How near decoding, the prompt left out, is to reading the weights once per token."""
    shares = []
    for repeat, answer in samples.of(entry).items():
        limit = floors[repeat].read_gb_s * 1e9 / model.streamed_bytes
        shares.append(answer.decode_rate / limit)
    return round(statistics.median(shares), 3) if shares else None


def verify_ratio(widths: Sequence[Mapping[str, float]]) -> Figure:
    """Time of a pass over eight rows to one over one row."""
    both = [one["eight_rows_ms"] / one["one_row_ms"] for one in widths]
    return round(statistics.median(both), 3) if both else None


def rate_rows(samples: Samples) -> dict[str, dict[str, float]]:
    """Return by entry the median rate, and the least processor time per token in ms."""
    return {
        entry.name: {
            "tokens_per_cpu_s": round(median_rate(samples, entry), 1),
            "least_cpu_ms_per_token": round(1e3 / max(a.rate for a in answers.values()), 3),
        }
        for entry, answers in samples.answers.items()
    }


def _of(entry: Entry, contestant: str) -> Entry:
    return Entry(contestant, entry.way, entry.load, entry.depth)
