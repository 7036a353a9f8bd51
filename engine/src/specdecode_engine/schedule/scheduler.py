"""Who runs next, on which pages: admission, chunked prefill, decode batches, preemption."""

import math
from bisect import bisect_left
from collections.abc import Mapping

from specdecode_engine.adaptive.draft_health import MAX_PER_REQUEST, DraftHealth
from specdecode_engine.batch.request import FinishReason, QueueFull, Request, RequestTooLong
from specdecode_engine.batch.sequence import PrefillChunk, SchedulerOutput, Sequence
from specdecode_engine.schedule.cached_states import CachedStates
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.pages import PageAllocator, WindowLimits, WindowPages
from specdecode_engine.schedule.prefill_pace import PrefillPace, share_budget
from specdecode_engine.schedule.prefix_cache import Node, PrefixCache
from specdecode_engine.schedule.waiting import WaitingQueue, queue_order


class Scheduler:
    """Owns every sequence, request index and page; returns one `SchedulerOutput` per step.

    A sequence waits, prefills in chunks, then decodes. When there are no pages for a decode step,
    the sequence admitted last is preempted, or with priorities the last in the order of the queue:
    its pages are freed, its tokens stay, and it waits before those of its order. Sampling is keyed
    by position, so preemption does not change the output.

    What a sequence has computed goes to the prefix cache when it leaves. Pages that only the cache
    holds are as good as free; they are evicted when free ones run out. A draft that can compute
    missing rows later may lack some of such pages: who reuses them computes the draft's rows again.
    """

    def __init__(self, limits: Limits, drafting: Drafting, cache: PrefixCache) -> None:
        self.limits = limits
        self.drafting = drafting
        self.cache = cache
        self.prefill_pace = PrefillPace(limits.chunk_tokens, limits.prefill_delay_steps)
        self.pages = PageAllocator(limits.pages, limits.page_size)
        self.windows: WindowPages | None = None
        if limits.window is not None:
            windows = WindowLimits(
                limits.window, limits.page_size, limits.reserve_tokens, limits.chunk_tokens
            )
            self.windows = WindowPages(limits.pages, limits.window_pages, windows)
        self.cached_states: CachedStates | None = None
        if limits.cached_states is not None:
            sizes = limits.cached_states, limits.page_size, limits.cached_state_tokens
            self.cached_states = CachedStates(*sizes)
        self.waiting = WaitingQueue()
        self.suspended: dict[str, Sequence] = {}  # by request id, until their grammars are ready
        self.running: list[Sequence] = []
        self.preempted_total = 0
        self.left_req_indices: list[int] = []  # by preempted sequences, until the next step opens
        self._draft_kv_generation = 0
        self.adapter_digests: Mapping[str, str] = {}  # by name; prefixes are those of a content
        self._blocked: Sequence | None = None  # the first to wait, until memory is given back
        self._lacking: set[int] = set()  # cached pages of which the draft lacks rows
        self._reduced_to: int | None = None  # most running sequences after a step without memory
        self._free_req_indices = list(range(limits.max_running, 0, -1))

    @property
    def available_pages(self) -> int:
        """Pages that are free or can be made free."""
        return self.pages.free + self.cache.idle_pages

    def add(self, request: Request, eos_token_ids: frozenset[int] = frozenset()) -> Sequence:
        """Queue a request.

        Raises:
            RequestTooLong: prompt and answer can never fit.
            QueueFull: too many requests wait.
        """
        sequence = Sequence.of(request, eos_token_ids)
        if sequence.total_limit > self.limits.longest_sequence:
            raise RequestTooLong(
                f"{len(request.prompt_ids)} prompt tokens and max_tokens "
                f"{request.sampling.max_tokens} make {sequence.total_limit}, more than the "
                f"{self.limits.longest_sequence} that fit here; shorten the prompt or lower "
                "max_tokens"
            )
        # The first to wait take the free slots, and do not count as queued.
        free_req_indices = self.limits.max_running - len(self.running)
        if len(self.waiting) >= self.limits.max_queued + free_req_indices:
            raise QueueFull(
                f"the queue is full: {len(self.running)} requests are running (limit "
                f"{self.limits.max_running}) and {len(self.waiting)} are waiting (limit "
                f"{self.limits.max_queued}); try again later"
            )
        self.waiting.put(sequence)
        return sequence

    def must_preempt(self) -> bool:
        """Whether the next plan has to take a sequence's memory.

        A preempted sequence starts over from the tokens that the host knows, so everything in
        flight has to be collected before such a plan is made.
        """
        # A step adds at most so many rows to a sequence, which has had room for as many.
        most = len(self.running) * self.pages.pages_for(self.limits.max_draft_tokens)
        if most <= self.available_pages:
            return False  # the common case
        missing = sum(self._missing_pages(sequence) for sequence in self._decoding())
        return missing > self.available_pages

    def plan(self) -> SchedulerOutput:
        """Choose the chunks and the decode batch of this step and take the pages they need."""
        if self.cached_states is not None:
            self.cached_states.begin_step()
        decoding, grown = self._reserve_decode()
        self._admit()
        kv_tokens = sum([sequence.computed for sequence in decoding])
        chunks: tuple[PrefillChunk, ...] = ()
        if len(decoding) < len(self.running):
            chunks = self._cut_chunks(len(decoding), kv_tokens)
        if self.windows is not None:
            self._move_windows(self.windows, chunks, decoding)
        if not decoding:
            return SchedulerOutput(self.drafting.defer(chunks), (), grown, None, kv_tokens)
        prefill_s = 0.0
        if chunks:
            tokens = sum([one.end - one.start for one in chunks])
            prefill_s = self.prefill_pace.added_s(tokens, len(decoding))
        decision = self.drafting.decide(decoding, kv_tokens, prefill_s)
        feeds_draft = self.drafting.feeds_draft(decision)
        chunks = self.drafting.defer(chunks)
        return SchedulerOutput(chunks, tuple(decoding), grown, decision, kv_tokens, feeds_draft)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence wherever it is and give back what it holds."""
        sequence.finish_reason = reason
        if sequence.req_index is None:
            if self.suspended.pop(sequence.request.request_id, None) is None:
                self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self._release(sequence)
        self._reduced_to = None

    def reduce_batch(self, interrupted: tuple[Sequence, ...]) -> bool:
        """Preempt the sequences of an interrupted step, the youngest for longer than the others.

        It is admitted again once another sequence has ended. Return false if a batch that was
        reduced to one sequence was interrupted: there is nothing left to reduce.
        """
        limit = len(self.running) - 1
        if self.windows is not None:
            self.windows.repeat_changes()
        if self.cached_states is not None:
            self.cached_states.drop_latest()
        for sequence in reversed(interrupted):
            self.preempt(sequence)
        was_alone, self._reduced_to = self._reduced_to == 1, max(limit, 1)
        return not was_alone

    def preempt(self, sequence: Sequence) -> None:
        """Preempt a running sequence: free its pages; it waits again and starts over."""
        self._stop_running(sequence)
        self.waiting.put_back(sequence)
        self.preempted_total += 1

    def suspend(self, sequence: Sequence) -> None:
        """Free the pages of a running sequence; it waits for `resume` and then starts over."""
        self._stop_running(sequence)
        self.suspended[sequence.request.request_id] = sequence

    def resume(self, request_id: str) -> None:
        """Let a suspended sequence wait before those of its order."""
        self.waiting.put_back(self.suspended.pop(request_id))

    def forget_draft(self) -> None:
        """Test a draft that was copied over the running one as a new one.

        Running requests keep the rows that the old draft computed, which costs acceptance only;
        they do not count in the test of the new one. No new request uses them.
        """
        if self.drafting.health is not None:
            self.drafting.health = DraftHealth()
        for sequence in self.running:
            sequence.first_proposals = MAX_PER_REQUEST
        self.drafting.policy.forget_draft()
        self.forget_draft_kv()

    def forget_draft_kv(self) -> None:
        """Let no new request use a cached prefix: its rows in the draft's KV cache are not right.

        Pages have rows of target and draft. They stay until memory is needed.
        """
        self._draft_kv_generation += 1

    def check(self) -> None:
        """Assert that free, cached and held request indices and pages add up to all of them."""
        self.pages.check()
        cached, own = self.cache.check(), []
        for sequence in self.running:
            shared = sequence.matched // self.limits.page_size
            if not cached.issuperset(sequence.pages[:shared]):
                raise AssertionError("a sequence uses a page that is not cached any more")
            own += sequence.pages[shared:]
        if len(own) != len(set(own)) or not cached.isdisjoint(own):
            raise AssertionError("a page belongs to two sequences, or to one and to the cache")
        if len(own) + len(cached) + self.pages.free != self.pages.total:
            raise AssertionError("free, cached and held pages do not add up")
        if self.cached_states is not None:
            self.cached_states.check()
        if self.windows is not None:
            self.windows.check({s.req_index: s.pages for s in self.running if s.req_index})
        req_indices = [sequence.req_index for sequence in self.running]
        if len(set(req_indices)) != len(req_indices) or None in req_indices:
            raise AssertionError("a request index is shared or missing")
        if len(req_indices) + len(self._free_req_indices) != self.limits.max_running:
            raise AssertionError("request indices leaked")

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.in_flight_steps == 0, "collect what is in flight before preempting"
        self.running.remove(sequence)
        self.left_req_indices.append(sequence.req_index or 0)
        self._release(sequence)
        sequence.computed = 0

    def _release(self, sequence: Sequence) -> None:
        assert sequence.req_index is not None
        end = max(sequence.reusable, sequence.matched)
        if self.drafting.catches_up(sequence):
            end = max(sequence.computed, end)
        full = end // self.limits.page_size
        kept, rest = sequence.pages[:full], sequence.pages[full:]
        if self.cache.is_on and (self._lacking or end > sequence.reusable):
            current = sequence.reusable // self.limits.page_size
            self._lacking.difference_update(kept[:current])
            self._lacking.update(kept[current:])
        surplus, cached = self.cache.insert(sequence.req_index, sequence.tokens, kept)
        if self.windows is not None:
            self.windows.close(sequence.req_index, sequence.pages)
            self.windows.replace(surplus[: len(cached)], cached)
        if self.cached_states is not None:
            self.cached_states.unpin(sequence.req_index)
            self.cached_states.replace(surplus[: len(cached)], cached)
        self._give_back(surplus + rest)
        self._free_req_indices.append(sequence.req_index)
        self._blocked = None
        sequence.pages = []
        sequence.req_index = None

    def _reserve_decode(self) -> tuple[list[Sequence], tuple[Sequence, ...]]:
        """Reserve the rows of the next step for every decoding sequence, oldest first.

        Returns:
            Those that decode, and those of them that got pages.
        """
        decoding, preempted = self._decoding(), self.preempted_total
        # Nearly nobody lacks a page: `_missing_pages`, without a call for each.
        ahead, page_size = self.limits.max_draft_tokens - 1, self.limits.page_size
        lacking = [
            s
            for s in decoding
            if len(s.tokens) + s.in_flight_tokens + ahead > len(s.pages) * page_size
        ]
        for sequence in lacking:
            if sequence.req_index is not None:
                self._reserve(sequence)
        grown = tuple([s for s in lacking if s.req_index is not None])
        return decoding if self.preempted_total == preempted else self._decoding(), grown

    def _decoding(self) -> list[Sequence]:
        """Sequences of the next decode step; one that ends with what is in flight is left out."""
        # For every request in every step: `is_prefilling`, without a call for each.
        return [
            s
            for s in self.running
            if s.computed >= s.prefill_end and len(s.tokens) + s.in_flight_steps < s.total_limit
        ]

    def _reserve(self, sequence: Sequence) -> None:
        while (missing := self._missing_pages(sequence)) > self.available_pages:
            self.preempt(max(reversed(self.running), key=queue_order))
            if sequence.req_index is None:
                return
        sequence.pages += self._take(missing)

    def _take(self, count: int) -> list[int]:
        """Take pages, evicting what nobody uses as far as free ones do not suffice."""
        if count > self.pages.free:
            self._give_back(self.cache.evict(count - self.pages.free))
        return self.pages.take(count)

    def _give_back(self, pages: list[int]) -> None:
        if self.windows is not None:
            self.windows.drop(pages)
        if self.cached_states is not None:
            self.cached_states.drop(pages)
        self.pages.give_back(pages)

    def _missing_pages(self, sequence: Sequence) -> int:
        rows = sequence.most_computed + self.limits.max_draft_tokens
        return max(self.pages.pages_for(rows) - len(sequence.pages), 0)

    def _admit(self) -> None:
        """Admit waiting sequences in order while slots and pages last."""
        while self.waiting and self._free_req_indices and len(self.running) != self._reduced_to:
            sequence = self.waiting[0]
            if sequence is self._blocked:  # to match a long prompt takes over a millisecond
                return
            rows = len(sequence.tokens) + self.limits.max_draft_tokens
            needed = self.pages.pages_for(rows)
            most = self.pages.pages_for(sequence.total_limit + self.limits.reserve_tokens)
            if self.windows is not None and not self.windows.has_room(most):
                return
            is_probe = self.drafting.is_probe(sequence)
            shared, idle, last = self._match(sequence, is_probe)
            if needed - len(shared) > self.available_pages - idle:
                self._blocked = sequence
                return
            self.waiting.popleft()
            sequence.req_index = self._free_req_indices.pop()
            self.cache.hold(sequence.req_index, sequence.tokens, shared, last)
            if self.windows is not None:
                self.windows.open(sequence.req_index, shared, most)
            sequence.pages = shared + self._take(needed - len(shared))
            sequence.matched = len(shared) * self.limits.page_size
            sequence.computed = sequence.saved = sequence.matched
            if self.cached_states is not None:
                pin = self.cached_states.pin
                sequence.cached_state = pin(sequence.req_index, shared[-1]) if shared else None
            sequence.reusable = self._draft_rows(shared)
            sequence.prefill_end = len(sequence.tokens)
            self.drafting.admit(sequence, self.running, is_probe=is_probe)
            self.running.append(sequence)

    def _match(self, sequence: Sequence, is_probe: bool) -> tuple[list[int], int, Node]:
        """Find the longest cached beginning after which every layer has what the next row sees.

        Its keys are those of the sequence's own rotary table, adapter and salt. A probe finds
        nothing: the draft has not seen what was cached while it was unfit.
        """
        skippable = 0 if is_probe else sequence.skippable_tokens
        limits = self.limits.rotary_limits
        table = bisect_left(limits, sequence.total_limit)
        request = sequence.request
        adapter = self.adapter_digests.get(request.adapter, request.adapter)
        key = request.cache_salt, adapter, table, self._draft_kv_generation
        found = self.cache.match(sequence.tokens, skippable, key)
        usable, sequence.shared = self._usable(found[0]), len(found[0]) * self.limits.page_size
        if usable == len(found[0]):
            return found
        return self.cache.match(sequence.tokens, usable * self.limits.page_size, key)

    def _usable(self, pages: list[int]) -> int:
        """Return how many leading pages of a prefix every layer can continue from."""
        if self.windows is not None:
            pages = pages[: self.windows.usable(pages)]
        if self.cached_states is None:
            return len(pages)
        usable = self.cached_states.usable(pages)
        if self.windows is not None and self.windows.usable(pages[:usable]) < usable:
            return 0
        return usable

    def _draft_rows(self, pages: list[int]) -> int:
        """Count the leading rows of cached pages that the draft has too."""
        lacking = self._lacking
        found = (place for place, page in enumerate(pages) if page in lacking)
        return self.limits.page_size * (next(found, len(pages)) if lacking else len(pages))

    def _move_windows(
        self, windows: WindowPages, chunks: tuple[PrefillChunk, ...], decoding: list[Sequence]
    ) -> None:
        """Attach window pages to all rows of this step; end the use of those out of the windows."""
        for sequence in self.running:
            assert sequence.req_index is not None
            windows.slide(sequence.req_index, sequence.pages, sequence.computed)
        ends = [(chunk.sequence, chunk.end) for chunk in chunks]
        ends += [(s, s.most_computed + self.limits.max_draft_tokens) for s in decoding]
        for sequence, rows in ends:
            assert sequence.req_index is not None
            windows.extend(sequence.req_index, sequence.pages, rows)

    def _cut_chunks(self, decoding: int, kv_tokens: int) -> tuple[PrefillChunk, ...]:
        prompts = [s for s in self.running if s.computed < s.prefill_end]
        if not prompts:
            return ()
        missing = [len(sequence.tokens) - sequence.computed for sequence in prompts]
        room_s = self.drafting.policy.prefill_room_s(decoding, kv_tokens) if decoding else math.inf
        known = decoding, room_s, sum(missing), prompts[0].computed
        shares = zip(prompts, share_budget(missing, self.prefill_pace.tokens(*known)), strict=True)
        return tuple([self._cut_chunk(sequence, count) for sequence, count in shares if count])

    def _cut_chunk(self, sequence: Sequence, count: int) -> PrefillChunk:
        """Cut a chunk of `count` tokens at most; it ends at a cached state if one is due."""
        start, end = sequence.computed, sequence.computed + count
        if self.cached_states is None:
            return PrefillChunk(sequence, start, end)
        assert sequence.req_index is not None
        self.cached_states.unpin(sequence.req_index)  # the step begins with the copy
        known = len(sequence.tokens), sequence.saved, sequence.shared
        found = self.cached_states.boundary(start, end, *known)
        if found is None:
            return PrefillChunk(sequence, start, end)
        sequence.saved = found
        page = sequence.pages[found // self.limits.page_size - 1]
        return PrefillChunk(sequence, start, found, cached_state=self.cached_states.save(page))
