"""One request's tokens, pages and fate while the engine works on it."""

from dataclasses import dataclass, field

from specdecode_engine.request import FinishReason, Request, RequestStats


@dataclass(slots=True)
class Sequence:
    """A request on its way; owned by the scheduler, changed by nobody else.

    `computed` counts the leading tokens whose target KV is present. While a sequence decodes it is
    one less than the number of tokens: the last token, the bonus of the round before, has no KV.
    """

    request: Request
    tokens: list[int]
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    stats: RequestStats = field(default_factory=RequestStats)
    finish_reason: FinishReason | None = None

    @classmethod
    def of(cls, request: Request) -> "Sequence":
        """Start with the prompt alone."""
        return cls(request=request, tokens=list(request.prompt_ids))

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the bonus token lacks KV."""
        return self.output_tokens == 0 or self.computed < len(self.tokens) - 1

    @property
    def total_limit(self) -> int:
        """Tokens, prompt included, at which the answer is cut."""
        return len(self.request.prompt_ids) + self.request.sampling.max_tokens
