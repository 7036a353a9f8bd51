"""DFlash in a whole engine: state of the draft, what `num_steps` means, and trees of marginals."""

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from checks.lossless.poison import build_poisoned
from checks.lossless.run import RandomNumSteps
from checks.lossless.verify_rows import RandomVerifyRows
from specdecode_api.boot import EngineBoot
from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.drafts.dflash import DFlashHead
from specdecode_engine.model.kv.kv_views import KVView
from specdecode_engine.speculate.block_drafter import BlockDrafter
from specdecode_engine.startup.config import CannotServe, resolve

BLOCK_ROWS = 11
PROMPTS = [
    tuple((7 * n + 3 * place + n * place) % 97 for place in range(3 + 6 * n)) for n in range(4)
]


def make_boot(target: Path, draft: Path | None = None, **other: object) -> EngineBoot:
    speculation: dict[str, object] = {"num_steps": 6, **other.pop("speculation", {})}  # type: ignore[dict-item]
    if draft is not None:
        speculation = {"algorithm": "DFLASH", **speculation, "draft_path": str(draft)}
    document = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": speculation if draft is not None else {},
        "memory": {"page_size": 4},
        "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": 8},
        "device": "cpu",
        **other,
    }
    return EngineBoot.model_validate(document)


def request(name: str, prompt: tuple[int, ...], **sampling: object) -> Request:
    params = {"seed": 4, "max_tokens": 30, "temperature": 1.0, "ignore_eos": True, **sampling}
    return Request(name, prompt, SamplingParams(**params))  # type: ignore[arg-type]


def run(core: EngineCore, *requests: Request) -> dict[str, list[int]]:
    for one in requests:
        core.submit(one)
    tokens: dict[str, list[int]] = {one.request_id: [] for one in requests}
    while core.has_work():
        for output in core.step():
            tokens[output.request_id] += output.token_ids
        core.scheduler.check()
    return tokens


@dataclass
class Recorded:
    """The context rows of every request as each draft left them, by the tokens they belong to."""

    rows: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    bonus: list[list[int]] = field(default_factory=list)  # bonus tokens of each draft

    def keep(self, drafter: BlockDrafter, batch: DecodeBatch) -> None:
        table = drafter._table
        for index, length in zip(batch.req_indices, batch.lengths.tolist(), strict=True):
            known = torch.arange(length)
            tokens = tuple(table.tokens_at(index.expand(length), known).tolist())
            slots = table.pool_rows(index.expand(length), known)
            groups = drafter._pool.groups
            kept = [part[:, slots].flatten(2) for one in groups for part in (one.k, one.v)]
            self.rows[tokens] = torch.cat(kept, dim=2).clone()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    kept, draft = Recorded(), BlockDrafter.draft

    def keeping(self: BlockDrafter, batch: DecodeBatch, *others: object) -> Draft:
        drafted = draft(self, batch, *others)  # type: ignore[arg-type]
        kept.keep(self, batch)
        # With CUDA graphs, the next draft overwrites the tokens.
        kept.drafts.append(replace(drafted, tokens=drafted.tokens.clone()))
        kept.bonus.append(self._table.tokens_at(batch.req_indices, batch.lengths).tolist())
        return drafted

    monkeypatch.setattr(BlockDrafter, "draft", keeping)
    return kept


