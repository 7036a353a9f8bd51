"""A trial of two hours on eight pods with forty kinds of requests stays small."""

import json

from specdecode_operator.judge.evidence import Stratum

STRATA = tuple(
    Stratum(batch, sampling, grammar, prompt)
    for batch in (1, 2, 4, 8, 16)
    for sampling in ("greedy", "sampled")
    for grammar in ("free", "constrained")
    for prompt in ("short", "long")
)
LARGEST_OBJECT = 64 * 1024
MOST_WRITTEN = 2 * 2**20


def size_of(manifest):
    return len(json.dumps(manifest, separators=(",", ":")))


def test_objects_and_writes_of_a_long_trial_are_bounded(world, speculate):
    made = world(
        replicas=8,
        guard={"maxDuration": "2h", "minDuration": "119m"},
        switchback={"block": "1m", "washout": "10s", "minPairs": 3},
    )
    made.requests_per_s = 4.0
    made.edit(speculation=speculate(3))
    largest = written = pairs = changes = 0
    status: dict[str, object] = {}
    while made.now_s < made.begin_s + 7300.0:
        for engine in made.engines.values():
            engine.strata = STRATA
        made.pass_time(10.0)
        decided = made.reconcile()
        sizes = [size_of(each) for each in (*decided.objects.creates, *decided.objects.revisions)]
        sizes += [size_of({**each, "status": new}) for each, new in decided.objects.statuses]
        if made.status != status:
            status, changes = made.status, changes + 1
            sizes.append(size_of(made.resource))
        written += sum(sizes)
        largest = max([largest, *sizes])
        if made.record.trial is not None:
            pairs = len(made.record.trial.evidence.pairs)
        elif pairs:
            break
    assert len(STRATA) == 40
    assert pairs > 30
    assert largest <= LARGEST_OBJECT
    assert written <= MOST_WRITTEN
    assert changes <= 2 * pairs + 20, "a status that changes at every look is written at every look"
