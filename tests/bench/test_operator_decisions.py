"""What the bench's engines export: too little for a verdict at first, and then just enough."""

from prometheus_client.openmetrics.exposition import generate_latest

from bench.operator.decisions import LOOK_S, MORE, PODS, TOO_FEW, VERDICT
from bench.operator.engines import Engine
from bench.operator.report import ROWS
from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_operator.fleet import exposition
from specdecode_operator.fleet.reading import READ, reading_of
from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.recording import observe_open
from specdecode_operator.judge.trial_evidence import TurnEvidence

TABLE = {"1": {"candidate_steps": [7]}}


def judged(engines):
    """What the operator makes of both engines in the middle of a first turn."""
    arms = []
    for role, engine in zip(Role, engines, strict=True):
        text = generate_latest(engine.metrics.registry).decode()
        reading = reading_of(role.value, exposition.read(text, READ))
        arms.append(reading.arms[reading.key])
    return judge_turns(observe_open(TurnEvidence(), *arms), Guard(), 20.0)


def test_the_failures_suffice_for_the_guardrail_only_after_the_second_part():
    engines = [Engine("v1-c", Policy.GOODPUT, "old") for _ in range(PODS)]
    engines[1].take(TABLE)
    for engine in engines:
        engine.answer(TOO_FEW)
    before = judged(engines)
    assert before.baseline_requests == TOO_FEW
    assert before.verdict is not Verdict.ROLL_BACK
    for engine in engines:
        engine.answer(MORE)
    after = judged(engines)
    assert (after.verdict, after.reason) == (Verdict.ROLL_BACK, VERDICT[1])


def test_two_equal_tables_have_no_failures():
    engines = [Engine("v1-c", Policy.GOODPUT, "old") for _ in range(PODS)]
    for engine in engines:
        engine.answer(TOO_FEW + MORE)
    assert judged(engines).verdict is Verdict.CONTINUE


def test_an_engine_calls_a_table_as_the_operator_does():
    engine = Engine("v1-c", Policy.GOODPUT, "old")
    engine.take(TABLE)
    entries = {bound: TableEntry.model_validate(each) for bound, each in TABLE.items()}
    assert engine.table == table_hash(Policy.GOODPUT, entries) != engine.first_table


def test_the_target_is_one_look_and_a_second():
    (row,) = (row for row in ROWS if row.name == "decision_delay_s")
    assert row.at_most == LOOK_S + 1
