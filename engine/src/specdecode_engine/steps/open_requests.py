"""Brings the device up to date with requests that start, grow and end."""

import time

from specdecode_engine.batch.adapters import AdapterNotLoaded
from specdecode_engine.batch.request import Request
from specdecode_engine.batch.sequence import SchedulerOutput, Sequence
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.speculate.draft_state import KEPT_ROWS
from specdecode_engine.steps.model_context import ModelContext


def check_request(context: ModelContext, request: Request) -> None:
    """Raise for a request that needs what the engine was not started with.

    Raises:
        ValueError: the server has admitted it by mistake; with the remedy.
        AdapterNotLoaded: its adapter was unloaded meanwhile.
    """
    if request.return_routed_experts and context.routed is None:
        raise ValueError("experts are not kept; start the engine with return_routed_experts")
    if request.adapter and (context.adapters is None or request.adapter not in context.adapters):
        message = f"adapter {request.adapter!r} is not loaded; load it, or choose another"
        raise AdapterNotLoaded(message)


def open_requests(context: ModelContext, plan: SchedulerOutput, scheduler: Scheduler) -> None:
    """Open the requests that start in a step, and write the pages that its requests got."""
    for req_index in scheduler.left_req_indices:  # first: a grammar keeps its place for later
        context.sampler.close(req_index)
    scheduler.left_req_indices.clear()
    for chunk in plan.chunks:
        if chunk.sequence.computed == chunk.sequence.matched:
            _open_request(context, chunk.sequence)
    if plan.chunks or plan.grown:
        sequences = (*[chunk.sequence for chunk in plan.chunks], *plan.grown)
        held = [(s.req_index, s.pages) for s in sequences if s.req_index is not None]
        context.table.write_pages(held)
    if scheduler.windows is not None:
        context.table.write_window_pages(scheduler.windows.take_changes())


def _open_request(context: ModelContext, sequence: Sequence) -> None:
    req_index, request = sequence.req_index, sequence.request
    assert req_index is not None
    if sequence.admitted_s is None:
        sequence.admitted_s = time.monotonic()
        sequence.cached_tokens = min(sequence.matched, len(request.prompt_ids))
    prompt = list(request.prompt_ids)
    output = sequence.tokens[len(prompt) :]
    context.table.open(req_index, sequence.tokens)
    context.rotary.open(req_index, sequence.total_limit)
    if context.adapters is not None:
        context.adapters.open(req_index, request.adapter)
    if context.states is not None:
        context.states.open(req_index, sequence.cached_state)
    rules = request.grammar, sequence.ending_ids
    context.sampler.open(req_index, request.sampling, prompt, output, *rules)
    if context.drafter is not None:
        context.drafter.open(req_index, sequence.reusable, sequence.total_limit)


def close_request(context: ModelContext, sequence: Sequence, scheduler: Scheduler) -> None:
    """Close a request that ends, and make zero what the draft lacks of the answer, if it is much.

    Others may then use what was decoded without draft steps. A draft has its acceptance back after
    a few tens of rows, which the prompt of the next turn has; to compute the answer again would
    cost more. Rows of a prompt that has waited are computed.
    """
    assert sequence.req_index is not None
    context.sampler.close(sequence.req_index)
    drafter, req_index = context.drafter, sequence.req_index
    if drafter is None or sequence.is_prefilling or not scheduler.cache.is_on:
        return
    start, end = sequence.reusable, sequence.computed - scheduler.cache.lookahead
    if end - start <= KEPT_ROWS or scheduler.drafting.catches_up(sequence):
        return
    if drafter.computes_late and start < sequence.prefill_end:  # it has waited
        drafter.prefill([(req_index, start, sequence.prefill_end)], None)
        start = sequence.prefill_end
    drafter.clear(req_index, start, end)
    sequence.reusable = end
