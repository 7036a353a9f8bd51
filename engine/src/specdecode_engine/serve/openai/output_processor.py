"""The message of one sequence: an echo of its prompt, then its tokens as they arrive.

Tokens become text without incomplete characters, a parser splits the text into the parts of a
message, and stop strings are found in its content, across tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from specdecode_engine.batch.request import ExpertIds, FinishReason, Output, TokenLogprobs
from specdecode_engine.serve.openai.routed_experts import routed_experts_object
from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    ContentParser,
    MessageDelta,
    ReasoningParser,
    ToolCallDelta,
)
from specdecode_engine.serve.text.detokenizer import Detokenizer, StopStringScanner
from specdecode_engine.serve.text.tokenizer import Vocabulary


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the text with its log-probabilities and the offset in the text where it begins.

    The first token of a prompt has no log-probabilities.
    """

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


class OutputProcessor:
    """One choice of a response: turns the outputs of its sequence into parts of a message.

    `deltas`, `scored` and `token_ids` are what was added since `clear`, as are the `returned_ids`
    of a response that contains token ids, None for others; `num_characters` counts all
    characters of content, reasoning and arguments so far. Tokens are processed one at a time and
    in order, so that parts, end and token counts do not depend on how many tokens a step adds;
    those of a step together where none of that could differ.

    Args:
        stop: strings that end the text where they begin in its content; reasoning and the
            arguments of calls may contain them.
        echo: the prompt's text where the choice begins with it.
        parser: splits the text; without one, all of it is content.
        visible_ids: the special tokens whose spelling the parser reads.
        min_tokens: no stop string ends the text in its first tokens, and none begins there.
        keeps_stop: the stop string or token that ends the text is part of it.
    """

    def __init__(
        self,
        index: int,
        vocabulary: Vocabulary,
        stop: tuple[str, ...] = (),
        echo: str = "",
        prompt_ids: tuple[int, ...] = (),
        parser: ReasoningParser | None = None,
        visible_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        keeps_stop: bool = False,
    ) -> None:
        self.index = index
        self.deltas: list[MessageDelta] = []
        self.scored: list[ScoredToken] = []
        self.token_ids: list[int] = []
        self.returned_ids: list[int] | None = None
        self.num_characters = 0
        self.finish_reason: FinishReason | None = None
        self.has_tool_calls = False
        self.grammar_fault: str | None = None
        self.completion_tokens = self.reasoning_tokens = 0
        self._undecided_tokens = 0  # of reasoning that may be a call
        self.cached_tokens = 0  # of the prompt, as the first output has it
        self.decode_steps = self.drafts = self.drafted = self.emitted = 0  # of decode steps
        self.accepted_at: list[int] = []  # accepted draft tokens by position
        self._taken = 0, 0
        self.echo = echo
        self.has_echo = False  # whether the echo was added
        self._vocabulary = vocabulary
        self.prompt_ids = prompt_ids
        self._detokenizer = Detokenizer(vocabulary, visible_ids)
        self._parser = parser or ContentParser()
        self._scanner = StopStringScanner(stop, keeps_stop) if stop else None
        self._is_all_content = not stop and isinstance(self._parser, ContentParser)
        self._min_tokens = min_tokens
        self._num_unscanned = 0  # characters of the first `min_tokens` tokens that are held back
        self._keeps_stop = keeps_stop
        self.prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
        self._text_offset = len(echo)
        self._routed: list[ExpertIds] = []

    @property
    def text(self) -> str:
        """The content that was added."""
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ContentDelta))

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the text, if one has."""
        return None if self._scanner is None else self._scanner.found

    @property
    def only_text(self) -> str:
        """The content, if nothing else was added and the choice continues; else an empty string."""
        if len(self.deltas) != 1 or self.scored or self.finish_reason is not None:
            return ""
        if self.returned_ids is not None:
            return ""
        delta = self.deltas[0]
        return delta.text if isinstance(delta, ContentDelta) else ""

    @property
    def has_changed(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.deltas or self.scored or self.finish_reason or self.returned_ids)

    @property
    def num_scored(self) -> int:
        """Tokens with log-probabilities that are to be formatted."""
        return len(self.scored) + len(self.prompt_logprobs or ())

    def clear(self) -> None:
        """Drop parts, log-probabilities and tokens: they were sent."""
        self.deltas = []
        self.scored = []
        self.token_ids = []
        if self.returned_ids is not None:
            self.returned_ids = []

    def take_token_ids(self) -> list[int]:
        """Return the tokens that were added, which then count as sent."""
        token_ids, self.token_ids = self.token_ids, []
        return token_ids

    def take_counts(self) -> tuple[int, int]:
        """Return the tokens since the last call, and how many of them were drafted.

        A stop string may end the text before the last accepted one.
        """
        now = self.completion_tokens, sum(self.accepted_at)
        before, self._taken = self._taken, now
        tokens = now[0] - before[0]
        return tokens, min(now[1] - before[1], tokens)

    def add_echo(self, logprobs: tuple[TokenLogprobs, ...] | None = None) -> None:
        """Add the echo of the prompt; `logprobs`, where given, begin with its second token.

        The log-probabilities of a long prompt take long.
        """
        self.has_echo = True
        self._add(ContentDelta(self.echo))
        if logprobs is not None:
            columns = zip(self.prompt_ids, self._prompt_offsets(), (None, *logprobs), strict=True)
            self.scored += (ScoredToken(*column) for column in columns)

    @property
    def token_ids_field(self) -> dict[str, list[int]]:
        """The field `token_ids`, if it was requested."""
        return {} if self.returned_ids is None else {"token_ids": self.returned_ids}

    @property
    def error_field(self) -> dict[str, dict[str, str]]:
        """The field `error` of a choice whose grammar failed, as `errors.HttpError` writes it."""
        if self.grammar_fault is None:
            return {}
        message = f"the grammar could not be followed: {self.grammar_fault}; simplify it"
        return {"error": {"message": message, "type": "server_error", "code": "grammar_failed"}}

    @property
    def has_routed_experts(self) -> bool:
        """Whether the end of the choice has the experts of its tokens."""
        return bool(self._routed) and self.finish_reason is not None

    @property
    def routed_experts_field(self) -> dict[str, dict[str, Any]]:
        """The field `routed_experts` of a choice that has ended, if it was requested.

        It has the prompt's tokens and the generated ones but the last, which no forward computed.
        """
        if not self.has_routed_experts:
            return {}
        tokens = len(self.prompt_ids) + max(self.completion_tokens, 1) - 1
        return {"routed_experts": routed_experts_object(self._routed, tokens)}

    def push(self, output: Output) -> None:
        """Process the next output of the engine."""
        if output.routed_experts is not None:
            if len(output.routed_experts) > len(output.token_ids):
                self._routed = []  # the first output of an engine has the rows of all tokens
            self._routed.append(output.routed_experts)
        self.grammar_fault = output.grammar_fault
        self.cached_tokens = self.cached_tokens or output.cached_tokens
        self.decode_steps += output.decode_steps
        self.drafted += output.drafted
        self.drafts += output.drafted > 0
        if output.accepted:
            self._count_accepted(output.accepted)
        self.emitted += output.decode_steps * len(output.token_ids)
        is_stopped = False
        if self._is_all_content and output.logprobs is None:
            self._push_content(output)
        else:
            is_stopped = self._push_tokens(output)
        if output.finish_reason is not None and not is_stopped:
            is_stopped = self._flush()
        self.finish_reason = FinishReason.STOP if is_stopped else output.finish_reason

    def _push_content(self, output: Output) -> None:
        """Process the tokens of a step at once: their text is content, which nothing ends."""
        token_ids = output.token_ids
        self.completion_tokens += len(token_ids)
        self.token_ids += token_ids
        if self.returned_ids is not None:
            self.returned_ids += token_ids
        if output.stop_token_id is not None and not self._keeps_stop:
            token_ids = token_ids[:-1]
        if text := self._detokenizer.push(*token_ids):
            self._text_offset += len(text)
            self._add(ContentDelta(text))

    def _push_tokens(self, output: Output) -> bool:
        """Process tokens one at a time; return whether a stop string ends the text in one."""
        for position, token_id in enumerate(output.token_ids):
            self.completion_tokens += 1
            self.token_ids.append(token_id)
            if self.returned_ids is not None:
                self.returned_ids.append(token_id)
            is_last = position == len(output.token_ids) - 1
            if is_last and output.stop_token_id is not None and not self._keeps_stop:
                break
            if output.logprobs is not None:
                logprobs = output.logprobs[position]
                self.scored.append(ScoredToken(token_id, self._text_offset, logprobs))
            was_in_reasoning = self._parser.in_reasoning
            deltas = self._parser.push(self._detokenizer.push(token_id))
            self._count_reasoning(was_in_reasoning and self._parser.in_reasoning)
            if self._append(deltas):
                return True
            if self._num_unscanned or self.completion_tokens == self._min_tokens:
                self._note_unscanned()
        return False

    def _count_reasoning(self, is_reasoning: bool) -> None:
        """Count the last token, and those before it about which nothing was decided."""
        if self._parser.is_undecided:
            self._undecided_tokens += 1
        else:
            self.reasoning_tokens += is_reasoning + self._undecided_tokens
            self._undecided_tokens = 0

    def _note_unscanned(self) -> None:
        """Count what is held back of the first `min_tokens` tokens: no more than all that is."""
        held = self._parser.num_held + self._detokenizer.num_held
        is_first = self.completion_tokens == self._min_tokens
        self._num_unscanned = held if is_first else min(self._num_unscanned, held)

    def _flush(self) -> bool:
        """Release what is held back; return whether a stop string ends the text in it."""
        last = [*self._parser.push(self._detokenizer.flush()), *self._parser.flush()]
        self.reasoning_tokens += self._undecided_tokens * self._parser.in_reasoning
        if self._append(last):
            return True
        self._release_content()
        return False

    def _release_content(self) -> None:
        """Release content that could have begun a stop string: another part or the end follows."""
        if self._scanner is not None and (held := self._scanner.flush()):
            self._add(ContentDelta(held))

    def _add(self, delta: MessageDelta) -> None:
        self.deltas.append(delta)
        text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
        self.num_characters += len(text)

    def _count_accepted(self, accepted: int) -> None:
        """Count the first `accepted` positions of a draft."""
        self.accepted_at += [0] * (accepted - len(self.accepted_at))
        for position in range(accepted):
            self.accepted_at[position] += 1

    def _append(self, deltas: Sequence[MessageDelta]) -> bool:
        """Add parts of the message; return whether a stop string ends the text in them."""
        for delta in deltas:
            self.has_tool_calls |= isinstance(delta, ToolCallDelta)
            if not isinstance(delta, ContentDelta):
                self._release_content()
                self._add(delta)
            elif self._append_content(delta):
                return True
        return False

    def _append_content(self, delta: ContentDelta) -> bool:
        self._text_offset += len(delta.text)
        if self._scanner is None or self.completion_tokens <= self._min_tokens:
            self._add(delta)
            return False
        early, text = delta.text[: self._num_unscanned], delta.text[self._num_unscanned :]
        self._num_unscanned -= len(early)
        if released := early + self._scanner.push(text):
            self._add(ContentDelta(released))
        return self._scanner.is_stopped

    def _prompt_offsets(self) -> list[int]:
        """Return the offset in the echo where each token of the prompt begins.

        Some tokenizers decode a space before a text, which the text does not contain: the offsets
        are shifted by it.
        """
        detokenizer = Detokenizer(self._vocabulary)
        pieces = [detokenizer.push(token_id) for token_id in self.prompt_ids]
        decoded = "".join(pieces)
        surplus = len(decoded) - len(self.echo) if decoded.endswith(self.echo) else 0
        starts = accumulate((len(piece) for piece in pieces[:-1]), initial=-surplus)
        return [min(max(start, 0), len(self.echo)) for start in starts]
