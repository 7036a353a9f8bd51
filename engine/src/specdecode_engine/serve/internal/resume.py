"""Rebuilds the state of a call that another engine began, from its tokens."""

from collections.abc import Sequence

from specdecode_api.internal_api import RESUME_ID_DIFFERS, RESUME_MISMATCH, Envelope
from specdecode_engine.batch.request import FinishReason, Output, Request
from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.admission import CallOrigin, ChoiceSoFar
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.streaming import AdmittedCall

RETRY_SECONDS = 1


def origin_of(envelope: Envelope, own_id: str | None) -> CallOrigin:
    """Return what the router determined of a call; `own_id` is this engine's `resume_id`.

    Raises `HttpError` if this engine cannot continue the call.
    """
    if envelope.resume:
        _check_id(envelope.resume_id, own_id)
    choices = tuple(
        ChoiceSoFar(
            each.ids, each.sent_characters, FinishReason(each.finished) if each.finished else None
        )
        for each in envelope.resume
    )
    return CallOrigin(envelope.id, envelope.created, envelope.seed, envelope.max_tokens, choices)


def _check_id(wanted: str | None, own: str | None) -> None:
    if own is None:
        message = "this engine has not computed its resume_id yet; try again"
        raise errors.unavailable(message, "resume_id_unknown", RETRY_SECONDS)
    if wanted != own:
        raise errors.HttpError(
            409,
            f"the stream began on an engine with resume_id {wanted}; this engine has {own} and "
            "would continue with other text",
            code=RESUME_ID_DIFFERS,
        )


def replay(
    call: AdmittedCall,
    so_far: Sequence[ChoiceSoFar],
    vocab_size: int,
    sent_events: int,
) -> None:
    """Process the tokens of every choice again; a stream sends nothing of them.

    Args:
        sent_events: as in the envelope.
    """
    for request, choice, begun in zip(call.requests, call.choices, so_far, strict=True):
        own_ending = request.ending_ids()
        _check_tokens(request, begun, own_ending, vocab_size)
        if begun.has_begun and choice.echo:
            choice.add_echo()
        if begun.token_ids or begun.finish_reason:
            choice.push(_as_output(request, begun, own_ending))
        choice.token_ids = []
        choice.take_counts()
        _check_replay(choice, begun)
    if not call.body.stream:
        return
    if any(begun.has_begun for begun in so_far) or sent_events:
        call.formatter.resume(call.choices, sent_events)
    for choice in call.choices:
        choice.clear()


def _as_output(request: Request, begun: ChoiceSoFar, ending_ids: frozenset[int]) -> Output:
    """Return a choice so far as one output; what ends it is concluded from its tokens."""
    ids, name = begun.token_ids, request.request_id
    if begun.finish_reason in (None, FinishReason.ERROR):
        return Output(name, ids, finish_reason=begun.finish_reason)
    if ids and ids[-1] in ending_ids:
        return Output(name, ids, finish_reason=FinishReason.STOP, stop_token_id=ids[-1])
    is_full = len(ids) == request.sampling.max_tokens
    return Output(name, ids, finish_reason=FinishReason.LENGTH if is_full else None)


def _check_tokens(
    request: Request, begun: ChoiceSoFar, ending_ids: frozenset[int], vocab_size: int
) -> None:
    room = request.sampling.max_tokens - (begun.finish_reason is None)
    if len(begun.token_ids) > room:
        raise _mismatch(
            f"{len(begun.token_ids)} tokens, more than the {room} that fit before its end"
        )
    if any(token >= vocab_size for token in begun.token_ids):
        raise _mismatch(f"a token that is not among the {vocab_size} of the vocabulary")
    if begun.finish_reason is None and not ending_ids.isdisjoint(begun.token_ids):
        raise _mismatch("a token that ends it, and is not finished")


def _check_replay(choice: OutputProcessor, begun: ChoiceSoFar) -> None:
    if choice.num_characters != begun.sent_characters:
        raise _mismatch(
            f"{begun.sent_characters} characters that were sent; its tokens are "
            f"{choice.num_characters} characters"
        )
    if choice.finish_reason is not begun.finish_reason:
        raise _mismatch(
            f"finished {begun.finish_reason}; its tokens end it: {choice.finish_reason}"
        )


def _mismatch(what: str) -> errors.HttpError:
    message = f"a choice of resume has {what}; another model or tokenizer has written it"
    return errors.HttpError(409, message, param="resume", code=RESUME_MISMATCH)
