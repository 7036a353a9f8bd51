"""Pause, resume, promote and abort by annotations with the id of a trial."""


def running(made, speculate):
    made.edit(speculation=speculate(3))
    assert made.run(60, until=lambda w: w.record.trial)
    return made.record.trial.target.id


def test_abort_puts_everything_back_and_does_not_try_again(world, speculate):
    made = world()
    target = running(made, speculate)
    made.annotate(abort=target)
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("Aborted", "AbortedByHand")
    made.run(300)
    assert made.record.trial is None
    assert {made.depth(engine) for engine in made.engines.values()} == {5}
    request = made.status["rolloutRequests"][0]
    assert (request["verb"], request["id"], request["isDone"]) == ("abort", target, True)


def test_promote_ends_a_trial_at_once(world, speculate):
    made = world()
    target = running(made, speculate)
    made.annotate(promote=target)
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("Promoted", "PromotedByHand")
    assert {made.depth(engine) for engine in made.engines.values()} == {3}


def test_promote_takes_what_was_rejected(world, speculate):
    made = world()
    made.speeds = {3: 0.04}
    made.edit(speculation=speculate(3))
    ended = made.run_to_end()
    assert ended.verdict == "RolledBack"
    made.annotate(promote=ended.id)
    made.run(30)
    assert made.status["effective"]["reason"] == "FollowsSpec"


def test_a_pause_stops_the_measuring_and_a_resume_goes_on(world, speculate):
    made = world()
    target = running(made, speculate)
    made.run(60)
    made.annotate(pause=target)
    made.reconcile()
    assert made.status["trial"]["phase"] == "Paused"
    seen = made.record.trial.measured_s
    made.run(5000)
    assert made.record.trial.measured_s == seen
    made.annotate(resume=target)
    made.run(120)
    assert made.record.trial is None or made.record.trial.measured_s > seen


def test_a_wrong_id_does_nothing_and_says_so(world, speculate):
    made = world()
    target = running(made, speculate)
    made.annotate(abort="0123456789abcdef")
    made.run(30)
    assert made.record.trial.target.id == target
    request = made.status["rolloutRequests"][0]
    assert not request["isDone"]
    assert "does nothing" in request["message"]
    made.annotate(abort=target)
    made.reconcile()
    assert made.status["rolloutRequests"][0]["isDone"]
