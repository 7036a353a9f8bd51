"""Window pages against a naive model of the device: every row that is seen holds its own tokens."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.pages import WindowLimits, WindowPages
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler

DRAFTED = 3  # per step and sequence
Row = tuple[int, int]  # page and offset
Text = tuple[int, ...]


def make_scheduler(
    *,
    pages: int,
    page_size: int,
    window: int | None,
    spare: int = 0,
    running: int = 3,
    chunk: int = 16,
    lookahead: int = 0,
    lag: int = 0,
) -> Scheduler:
    """A scheduler with window pages for one request, and `spare` more."""
    fewest = 0
    if window is not None:
        fewest = WindowLimits(window, page_size, 1 + DRAFTED + lag, chunk).suffice_for(1)
    limits = Limits(
        max_running=running,
        max_queued=100,
        chunk_tokens=chunk,
        context_length=96,
        max_draft_tokens=1 + DRAFTED,
        page_size=page_size,
        pages=pages,
        lag_tokens=lag,
        window=window,
        window_pages=min(fewest + spare, pages),
    )
    return Scheduler(limits, Drafting(StaticPolicy(3)), PrefixCache(page_size, lookahead))


def add(scheduler: Scheduler, prompt: list[int], answer: int) -> Sequence:
    sampling = SamplingParams(seed=0, max_tokens=answer)
    return scheduler.add(Request(str(id(prompt)), tuple(prompt), sampling))


def assert_counted(scheduler: Scheduler) -> None:
    """Every window page has one state; all that running requests can use is reserved or used."""
    windows = scheduler.windows
    if windows is None:
        return
    free, reserved, used = windows.counts
    assert min(free, reserved, used) >= 0
    assert free + reserved + used == windows.total
    users = [page for page, count in enumerate(windows._users) if count]
    assert used == len(users)
    if scheduler.running:
        return
    if windows.total == scheduler.pages.total:
        assert (reserved, used) == (0, 0), "there is one for every page"
        return
    limits = scheduler.limits
    assert (reserved, used) == (-(-limits.chunk_tokens // limits.page_size), 0)


@dataclass
class NaiveDevice:
    """Rows of the pool and of the window pool, each with the text up to the token it belongs to.

    Steps run when they are launched. With overlap the host learns the tokens of a step after it has
    planned the next one.
    """

    scheduler: Scheduler
    rng: random.Random
    lag: int = 0  # rows that the draft lacks
    pages: dict[int, list[int]] = field(default_factory=dict)  # by id of a sequence
    window_page: dict[int, int] = field(default_factory=dict)
    pool: dict[Row, Text] = field(default_factory=dict)
    window_pool: dict[Row, Text] = field(default_factory=dict)
    unseen: dict[int, list[int]] = field(default_factory=dict)  # by id: tokens not collected yet
    pending: list[tuple[Sequence, list[int], int]] = field(default_factory=list)

    def step(self) -> None:
        if self.pending and self.scheduler.must_preempt():
            self.collect()
        before, plan = self.pending, self.scheduler.plan()
        written = [*[chunk.sequence for chunk in plan.chunks], *plan.grown]
        self.pages |= {id(sequence): list(sequence.pages) for sequence in written}
        assert all(self.pages[id(sequence)] == sequence.pages for sequence in plan.decoding)
        if self.scheduler.windows is not None:
            self.window_page |= self.scheduler.windows.take_changes()
        self.pending = []
        for chunk in plan.chunks:
            sequence = chunk.sequence
            for position in range(chunk.start, chunk.end):
                self.compute(sequence, sequence.tokens, position)
            sequence.computed = chunk.end
            sequence.reusable = max(sequence.reusable, chunk.end - max(self.lag, self.lookahead))
            if chunk.is_last:
                self.launch(sequence, 1, width=1)
        for sequence in plan.decoding:
            self.decode(sequence)
        if not self.scheduler.limits.lag_tokens:
            before, self.pending = self.pending, []
        self.commit(before)
        self.scheduler.check()
        assert_counted(self.scheduler)

    @property
    def lookahead(self) -> int:
        return self.scheduler.cache.lookahead

    def decode(self, sequence: Sequence) -> None:
        """Compute the bonus token's row and those of drafts, of which some are accepted."""
        tokens = sequence.tokens + self.unseen.get(id(sequence), [])
        accepted = self.rng.randint(0, DRAFTED)
        own = [*tokens, *self.launch(sequence, accepted + 1, width=1 + DRAFTED)]
        drafted = own[: len(tokens) + accepted] + [9] * (DRAFTED - accepted)  # never sampled
        for position in range(len(tokens) - 1, len(tokens) + DRAFTED):
            self.compute(sequence, drafted, position)

    def launch(self, sequence: Sequence, count: int, width: int) -> list[int]:
        tokens = [self.rng.randrange(2) for _ in range(count)]
        self.unseen.setdefault(id(sequence), []).extend(tokens)
        sequence.in_flight_tokens += width
        sequence.in_flight_steps += 1
        self.pending.append((sequence, tokens, width))
        return tokens

    def compute(self, sequence: Sequence, tokens: list[int], position: int) -> None:
        """Write one row of both pools and check every row that it sees."""
        limits, text = self.scheduler.limits, tuple(tokens)
        for seen in range(position + 1):
            page, offset = sequence.pages[seen // limits.page_size], seen % limits.page_size
            if seen == position:
                self.pool[page, offset] = text[: seen + 1]
            assert self.pool[page, offset] == text[: seen + 1]
            if limits.window is not None and seen > position - limits.window:
                window_page = self.window_page.get(page, 0)
                assert window_page, "a row of a window is in no window page"
                if seen == position:
                    self.window_pool[window_page, offset] = text[: seen + 1]
                assert self.window_pool[window_page, offset] == text[: seen + 1]

    def collect(self) -> None:
        before, self.pending = self.pending, []
        self.commit(before)

    def commit(self, results: list[tuple[Sequence, list[int], int]]) -> None:
        for sequence, tokens, width in results:
            sequence.in_flight_tokens -= width
            sequence.in_flight_steps -= 1
            del self.unseen[id(sequence)][: len(tokens)]
            if sequence.finish_reason is not None:
                continue
            sequence.tokens += tokens[: sequence.total_limit - len(sequence.tokens)]
            sequence.computed = len(sequence.tokens) - 1
            sequence.reusable = max(sequence.reusable, sequence.computed - self.lag)
            if len(sequence.tokens) == sequence.total_limit:
                self.scheduler.finish(sequence, FinishReason.LENGTH)

    def run(self) -> None:
        for _ in range(3000):
            if not self.scheduler.running and not self.scheduler.waiting:
                break
            self.step()
        self.collect()
        assert not self.scheduler.running
        self.scheduler.check()


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 2, 4, 8]),
    rows=st.integers(40, 200),
    window=st.sampled_from([None, 1, 2, 5, 8, 17]),
    spare=st.integers(0, 30),
    running=st.integers(1, 4),
    chunk=st.integers(1, 40),
    lookahead=st.sampled_from([0, 1]),
    overlap=st.booleans(),
)
def test_every_row_that_is_seen_holds_its_own_tokens(
    seed: int,
    page_size: int,
    rows: int,
    window: int | None,
    spare: int,
    running: int,
    chunk: int,
    lookahead: int,
    overlap: bool,
) -> None:
    """Hits, frees, preemption, aborts and little memory, without windows and with them."""
    rng = random.Random(seed)
    scheduler = make_scheduler(
        pages=1 + rows // page_size, page_size=page_size, window=window, spare=spare,
        running=running, chunk=chunk, lookahead=lookahead, lag=(1 + DRAFTED) * overlap,
    )  # fmt: skip
    device = NaiveDevice(scheduler, rng)
    stems = [[rng.randrange(2) for _ in range(rng.randrange(1, 22))] for _ in range(3)]
    alive: list[Sequence] = []
    for _ in range(30):
        if rng.random() < 0.5:
            prompt = rng.choice(stems) + [rng.randrange(2) for _ in range(rng.randrange(3))]
            if len(prompt) + 12 <= scheduler.limits.longest_sequence:
                alive.append(add(scheduler, prompt, rng.randrange(1, 12)))
        alive = [sequence for sequence in alive if sequence.finish_reason is None]
        if alive and rng.random() < 0.15:
            scheduler.finish(alive.pop(rng.randrange(len(alive))), FinishReason.ABORT)
        if scheduler.running and rng.random() < 0.15:
            device.collect()
            if scheduler.running:
                scheduler.preempt(rng.choice(scheduler.running))
        device.lag = rng.choice([lookahead, lookahead, 3, 9])
        device.step()
    device.run()
    assert scheduler.available_pages == scheduler.pages.total


