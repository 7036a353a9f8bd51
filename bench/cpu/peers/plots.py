"""Bars of rates, curves of latency over throughput."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

Rates = Mapping[str, Mapping[str, float]]
_COLOURS = {
    "own": "#2a6fbb",
    "transformers": "#d99a1c",
    "openvino": "#6b4fa0",
    "llama.cpp": "#b2453c",
}


def draw_rates(by_dtype: Mapping[str, Rates], path: Path) -> None:
    """Draw a bar per entry, one picture per number type side by side."""
    figure = Figure(figsize=(7 * len(by_dtype), 6), layout="constrained")
    axes = figure.subplots(1, len(by_dtype), squeeze=False)[0]
    for axis, (dtype, rates) in zip(axes, by_dtype.items(), strict=True):
        names = list(rates)[::-1]
        values = [rates[name]["tokens_per_cpu_s"] for name in names]
        colours = [_COLOURS.get(name.split()[0], "grey") for name in names]
        bars = axis.barh(names, values, color=colours)
        axis.bar_label(bars, fmt="%.0f", padding=2, fontsize="small")
        axis.set_title(f"{dtype}, one thread")
        axis.set_xlabel("tokens per second of processor time")
    figure.savefig(path, dpi=80)


def draw_curves(curves: Mapping[str, Sequence[tuple[float, float, float]]], path: Path) -> None:
    """Draw latency over throughput, and both over the requests at a time.

    Args:
        curves: by server: (requests at a time, tokens per second, median latency in ms).
    """
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    rate, latency, both = figure.subplots(1, 3)
    for name, points in curves.items():
        sizes, rates, latencies = zip(*points, strict=True)
        colour = _COLOURS.get(name.split()[0], "grey")
        style = {"marker": "o", "label": name, "color": colour}
        rate.plot(sizes, rates, **style)
        latency.plot(sizes, latencies, **style)
        both.plot(rates, latencies, **style)
    rate.set(xlabel="requests at a time", ylabel="tokens per second")
    latency.set(xlabel="requests at a time", ylabel="median latency of a request, ms")
    both.set(xlabel="tokens per second", ylabel="median latency of a request, ms")
    for axis in (rate, latency, both):
        axis.grid(alpha=0.3)
    if curves:
        rate.legend(fontsize="small")
    figure.savefig(path, dpi=80)
