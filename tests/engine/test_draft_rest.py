"""Drafts of whole engines after a long stay at 0 draft steps, whose later steps kept nothing."""

from collections.abc import Sequence as Items
from dataclasses import replace

import pytest
import torch

from checks.detection.served import EXAMPLES, example_requests, served_boot
from checks.drafts_zoo.drafting import Drafted, record_drafts
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_rest import RISE_LEAD, DraftRest
from specdecode_engine.adaptive.policy import Decision, Reason, StaticPolicy
from specdecode_engine.batch.request import Request
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.draft_state import KEPT_ROWS
from specdecode_engine.startup.build import build_core
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import DRAFTS, boot_of, requests_of

GAP, DRAFTED = 20, 12
TABLE = {"1": {"candidate_steps": [0, 3]}}


class Later(StaticPolicy):
    """No draft steps for a while, then three."""

    def __init__(self, stay: int, reason: Reason) -> None:
        super().__init__(3)
        self.stay = stay
        self.reason = reason

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        self.stay -= 1
        return Decision(0 if self.stay >= 0 else 3, 1, 0, self.reason)


def run(
    core: EngineCore, requests: Items[Request], stay: int, reason: Reason = Reason.RISE
) -> tuple[dict[str, list[int]], float]:
    """Answer requests; return the texts, and the tokens of a step that drafts."""
    core.scheduler.drafting.policy = Later(stay, reason)
    texts: dict[str, list[int]] = {one.request_id: [] for one in requests}
    lengths = []
    for one in requests:
        core.submit(one)
    while core.has_work():
        for output in core.step():
            texts[output.request_id] += output.token_ids
            lengths += [1 + output.accepted] if output.drafted else []
        core.scheduler.check()
    return texts, sum(lengths) / max(len(lengths), 1)


