"""Every request counts once, or was lost with its process; whatever happens to pods and scrapes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_operator.fleet import Ledger
from specdecode_operator.fleet.ledger import MAX_PODS
from specdecode_operator.fleet.sums import MAX_STRATA
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey, RequestSums

A, B = ArmKey("c", "a"), ArmKey("c", "b")


def test_what_was_before_the_ledger_is_not_counted(pod, total):
    one = pod("1", start_s=10)
    one.serve(5)
    ledger = Ledger.begin(100).take([one.read()])
    assert ledger.arm(A) == ArmEvidence()
    one.serve(7)
    evidence = ledger.take([one.read()]).arm(A)
    assert total(evidence) == RequestSums(1, 7, 1, 0.5)
    assert (evidence.pods, evidence.restarts, evidence.answered_requests) == (1, 0, 1)
    assert evidence.inter_token.counts == (7.0, 0.0, 0.0)


def test_a_pod_that_comes_later_counts_from_its_start(pod, total):
    ledger = Ledger.begin(100).take([])
    late = pod("2", start_s=130)
    late.serve(5)
    ledger = ledger.take([late.read()]).take([late.read()])
    assert total(ledger.arm(A)).tokens == 5


def test_a_restart_counts_all_of_the_new_process_and_is_reported(pod, total):
    one = pod("1", start_s=10)
    ledger = Ledger.begin(100).take([one.read()])
    one.serve(5)
    ledger = ledger.take([one.read()])
    one.serve(50)  # not read before it ends
    one.use("b")
    one.restart(120)
    one.serve(6)
    ledger = ledger.take([one.read()])
    assert total(ledger.arm(A)).tokens == 5
    assert total(ledger.arm(B)).tokens == 6
    assert ledger.arm(A).restarts == 1, "charged to what ran when it ended"
    assert ledger.arm(B).restarts == 0


def test_a_reading_of_a_process_that_has_ended_is_dropped(pod, total):
    one = pod("1", start_s=110)
    one.serve(5)
    stale = one.read()
    ledger = Ledger.begin(100).take([stale])
    one.restart(120)
    ledger = ledger.take([one.read()])
    assert ledger.take([stale]) == ledger


def test_counters_that_begin_anew_in_one_process_count_in_full(pod, total):
    one = pod("1", start_s=110)
    one.serve(50)
    ledger = Ledger.begin(100).take([one.read()])
    one.strata["a"].clear()
    one.answered.clear()
    one.tokens_seen.clear()
    one.serve(6)
    assert total(ledger.take([one.read()]).arm(A)).tokens == 56


def test_an_unfit_draft_counts_once_however_often_it_recovers(pod, total):
    one = pod("1", start_s=110)
    ledger, found = Ledger.begin(100), []
    for is_unfit in (0.0, 1.0, 1.0, 0.0):
        one.serve(5)
        reading = one.read()
        arms = {A: replace(reading.arms[A], unfit_drafts=is_unfit)}
        ledger = ledger.take([replace(reading, arms=arms)])
        found.append(ledger.arm(A).unfit_drafts)
    assert found == [0.0, 1.0, 1.0, 1.0]
    assert total(ledger.arm(A)).tokens == 20


def test_a_table_that_the_engine_forgot_begins_anew(pod, total):
    one = pod("1", start_s=110)
    ledger = Ledger.begin(100, [A]).take([one.read()])
    one.serve(5)
    ledger = ledger.take([one.read()])
    for table in "bcde":
        one.use(table)
    assert "a" not in one.strata
    ledger = ledger.take([one.read()])
    one.answered["a"] = one.tokens_seen["a"] = 0
    one.use("a")
    one.serve(9)
    assert total(ledger.take([one.read()]).arm(A)).tokens == 14


def test_a_warm_up_is_discarded(pod, total):
    one = pod("1", start_s=110)
    ledger = Ledger.begin(100, [A, B]).take([one.read()])
    one.serve(5)
    ledger = ledger.take([one.read()]).start(A)
    assert ledger.arm(A) == ArmEvidence()
    one.serve(6)
    assert total(ledger.take([one.read()]).arm(A)).tokens == 6


def test_blocks_hold_what_came_between_two_cuts(pod, total):
    one = pod("1", start_s=110)
    ledger, _ = Ledger.begin(100, [A, B]).take([one.read()]).cut()
    one.serve(5)
    ledger, first = ledger.take([one.read()]).cut()
    one.use("b")
    one.serve(6)
    ledger, washout = ledger.take([one.read()]).cut()
    one.serve(7)
    ledger, second = ledger.take([one.read()]).cut()
    assert {key: total(found).tokens for key, found in first.items()} == {A: 5}
    assert {key: total(found).tokens for key, found in washout.items()} == {B: 6}
    assert {key: total(found).tokens for key, found in second.items()} == {B: 7}
    assert ledger.cut()[1] == {}


def test_only_the_arms_that_matter_are_kept(pod):
    one = pod("1", start_s=110)
    one.serve(5)
    ledger = Ledger.begin(100, [B]).take([one.read()])
    assert ledger.totals == {}
    one.use("b")
    one.serve(5)
    assert set(ledger.take([one.read()]).totals) == {B}


def test_pods_and_strata_are_bounded(pod, total):
    ledger = Ledger.begin(100)
    for number in range(MAX_PODS + 10):
        one = pod(str(number), start_s=110 + number)
        one.serve(1)
        ledger = ledger.take([one.read()])
    assert len(ledger.seen) == MAX_PODS
    assert ledger.arm(A).pods == MAX_PODS
    forgotten = pod("0", start_s=110)
    forgotten.serve(1)
    ledger = ledger.take([forgotten.read()])
    assert total(ledger.arm(A)).requests == MAX_PODS + 10, "it is not counted twice"
    wide = pod("wide", start_s=500)
    for bucket in range(MAX_STRATA + 10):
        wide.serve(1, bucket=bucket)
    assert len(ledger.take([wide.read()]).arm(A).strata) == MAX_STRATA


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["serve", "serve", "serve", "read", "read", "restart", "use", "leave",
                         "come", "come"]),
        st.integers(0, 3),
        st.integers(1, 9),
    ),
    min_size=5,
    max_size=80,
)  # fmt: skip


class Truth:
    """To compare with the ledger: what each pod did, request by request, and who knows of it."""

    def __init__(self):
        self.ledger = Ledger.begin(1000.0)
        self.pods = {}
        self.pending = {}  # of each pod, what nobody has read yet
        self.read = {}  # of each pod, the start and arm that were read last
        self.sums = {ArmKey("c", table): RequestSums() for table in "abc"}
        self.restarts = dict.fromkeys(self.sums, 0)

    def take(self, places):
        readings = [self.pods[place].read() for place in places]
        self.ledger = self.ledger.take(readings)
        assert self.ledger.take(readings) == self.ledger, "a second look adds nothing"
        for place in places:
            one = self.pods[place]
            start_s, key = self.read.get(place, (one.start_s, one.key))
            self.restarts[key] += one.start_s > start_s
            for arm, sums in self.pending[place]:
                self.sums[arm] += sums
            self.pending[place] = []
            self.read[place] = (one.start_s, one.key)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_sums_are_the_truth_but_for_what_was_lost(steps, pod, total):
    """A crash loses what nobody had read; no more."""
    truth = Truth()
    for number, (what, which, amount) in enumerate(steps, start=1):
        clock, here = 1000.0 + number, list(truth.pods)
        if what == "come":
            truth.pods[number] = pod(str(number), start_s=clock, table="abc"[which % 3])
            truth.pending[number] = []
            continue
        if not here:
            continue
        place = here[which % len(here)]
        one = truth.pods[place]
        if what == "serve":
            sums = one.serve(amount, rounds=amount, seconds=amount / 4, bucket=1 + which)
            truth.pending[place].append((one.key, sums))
        elif what == "use":
            one.use("abc"[amount % 3])
        elif what == "restart":
            one.restart(clock)
            truth.pending[place] = []
        elif what == "leave":
            del truth.pods[place]
        elif what == "read":
            truth.take(here[which % len(here) :])  # those before it do not answer
    for key, sums in truth.sums.items():
        evidence = truth.ledger.arm(key)
        for name in RequestSums.__dataclass_fields__:
            assert getattr(total(evidence), name) == pytest.approx(getattr(sums, name))
            assert all(getattr(each, name) >= 0 for each in evidence.strata.values())
        assert evidence.restarts == truth.restarts[key]
        assert evidence.answered_requests == sums.requests
        assert sum(evidence.inter_token.counts) == sums.tokens
