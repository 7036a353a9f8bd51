"""Depth and goodput over time, one picture per scenario, for docs/controller.md."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from bench.simulation.policy.policies import GOODPUT, all_policies
from bench.simulation.policy.profiles import all_profiles
from bench.simulation.policy.scenarios import all_scenarios
from bench.simulation.policy.world import Tally, World

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "controller"
SHOWN = (
    ("h100_dense_8b", "ladder and flips", "ladder-and-flips"),
    ("cpu_82m", "flips 300 b4", "flips"),
    ("moe", "acceptance returns b8", "hope-returns"),
)
OTHERS = ("clairvoyant", "ema zero-step")
WINDOW = 20  # steps over which a point of the goodput is averaged


def write_plots(seed: int) -> None:
    """Write them all."""
    matplotlib.use("Agg")
    profiles = {profile.name: profile for profile in all_profiles()}
    scenarios = {scenario.name: scenario for scenario in all_scenarios(1400)}
    for profile, scenario, file in SHOWN:
        tallies = {}
        for name in (GOODPUT, *OTHERS):
            world = World(profiles[profile], scenarios[scenario], seed)
            tallies[name] = world.run(all_policies()[name](profiles[profile], seed))
        _draw(f"{scenario}, {profile}", tallies, FOLDER / f"{file}.png")


def _draw(title: str, tallies: dict[str, Tally], path: Path) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name, tally in tallies.items():
        ends, rates = _goodput(tally)
        above.step(_times(tally), [t.num_steps for t in tally.traces], where="post", lw=0.8)
        below.plot(ends, rates, lw=0.9, label=f"{name}: regret {100 * tally.regret:.1f} %")
    above.set_title(title)
    above.set_ylabel("depth")
    below.set_ylabel("tokens/s")
    below.set_xlabel("seconds")
    below.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def _times(tally: Tally) -> list[float]:
    times, now = [], 0.0
    for trace in tally.traces:
        times.append(now)
        now += trace.seconds
    return times


def _goodput(tally: Tally) -> tuple[list[float], list[float]]:
    times = _times(tally)
    ends, rates = [], []
    for first in range(0, len(tally.traces) - WINDOW, WINDOW):
        part = tally.traces[first : first + WINDOW]
        rates.append(sum(t.tokens for t in part) / sum(t.seconds for t in part))
        ends.append(times[first + WINDOW])
    return ends, rates
