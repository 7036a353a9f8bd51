"""Drafted tokens of an engine against a slow reference, in chains and in trees."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from checks.drafts_zoo.engines import build_drafting, decode
from checks.drafts_zoo.format import DraftFiles, DraftFormat, SlowBlockDrafter, SlowDrafter
from checks.drafts_zoo.targets import ANSWER_TOKENS, PROMPTS
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.engine import EngineCore
from specdecode_engine.sampling.sampler import SamplingBatch
from specdecode_engine.speculate.block_drafter import SHORT_BLOCKS_FROM

NEAR_TIE = 1e-3
"""Logits in float32 that are closer to each other than this may have either order."""
CHECKED = 24  # drafts of each kind


class Drafted(NamedTuple):
    """What was drafted for one request in one step."""

    committed: tuple[int, ...]  # the bonus token is the last
    tokens: tuple[int, ...]  # of nodes 1, 2, …
    parents: tuple[int, ...]  # of nodes 1, 2, …; node 0 is the bonus token
    num_steps: int
    batch_size: int
    scores: tuple[float, ...] = ()  # see `Draft.scores`


def find_wrong_token(form: DraftFormat, files: DraftFiles, reference: SlowDrafter) -> str | None:
    """Decode with chains and trees; return the first token that the reference would not draft."""
    for topk in form.topks:
        core = build_drafting(form, files, topk=topk)
        drafts = record_drafts(core)
        decode(core, PROMPTS, ANSWER_TOKENS)
        if not drafts:
            return f"topk {topk}: nothing was drafted"
        for drafted in drafts[:: -(-len(drafts) // CHECKED)]:
            if difference := check_draft(drafted, reference, topk):
                return f"topk {topk}: {difference}"
    return None


def record_drafts(core: EngineCore) -> list[Drafted]:
    """Note everything that an engine drafts from now on."""
    drafter, table = core.context.drafter, core.context.table
    assert drafter is not None
    draft, found = drafter.draft, list[Drafted]()

    def recorded(batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        made = draft(batch, sampling, shape)
        for row, (req_index, length) in enumerate(
            zip(batch.host_req_indices, batch.lengths.tolist(), strict=True)
        ):
            owner = torch.full((length + 1,), req_index)
            committed = table.tokens_at(owner, torch.arange(length + 1))
            tokens = made.tokens[row].tolist()
            parents = list(range(len(tokens)))
            if made.tree is not None:
                parents = made.tree.parents[row, 1:].tolist()
            path = tuple(committed.tolist()), tuple(tokens), tuple(parents)
            scores = () if made.scores is None else tuple(made.scores[row].tolist())
            found.append(Drafted(*path, shape.num_steps, batch.size, scores))
        return made

    vars(drafter)["draft"] = recorded
    return found


def check_draft(drafted: Drafted, reference: SlowDrafter, topk: int) -> str | None:
    """Return the first token that is not among the `topk` best after its parent."""
    if drafted.batch_size >= SHORT_BLOCKS_FROM:
        reference = for_several(reference, drafted.num_steps)
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(drafted.tokens, drafted.parents, strict=True):
        path = paths[parent]
        logits = reference.next_logits(drafted.committed, path)
        place = f"after {len(drafted.committed)} tokens and {list(path)}"
        if logits is None:
            return f"{place}: token {token} was drafted, the reference drafts nothing"
        best = logits.topk(topk)
        if not logits[token] >= best.values[-1] - NEAR_TIE:
            return (
                f"{place}: token {token} was drafted, the reference drafts {best.indices.tolist()}"
            )
        paths.append((*path, token))
    return None


def for_several(reference: SlowDrafter, num_steps: int) -> SlowDrafter:
    """Return what drafts for several requests at once; their blocks are short on a CPU."""
    if isinstance(reference, SlowBlockDrafter):
        return reference.shortened(num_steps)
    return reference


def draft_chain(reference: SlowDrafter, committed: Sequence[int], num_steps: int) -> list[int]:
    """Return the chain that the reference drafts."""
    chain: list[int] = []
    while len(chain) < num_steps:
        logits = reference.next_logits(committed, chain)
        if logits is None:
            break
        chain.append(int(logits.argmax()))
    return chain
