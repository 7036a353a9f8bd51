"""Everybody answers the same requests, one after the other within each repeat."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from bench.cpu.peers.loads import Load
from bench.cpu.peers.worker import Answer, PeerFailed, Worker

OWN, TRANSFORMERS, OPENVINO = "own", "transformers", "openvino"


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant's way with one load."""

    contestant: str
    way: str
    load: str
    depth: int = 0

    @property
    def name(self) -> str:
        """How it is called in results."""
        depth = f" depth {self.depth}" if self.depth else ""
        return f"{self.contestant} {self.way} {self.load}{depth}"


@dataclass(slots=True)
class Samples:
    """Answers by entry, repeat by repeat, and why an entry has none."""

    answers: dict[Entry, dict[int, Answer]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # by contestant, or by an entry's name

    def of(self, entry: Entry) -> dict[int, Answer]:
        """Answers by repeat; none where it did not run."""
        return self.answers.get(entry, {})

    def entries(self, contestant: str, way: str, load: str) -> tuple[Entry, ...]:
        """Those of a way at all depths."""
        wanted = (contestant, way, load)
        return tuple(one for one in self.answers if (one.contestant, one.way, one.load) == wanted)


def run_contest(
    workers: Mapping[str, Worker],
    entries: Sequence[Entry],
    draw: Callable[[int], Mapping[str, Load]],
    repeats: Mapping[str, int],
    beside: Callable[[], None],
) -> Samples:
    """Run every entry in every repeat; a short run of each before them warms up.

    `beside` runs once within every repeat and measures what belongs to the same minute.

    Args:
        workers: by contestant; entries of those that are not there are left out.
        draw: loads by name, from a seed.
        repeats: how often each load runs.
    """
    samples = Samples()
    present = [entry for entry in entries if entry.contestant in workers]
    for entry in tqdm(present, desc="warming up"):
        _sample(samples, workers, entry, _shortened(draw(-1)[entry.load]), None)
    for repeat in range(max(repeats.values())):
        loads = draw(repeat)
        due = [one for one in present if repeat < repeats[one.load]]
        beside()
        for entry in tqdm(due, desc=f"repeat {repeat + 1}"):
            _sample(samples, workers, entry, loads[entry.load], repeat)
    return samples


def _sample(
    samples: Samples,
    workers: Mapping[str, Worker],
    entry: Entry,
    load: Load,
    repeat: int | None,
) -> None:
    """Ask once; what failed once is not asked again."""
    if entry.name in samples.reasons:
        return
    try:
        answer = workers[entry.contestant].ask(entry.way, load.prompts, load.tokens, entry.depth)
    except PeerFailed as failure:
        samples.reasons[entry.name] = str(failure)
        return
    if answer.token_count != load.token_count:
        samples.reasons[entry.name] = (
            f"{answer.token_count} tokens instead of {load.token_count}; not comparable"
        )
    elif repeat is not None:
        samples.answers.setdefault(entry, {})[repeat] = answer


def _shortened(load: Load) -> Load:
    few = load.prompts[:8]
    return Load(few, (4,) * len(few))


def mismatches(samples: Samples, base: Entry) -> Iterator[str]:
    """Name the entries whose tokens differ from the base's on the same load, and where first."""
    truth = samples.of(base)
    for entry, answers in samples.answers.items():
        if entry.load != base.load or entry == base:
            continue
        for repeat, answer in answers.items():
            if repeat in truth and answer.tokens != truth[repeat].tokens:
                where = _first_difference(answer.tokens, truth[repeat].tokens)
                yield f"{entry.name}, repeat {repeat + 1}: {where}"


def _first_difference(some: list[list[int]], others: list[list[int]]) -> str:
    for number, (one, other) in enumerate(zip(some, others, strict=True)):
        for place, (token, wanted) in enumerate(zip(one, other, strict=True)):
            if token != wanted:
                return f"request {number}, token {place}: {token} instead of {wanted}"
    return "no difference"
