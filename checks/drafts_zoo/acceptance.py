"""Acceptance of an engine against a simulation with the reference's drafts of the same texts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from checks.drafts_zoo.engines import build_drafting, build_without_draft, decode
from checks.drafts_zoo.format import DraftFiles, FormatSettings
from checks.drafts_zoo.targets import ANSWER_TOKENS, PROMPTS

TOLERANCE = 0.05

DraftChain = Callable[[Sequence[int], int], Sequence[int]]
"""Drafts a chain after all tokens of a request, of which so many fit before the request's limit."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Decode steps of some requests, and the draft tokens that they accepted."""

    steps: int
    accepted: int

    @property
    def accept_length(self) -> float:
        """Tokens per request and step, the target's own included."""
        return 1 + self.accepted / max(self.steps, 1)


def find_other_acceptance(
    form: FormatSettings,
    files: DraftFiles,
    draft: DraftChain,
    prompts: Sequence[Sequence[int]] = PROMPTS,
) -> str | None:
    """Return both accept lengths if they differ by more than 5 %, or if both are too short."""
    # One at a time: how wide a block is computed depends on how many there are.
    core = build_drafting(form, files, max_running=1)
    decode(core, prompts, ANSWER_TOKENS)
    counted = core.counters.decode
    measured = Acceptance(counted.request_steps, counted.accepted_tokens).accept_length
    # The last step may accept tokens after the limit.
    longer = decode(build_without_draft(files), prompts, ANSWER_TOKENS + form.num_steps)
    texts = [(*prompt, *answer) for prompt, answer in zip(prompts, longer, strict=True)]
    simulated = simulate(draft, texts, map(len, prompts), form.num_steps).accept_length
    if abs(measured - simulated) > TOLERANCE * simulated:
        return f"accept length {measured:.3f}, simulated {simulated:.3f}"
    if simulated < form.least_accept_length:
        return (
            f"accept length {simulated:.3f} is less than {form.least_accept_length}, too little to "
            "recognise a wrong draft; fit the draft longer, or repeat more"
        )
    return None


def simulate(
    draft: DraftChain,
    texts: Iterable[Sequence[int]],
    prompt_lengths: Iterable[int],
    num_steps: int,
) -> Acceptance:
    """Draft along known texts, each ending `num_steps` tokens after its limit."""
    steps = accepted = 0
    for text, prompt_length in zip(texts, prompt_lengths, strict=True):
        known = prompt_length + 1  # tokens, the bonus token included
        limit = len(text) - num_steps
        while known < limit:
            chain = draft(text[:known], limit - known - 1)
            agreeing = _agreeing(chain, text[known:])
            steps, accepted, known = steps + 1, accepted + agreeing, known + agreeing + 1
    return Acceptance(steps, accepted)


def _agreeing(chain: Sequence[int], text: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    pairs = zip(chain, text, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(chain), len(text)))
