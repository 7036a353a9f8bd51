"""In a whole engine, each step of a request is counted under the table that decided it."""

import pytest

from specdecode_api import metrics
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.policies import range_table
from tests.engine.whole_engine import boot_of, requests_of

BEFORE = {"1": TableEntry(candidate_steps=(3,))}
AFTER = {"1": TableEntry(candidate_steps=(0, 3)), "3": TableEntry(candidate_steps=(0,))}


def run(core, requests, change_at, abort_at):
    """Run requests that arrive one per step; return the final sequences and all outputs."""
    sequences, outputs, step = {}, [], 0
    waiting = list(requests)
    while waiting or core.has_work():
        if waiting:
            request = waiting.pop(0)
            core.submit(request)
            sequences[request.request_id] = core._sequences[request.request_id]
        if step == change_at:
            core.reload(range_table(AFTER, Policy.STATIC))
        if step == abort_at:
            core.abort(requests[1].request_id)
        outputs += core.step()
        step += 1
    return list(sequences.values()), outputs


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("change_at", [0, 9, None])
def test_portions_hold_every_round(checkpoints, overlap, change_at):
    document = boot_of(checkpoints, "STANDALONE", 1)
    document["speculation"]["table"] = {
        "1": {"candidate_steps": [3]}, "300": {"candidate_steps": [0, 3]}
    }  # fmt: skip
    document["scheduling"]["overlap"] = overlap
    core = build_core(EngineBoot.model_validate(document))
    sequences, outputs = run(core, requests_of(checkpoints.vocab, 6, 20), change_at, abort_at=7)
    first = core.per_table.table if change_at is None else next(iter(core.per_table.tables))
    for sequence in sequences:
        own = [o for o in outputs if o.request_id == sequence.request.request_id and o.decode_steps]
        by_bucket = sequence.stats.by_bucket.values()
        assert sum(tokens for tokens, _, _ in by_bucket) == sum(len(o.token_ids) for o in own)
        assert sum(steps for _, steps, _ in by_bucket) == sum(o.decode_steps for o in own)
    counted = [each for each in sequences if each.stats.by_bucket]
    mixed = [each for each in counted if each.stats.is_mixed]
    assert core.per_table.mixed_requests == len(mixed)
    assert bool(mixed) == (change_at == 9)
    for name, table in core.per_table.tables.items():
        own = [s for s in counted if s.stats.table == name and not s.stats.is_mixed]
        requests = sum(sums[metrics.SUMS.index("requests")] for sums in table.strata.values())
        assert requests == len(own)
        tokens = sum(sums[metrics.SUMS.index("tokens")] for sums in table.strata.values())
        assert tokens == sum(s.stats.by_bucket[s.stats.main_bucket()][0] for s in own)
    drafted = {(bucket, steps) for bucket, steps in core.counters.buckets}
    assert all(bucket in metrics.BATCH_BUCKETS and steps in (0, 3) for bucket, steps in drafted)
    alone = sum(each.steps for each in core.counters.buckets.values())
    assert core.counters.mixed_steps > 0
    assert alone + core.counters.mixed_steps == core.counters.decode.steps
    if change_at == 0:
        assert not core.per_table.tables[first].strata, "the first table decided a step"
