"""Verdicts on separate pods: the pod is the unit."""

import random
from dataclasses import replace

import pytest

from specdecode_operator.judge.evidence import Role, Stratum
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judge import judge_pods
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.separate_pods import quantile, upper_tail
from specdecode_operator.judge.trial_evidence import (
    ROLES,
    Cell,
    PodEvidence,
    PodWindow,
    PodWindows,
    RoleRow,
)

STRATA = (Stratum(8, "greedy", "free", "short"),)


def evidence(effect=0.0, pods=6, windows=24, spread=0.01, seed=1, accept=3.0, **row):
    draw = random.Random(seed)
    rows = []
    for role in ROLES:
        for pod in range(pods):
            centre = draw.gauss(0.0, spread) + (effect if role is Role.CANDIDATE else 0.0)
            found = tuple(
                PodWindow(
                    number,
                    200,
                    round(1e6 * (centre + draw.gauss(0.0, 0.02))),
                    10**8,
                    200,
                    3 * 10**7,
                )
                for number in range(windows)
            )
            rows.append(PodWindows(f"{role}-{pod}", role, found, sums(role, accept, windows * 200)))
    count = pods * windows * 200
    base = RoleRow(count, 150_000 * count, 0, 0, 0, count)
    cells = [sums(role, accept, count) for role in ROLES]
    total = (*base, *base._replace(**row), *cells[0], *cells[1])
    return PodEvidence(strata=STRATA, total=total, pods=tuple(rows))


def sums(role, accept, requests):
    accept = accept if role is Role.CANDIDATE else 3.0
    tokens = 1000 * requests
    return Cell(requests, tokens, round(12_000_000 * requests / accept), round(tokens / accept))


def verdict(found, elapsed_s=3600.0):
    judgement = judge_pods(found, Guard(), elapsed_s)
    return judgement.verdict, judgement.reason


def test_a_clear_gain_and_a_clear_loss_are_found_with_six_pods_per_arm():
    assert verdict(evidence(-0.08)) == (Verdict.PROMOTE, "Faster")
    assert verdict(evidence(0.08)) == (Verdict.ROLL_BACK, "Slower")


@pytest.mark.parametrize("pods", [1, 2, 4])
def test_fewer_than_five_pods_decide_nothing(pods):
    found = evidence(-0.3, pods)
    assert verdict(found, 300.0) == (Verdict.CONTINUE, "TooFewPods")
    assert verdict(found) == (Verdict.INCONCLUSIVE, "TooFewPods")


def test_fewer_than_five_pods_still_report_what_is_certain():
    assert verdict(evidence(pods=1, restarts=3)) == (Verdict.ROLL_BACK, "RestartsRail")


@pytest.mark.parametrize("batch", [8, 16, 32])
def test_a_draft_that_does_not_fit_is_found_on_one_pod_of_each_arm(batch):
    """A foreign draft: tokens per step fall from 3 to 1, and slow requests fill larger batches."""
    strata = (*STRATA, STRATA[0]._replace(batch_size=batch))[: 1 if batch == 8 else 2]
    row = RoleRow(40, 6_000_000, 0, 0, 0, 40)
    old, new = Cell(40, 8000, 32_000_000, 2700), Cell(40, 8000, 80_000_000, 7900)
    cells = (old, new) if batch == 8 else (old, Cell(), Cell(), new)
    total = (*row, *row, *(number for cell in cells for number in cell))
    pods = tuple(
        PodWindows(role, role, sums=cell) for role, cell in zip(ROLES, (old, new), strict=True)
    )
    found = verdict(PodEvidence(strata=strata, total=total, pods=pods), 60.0)
    assert found == (Verdict.ROLL_BACK, "AcceptLengthFell")


@pytest.mark.parametrize("pods", [1, 2, 6])
def test_a_fall_must_show_on_every_pod_of_the_candidate(pods):
    """Content that sticks to pods halves the tokens per step of some pods, not of all."""
    found = evidence(0.7, pods, accept=1.0)
    assert verdict(found) == (Verdict.ROLL_BACK, "AcceptLengthFell")
    *others, last = found.pods
    alike = replace(last, sums=others[0].sums)
    mixed = replace(found, pods=(*others, alike))
    assert verdict(mixed)[1] != "AcceptLengthFell"
    silent = replace(last, sums=Cell(2, 2000, 4_000_000, 667))
    rest = verdict(replace(found, pods=(*others, silent)))[1] == "AcceptLengthFell"
    assert rest is (pods > 1)


def test_between_two_looks_nothing_changes():
    assert verdict(evidence(-0.08, windows=2), 700.0)[0] is Verdict.CONTINUE
    at_look, after = evidence(-0.08, windows=6), evidence(-0.08, windows=6)
    assert judge_pods(at_look, Guard(), 1800.0).gain == judge_pods(after, Guard(), 2000.0).gain


def test_equal_pods_with_content_that_sticks_are_rarely_called_different():
    """Each pod's content differs for the whole trial: 8 % between pods."""
    wrong = sum(
        verdict(evidence(0.0, 5, windows, 0.08, seed))[0] in (Verdict.PROMOTE, Verdict.ROLL_BACK)
        for seed in range(150)
        for windows in (24,)
    )
    assert wrong <= 6


@pytest.mark.parametrize(
    ("alpha", "freedom", "value"),
    [(0.05, 4, 2.131847), (0.01, 8, 2.896459), (0.0025, 8, 3.832519), (0.01, 1, 31.820516),
     (0.01, 2, 6.964557), (0.01, 3, 4.540703), (0.025, 30, 2.042272)],
)  # fmt: skip
def test_quantiles_of_students_distribution_are_those_of_the_tables(alpha, freedom, value):
    assert quantile(alpha, freedom) == pytest.approx(value, rel=1e-5)
    assert upper_tail(value, freedom) == pytest.approx(alpha, rel=1e-4)