def test_window_pages_in_use_do_not_grow_with_the_text() -> None:
    scheduler = make_scheduler(pages=60, page_size=2, window=6, running=1)
    device = NaiveDevice(scheduler, random.Random(1))
    add(scheduler, [1, 0] * 30, 30)
    assert scheduler.windows is not None
    device.step()
    while scheduler.running:
        device.step()
        used = [page for page, count in enumerate(scheduler.windows._users) if count]
        assert len(used) < 14
    assert scheduler.windows.total < 30


def test_a_request_waits_until_its_window_pages_are_free() -> None:
    """There is room for one request with a whole window, or for two short ones."""
    scheduler = make_scheduler(pages=60, page_size=2, window=6, running=3)
    device = NaiveDevice(scheduler, random.Random(1))
    for _ in range(2):
        add(scheduler, [1, 0] * 12, 6)
    device.step()
    assert (len(scheduler.running), len(scheduler.waiting)) == (1, 1)
    assert scheduler.windows is not None
    assert scheduler.windows.counts.free < scheduler.windows.counts.reserved, "hence it waits"
    assert scheduler.available_pages > 30
    device.run()
    for _ in range(2):
        add(scheduler, [1], 1)
    device.step()
    assert not scheduler.waiting
    device.run()


def test_a_hit_ends_where_the_window_is_still_there() -> None:
    """Window pages of the latest rows stay; those of the earlier ones go to a longer prompt."""
    scheduler = make_scheduler(pages=60, page_size=2, window=6, running=1)
    device = NaiveDevice(scheduler, random.Random(1))
    first = list(range(10, 70))
    add(scheduler, first, 1)
    device.run()
    again = add(scheduler, [*first, 5, 6], 1)
    device.run()
    assert again.matched == 60  # its end, where the first request's window pages are idle
    inside = add(scheduler, [*first[:10], 5, 6], 1)
    device.run()
    assert inside.matched == 0  # the window before token 10 went to later rows
    healed = add(scheduler, [*first[:10], 7, 8], 1)
    device.run()
    assert healed.matched == 10  # the second computation gave cached pages its window pages


