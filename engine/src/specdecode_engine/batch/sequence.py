"""One request's tokens, pages and fate while the engine works on it."""

from dataclasses import dataclass, field

from specdecode_engine.batch.request import FinishReason, Request, TokenLogprobs


class RequestStats:
    """Decode steps of one request by band of batch sizes, under the table that set their depths.

    A request counts once, in the band of most of its decode steps, with its numbers in that band:
    so the requests of a stratum are independent of each other and ran at comparable batch sizes.
    `by_band` holds tokens, steps and seconds of each band.
    """

    __slots__ = ("by_band", "is_mixed", "table")

    def __init__(self) -> None:
        self.table = ""
        self.is_mixed = False  # whether steps under more than one table decoded it
        self.by_band: dict[int, list[float]] = {}

    def note(self, table: str, band: int, tokens: int, seconds: float) -> None:
        """Count a step: it kept `tokens` and took `seconds` for the whole batch."""
        if table != self.table:
            self.is_mixed = bool(self.table)
            self.table = table
        sums = self.by_band.get(band)
        if sums is None:
            sums = self.by_band[band] = [0, 0, 0.0]
        sums[0] += tokens
        sums[1] += 1
        sums[2] += seconds

    def main_band(self) -> int | None:
        """The band with the most steps, the smallest of equals; None before the first step."""
        by_band = self.by_band
        return max(by_band, key=lambda band: (by_band[band][1], -band)) if by_band else None


@dataclass(slots=True)
class Sequence:
    """A request on its way; owned by the scheduler, changed by nobody else.

    `computed` counts the leading tokens whose target KV is present for sure. While a sequence
    decodes it is one less than the number of tokens: the last token, the bonus of the step before,
    has no KV. Steps that were launched but whose result the host has not seen may have added up to
    `in_flight_tokens` more tokens, and at least one each.

    `reusable` counts the leading tokens whose rows are right in target and draft, so that another
    sequence may use them. It falls behind `computed` while the draft does.

    `total_limit` is the number of tokens, prompt included, at which the answer is cut;
    `ending_ids` are the tokens that end it sooner, the last of it then.

    `prompt_logprobs`, if requested, are those that the host has, from the prompt's second token on.
    They are kept across preemption, so that none is returned twice.
    """

    request: Request
    tokens: list[int]
    total_limit: int
    ending_ids: frozenset[int] = frozenset()
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    matched: int = 0  # leading tokens taken from the prefix cache; set at admission
    reusable: int = 0
    prefill_end: int = 0  # tokens to compute before the first decode step; set at admission
    in_flight_tokens: int = 0
    in_flight_rounds: int = 0
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)

    @classmethod
    def of(cls, request: Request) -> "Sequence":
        """Start with the prompt alone."""
        limit = len(request.prompt_ids) + request.sampling.max_tokens
        return cls(request=request, tokens=list(request.prompt_ids), total_limit=limit)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def unscored_rows(self) -> range:
        """Rows whose logits are still needed to score the prompt; row i scores token i + 1."""
        is_asked = self.request.sampling.prompt_logprobs is not None
        end = len(self.request.prompt_ids) - 1 if is_asked else 0
        return range(min(len(self.prompt_logprobs), end), end)

    @property
    def skippable_tokens(self) -> int:
        """Leading tokens that need not be computed if their KV is at hand."""
        unscored = self.unscored_rows
        return unscored.start if unscored else len(self.tokens)

    @property
    def is_prefilling(self) -> bool:
        """Whether the tokens it was admitted with are still being computed."""
        return self.computed < self.prefill_end

    @property
    def most_computed(self) -> int:
        """Bound of the tokens with KV once everything launched has run; exact if nothing is."""
        return len(self.tokens) - 1 + self.in_flight_tokens

    @property
    def will_end(self) -> bool:
        """Whether what is in flight reaches the limit in any case."""
        return len(self.tokens) + self.in_flight_rounds >= self.total_limit
