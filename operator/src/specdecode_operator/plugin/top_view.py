"""Draws the current metrics of engines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specdecode_operator.plugin import rates
from specdecode_operator.plugin.engine_sample import EngineSample
from specdecode_operator.plugin.rates import Pair, RangeRates
from specdecode_operator.plugin.wording import number, share

FAINT, BAD = "dim", "red"


@dataclass(frozen=True, slots=True)
class Engine:
    """A pod with its current and previous sample, or the problem that prevents them."""

    pod: str
    now: EngineSample | None = None
    before: EngineSample | None = None
    problem: str = ""

    @property
    def pair(self) -> Pair | None:
        """Both samples, if the engine did not restart between them."""
        if self.now is None or self.before is None:
            return None
        return (self.before, self.now) if rates.is_same_run(self.before, self.now) else None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of one resource."""

    namespace: str
    name: str
    speculation: str
    engines: tuple[Engine, ...]


def draw_top(fleets: Sequence[Fleet]) -> RenderableType:
    """Tables of engines and ranges of every resource."""
    parts: list[RenderableType] = []
    for fleet in fleets:
        parts += [Text(""), *_fleet(fleet)] if parts else _fleet(fleet)
    return Group(*parts)


def _fleet(fleet: Fleet) -> list[RenderableType]:
    title = Text(f"{fleet.namespace}/{fleet.name}", "bold").append(f"  {fleet.speculation}", FAINT)
    if not fleet.engines:
        return [title, Padding(Text("no pods", FAINT), (0, 0, 0, 2))]
    parts: list[RenderableType] = [title, Padding(_engines(fleet.engines), (0, 0, 0, 2))]
    ranges = rates.range_rates(_pairs(fleet.engines))
    if len(ranges) > 1:
        parts += [Text(""), Padding(_ranges(ranges), (0, 0, 0, 2))]
    return parts


def _engines(engines: Sequence[Engine]) -> Table:
    table = _table("ENGINE", "STEPS", "ACCEPT", "MEAN", "TOK/S", "KEPT", "RUN", "WAIT", "KV")
    table.add_column("CACHE", justify="right", no_wrap=True)
    table.add_column("NOTE", overflow="fold")
    for engine in engines:
        table.add_row(engine.pod, *_figures([engine]), Text(_note(engine), BAD))
    sampled = [engine for engine in engines if engine.now is not None]
    if len(sampled) > 1:
        table.add_row("all", *_figures(sampled), "", style="bold")
    return table


def _figures(engines: Sequence[Engine]) -> list[str]:
    samples = [engine.now for engine in engines if engine.now is not None]
    if not samples:
        return ["–"] * 9
    pairs = _pairs(engines)
    done = rates.engine_rates(pairs) if pairs else None
    return [
        _steps(sorted({sample.num_steps for sample in samples})),
        number(done.accept_length if done else None, 2),
        number(rates.mean_accept_length(samples), 2),
        number(done.tokens_per_s if done else None, 1),
        share(done.kept if done else None),
        str(sum(sample.running_requests for sample in samples)),
        str(sum(sample.waiting_requests for sample in samples)),
        share(max(_kv_use(samples), default=None)),
        share(rates.hit_share(pairs)),
    ]


def _kv_use(samples: Sequence[EngineSample]) -> Iterator[float]:
    """Yield the used share of pages, and of those for sliding windows; requests wait for both."""
    for pages in ("kv_pages", "window_pages"):
        free, used = (
            sum(getattr(s, f"{pages}_{state}") for s in samples) for state in ("free", "used")
        )
        if free + used:
            yield used / (free + used)


def _ranges(ranges: Sequence[RangeRates]) -> Table:
    table = _table("BATCH", "STEPS", "ACCEPT", "TOK/S", "STEPS/S", "KEPT", "DECODING")
    for each in ranges:
        end = "+" if each.end is None else "" if each.end == each.bound else f"–{each.end}"
        table.add_row(
            f"{each.bound}{end}",
            _steps(each.num_steps),
            number(each.rates.accept_length, 2),
            number(each.rates.tokens_per_s, 1),
            number(each.rates.steps_per_s, 1),
            share(each.rates.kept),
            share(each.rates.decoding),
        )
    return table


def _note(engine: Engine) -> str:
    if engine.problem or engine.now is None:
        return engine.problem
    return "" if engine.before is None or engine.pair else "restarted"


def _pairs(engines: Sequence[Engine]) -> list[Pair]:
    return [engine.pair for engine in engines if engine.pair is not None]


def _steps(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]}–{steps[-1]}"


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    table.add_column(first, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table