def test_a_preempted_sequence_resumes_at_its_own_pages() -> None:
    scheduler = make_scheduler(pages=60, page_size=2, window=6, running=1)
    device = NaiveDevice(scheduler, random.Random(1))
    sequence = add(scheduler, list(range(10, 31)), 20)
    for _ in range(5):
        device.step()
    scheduler.preempt(sequence)
    tokens = len(sequence.tokens)
    device.step()
    assert sequence.matched == (tokens - 1) // 2 * 2 > 20
    device.run()


def test_an_interrupted_step_writes_every_window_page_again() -> None:
    scheduler = make_scheduler(pages=20, page_size=2, window=6, running=2)
    device = NaiveDevice(scheduler, random.Random(1))
    sequence = add(scheduler, [1] * 9, 4)
    device.step()
    assert scheduler.windows is not None
    before = dict(device.window_page)
    scheduler.reduce_batch((sequence,))
    changes = scheduler.windows.take_changes()
    assert set(changes) == set(range(1, 20))
    assert {page: changes[page] for page in before if changes[page]}.items() <= before.items()


def test_too_few_window_pages_are_an_error_not_a_wrong_row() -> None:
    windows = WindowPages(9, 3, WindowLimits(6, 2, 4, 8))
    windows.open(1, [], 3)
    windows.extend(1, [1, 2, 3], 4)
    with pytest.raises(AssertionError, match="every window page is in use"):
        windows.extend(1, [1, 2, 3], 6)