def assert_context_is_that_of_a_prefill(recorded: Recorded, boot: EngineBoot) -> None:
    """Compare the rows after any history with those of a prompt of the same tokens."""
    found = dict(sorted(recorded.rows.items())[::5])
    fresh = build_poisoned(boot.model_copy(update={"memory": boot.memory}))
    for tokens, rows in found.items():
        recorded.rows.clear()
        run(fresh, request("again", tokens, max_tokens=3))
        again = next(iter(recorded.rows.values()))
        torch.testing.assert_close(rows, again[:, : len(tokens)], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("graphs", ["off", "static"])
def test_context_rows_follow_the_accepted_tokens_alone(
    checkpoints, recorded: Recorded, graphs: str, topk: int
) -> None:
    """After paths of any length, pauses, shared prefixes and preemption."""
    boot = make_boot(
        checkpoints.target,
        checkpoints.dflash,
        speculation={"topk": topk, "table": {"1": {"candidate_steps": [0, 1, 6]}}},
        graphs={"mode": graphs},
    )
    core = build_poisoned(boot)
    core.scheduler.drafting.policy = RandomNumSteps((0, 1, 6), 1)
    core.choose_rows = RandomVerifyRows(3)
    prompts = (*PROMPTS, PROMPTS[3] + (1, 2, 3))
    for number, prompt in enumerate(prompts):
        core.submit(request(str(number), prompt, seed=number))
    for step in itertools.count():
        if not core.has_work():
            break
        if step in (6, 9) and core.scheduler.running:
            core.preempt(core.scheduler.running[-1])
        core.step()
        core.scheduler.check()
    assert len(recorded.rows) > 20
    assert_context_is_that_of_a_prefill(recorded, boot)


def test_a_block_is_the_same_however_much_of_it_is_verified(checkpoints, recorded) -> None:
    """The first draft of a request follows from its prompt alone."""
    blocks = []
    for num_steps in (1, 4, 10):
        core = build_poisoned(
            make_boot(
                checkpoints.target,
                checkpoints.dflash,
                speculation={"table": {"1": {"candidate_steps": sorted({num_steps, 10})}},
                             "num_steps": num_steps},
            )
        )  # fmt: skip
        recorded.drafts.clear()
        run(core, request("r", PROMPTS[2]))
        blocks.append(recorded.drafts[0].tokens[0].tolist())
    assert [len(one) for one in blocks] == [1, 4, 10]
    assert blocks[0] == blocks[2][:1]
    assert blocks[1] == blocks[2][:4]


@pytest.mark.parametrize(("graphs", "requests"), [("off", 1), ("off", 3), ("static", 3)])
def test_blocks_of_several_requests_have_the_rows_that_are_verified(
    checkpoints, monkeypatch, graphs: str, requests: int
) -> None:
    seen = set[int]()
    forward = DFlashHead.forward

    def counted(self: DFlashHead, ids: Tensor, positions: Tensor, kv: KVView) -> Tensor:
        seen.add(len(positions) // len(ids))
        return forward(self, ids, positions, kv)

    core = build_poisoned(
        make_boot(
            checkpoints.target,
            checkpoints.dflash,
            speculation={"table": {"1": {"candidate_steps": [3, 6]}}, "num_steps": 3},
            graphs={"mode": graphs},
        )
    )
    monkeypatch.setattr(DFlashHead, "forward", counted)
    together = [request(str(n), PROMPTS[n], max_tokens=12) for n in range(requests)]
    expected = run(build_poisoned(make_boot(checkpoints.target)), *together)
    assert run(core, *together) == expected
    is_short = requests > 1 and graphs == "off"
    assert 4 in seen if is_short else seen <= {BLOCK_ROWS}


def test_nodes_of_one_depth_have_the_same_children(checkpoints, recorded) -> None:
    """A tree of marginals: the tokens at a depth are the best ones there, whatever the parent."""
    core = build_poisoned(
        make_boot(
            checkpoints.target,
            checkpoints.dflash,
            speculation={"topk": 3, "num_steps": 4, "num_draft_tokens": 20},
        )
    )
    plain = build_poisoned(make_boot(checkpoints.target))
    one = request("r", PROMPTS[1], temperature=0.0)
    assert run(core, one) == run(plain, one)
    for draft in recorded.drafts:
        assert draft.tree is not None
        depths, parents = draft.tree.depths[0].tolist(), draft.tree.parents[0].tolist()
        tokens = [None, *draft.tokens[0].tolist()]
        for depth in (1, 2, 3, 4):
            at = [node for node, own in enumerate(depths) if own == depth and node]
            assert len({tokens[node] for node in at}) <= 3
            assert len({(parents[node], tokens[node]) for node in at}) == len(at)


@pytest.mark.parametrize("topk", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_text_is_that_of_plain_decoding_with_graphs_and_without(
    checkpoints, topk: int, overlap: bool
) -> None:
    requests = [request(str(n), prompt, seed=n, temperature=0.7 * (n % 2))
                for n, prompt in enumerate(PROMPTS)]  # fmt: skip
    expected = run(build_poisoned(make_boot(checkpoints.target)), *requests)
    for graphs in ("off", "static"):
        core = build_poisoned(
            make_boot(
                checkpoints.target,
                checkpoints.dflash,
                speculation={"topk": topk},
                scheduling={"max_running_requests": 4, "overlap": overlap},
                graphs={"mode": graphs},
            )
        )
        assert run(core, *requests) == expected
        assert core.counters.decode.accepted_tokens > 0


def test_more_draft_steps_than_a_block_has_are_refused(checkpoints) -> None:
    boot = make_boot(checkpoints.target, checkpoints.dflash, speculation={"num_steps": 11})
    error = "11 draft steps are more than the 10 tokens that .* can draft; lower"
    with pytest.raises(CannotServe, match=error):
        resolve(boot)


@pytest.mark.parametrize("policy", ["goodput", "ema"])
def test_a_default_table_ends_at_the_block(checkpoints, policy: str) -> None:
    """Under the hash that it has without the draft, by which the operator knows it."""
    boot = make_boot(
        checkpoints.target, checkpoints.dflash, speculation={"policy": policy, "num_steps": None}
    )
    config = resolve(boot)
    assert config.table is not None
    assert config.table.ranges[0].candidate_steps[-3:] == (5, 7, 10)
    assert config.table.table_hash == table_hash(Policy(policy), boot.speculation.entries)
    assert max(config.sizes.shapes) == config.boot.speculation.num_steps == 10


def test_draft_steps_of_a_new_table_end_at_the_block(checkpoints) -> None:
    core = build_poisoned(
        make_boot(
            checkpoints.target,
            checkpoints.dflash,
            speculation={"policy": "goodput", "num_steps": None, "profile_seconds": 0},
        )
    )
    core.reload(RangeTable([BatchRange(1, (0, 3, 11, 15))], "trial"))
    table = core.scheduler.drafting.policy.table
    assert (table.candidates(), table.table_hash) == ((0, 3, 10), "trial")


def test_what_was_understood_of_the_draft_is_reported(checkpoints) -> None:
    core = build_poisoned(make_boot(checkpoints.target, checkpoints.dflash))
    assert core.facts["block_draft"] == {
        "block_size": 11,
        "draft_tokens": 10,
        "mask_token_id": 96,
        "target_layer_ids": [0, 1],
        "causal": [False, False],
        "sliding_windows": [None, None],
    }