@pytest.mark.parametrize("algorithm", sorted(DRAFTS))
def test_a_draft_follows_a_stay_of_any_length(
    checkpoints: Checkpoints, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text; after a short stay what an engine drafts that keeps all hidden states."""
    document = boot_of(checkpoints, algorithm, 1)
    document["speculation"] |= {"policy": "static", "table": TABLE}
    core = build_poisoned(EngineBoot.model_validate(document))
    drafts, drafter, rest = record_drafts(core), core.context.drafter, core.scheduler.drafting.rest
    assert drafter is not None
    skipped, skip = list[Items[int]](), drafter.skip

    def noted(req_indices: Items[int]) -> None:
        skipped.append(req_indices)
        skip(req_indices)

    monkeypatch.setattr(drafter, "skip", noted)
    requests = requests_of(checkpoints.vocab, 2, KEPT_ROWS + GAP + RISE_LEAD + DRAFTED)
    found: list[tuple[dict[str, list[int]], list[Drafted]]] = []
    for stay, used in ((KEPT_ROWS, DraftRest()), (KEPT_ROWS, rest), (KEPT_ROWS + GAP, rest)):
        core.scheduler.drafting.rest = used
        drafts.clear()
        texts, _ = run(core, requests, stay)
        found.append((texts, list(drafts)))
        is_late = stay > KEPT_ROWS or algorithm == "FROZEN_KV_MTP"  # which reads the latest alone
        assert bool(skipped) is (used is rest and is_late and algorithm != "STANDALONE")
    whole, short, long = found
    assert whole[0] == short[0] == long[0]
    assert whole[1] == short[1] or algorithm == "FROZEN_KV_MTP"
    assert long[1]


@pytest.mark.parametrize(("algorithm", "draft"), [("EAGLE3", "eagle3"), ("DFLASH", "dflash")])
def test_a_trained_draft_has_its_acceptance_in_a_probe_after_a_gap(
    algorithm: str, draft: str
) -> None:
    speculation = {"draft_path": str(EXAMPLES / draft), "policy": "static", "table": TABLE}
    document = {**served_boot(), "speculation": {"algorithm": algorithm, **speculation}}
    core = build_core(EngineBoot.model_validate(document))
    requests = example_requests(24, max_tokens=KEPT_ROWS + 2 * GAP + 30)
    lengths: dict[DraftRest, list[float]] = {}
    for rest in (core.scheduler.drafting.rest, DraftRest()):
        core.scheduler.drafting.rest = rest
        for first in range(0, 24, 8):
            _, length = run(core, requests[first : first + 8], KEPT_ROWS + GAP, Reason.PROBE)
            lengths.setdefault(rest, []).append(length)
    found, whole = map(sum, lengths.values())
    assert found > 0.9 * whole


def next_turns(requests: Items[Request], texts: dict[str, list[int]]) -> list[Request]:
    """Continue each conversation: its prompt and answer, then the prompt of another one."""
    shifted = [*requests[1:], requests[0]]
    return [
        replace(one, prompt_ids=(*one.prompt_ids, *texts[one.request_id], *other.prompt_ids))
        for one, other in zip(requests, shifted, strict=True)
    ]


def unwritten_rows_of_cached_pages(core: EngineCore) -> int:
    """Count the rows of the draft that are as the test has poisoned them, over all layers."""
    pool = getattr(core.context.drafter, "_pool", None)
    pages = torch.tensor(sorted(core.scheduler.cache.check()))
    slots = (pages[:, None] * core.context.pool.page_size + torch.arange(4)).flatten()
    groups = [] if pool is None else pool.groups
    parts = [part[:, slots].flatten(2) for group in groups for part in (group.k, group.v)]
    return sum(int(part.isnan().any(dim=2).sum()) for part in parts)


@pytest.mark.parametrize("algorithm", sorted(DRAFTS))
def test_what_was_decoded_without_drafts_is_reused(
    checkpoints: Checkpoints, algorithm: str
) -> None:
    document = boot_of(checkpoints, algorithm, 1)
    document["speculation"] |= {"policy": "static", "table": TABLE}
    document["memory"] = {"page_size": 4}
    core = build_poisoned(EngineBoot.model_validate(document))
    plain = build_poisoned(EngineBoot.model_validate(boot_of(checkpoints, "NONE", 1)))
    first = requests_of(checkpoints.vocab, 2, KEPT_ROWS + GAP)
    texts, _ = run(core, first, 10**6)
    drafter = core.context.drafter
    assert drafter is not None
    assert bool(unwritten_rows_of_cached_pages(core)) is drafter.computes_late
    asked = next_turns(first, texts)
    hits = core.scheduler.cache.hit_tokens
    found, _ = run(core, asked, 0)
    known = sum(len(one.prompt_ids) + len(texts[one.request_id]) for one in first)
    assert core.scheduler.cache.hit_tokens - hits > known - len(first) * 2 * 4
    assert found == run(plain, asked, 10**6)[0]


@pytest.mark.parametrize(("algorithm", "draft"), [("EAGLE3", "eagle3"), ("DFLASH", "dflash")])
def test_a_trained_draft_has_its_acceptance_in_the_next_turn(algorithm: str, draft: str) -> None:
    """Though its rows of the answer before are zero."""
    speculation = {"draft_path": str(EXAMPLES / draft), "policy": "static", "table": TABLE}
    document = {**served_boot(), "speculation": {"algorithm": algorithm, **speculation}}
    core = build_core(EngineBoot.model_validate(document))
    first = example_requests(8, max_tokens=KEPT_ROWS + GAP)
    texts, _ = run(core, first, 10**6)
    asked = next_turns(first, texts)
    hits = core.scheduler.cache.hit_tokens
    _, after_gap = run(core, asked, 0)
    assert core.scheduler.cache.hit_tokens > hits
    core.scheduler.forget_draft_kv()  # no cached prefix is found
    _, whole = run(core, asked, 0)
    assert after_gap > 0.9 * whole
