"""Acts: tables too deep, better and equal, drafts good and bad, other algorithms."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from checks.traffic.load import Client
from checks.traffic.questions import LONG_QUESTIONS
from checks.traffic.reading import NAMESPACE
from checks.traffic.scene import NAME, Scene
from checks.traffic.seen import Seen
from checks.traffic.tally import Tally
from checks.traffic.victims import kill_container
from checks.trials.bursts import Bursts, sticky_clients
from checks.trials.foreign import write_foreign_draft
from demo.checkpoints import HOST_FOLDER, MODELS
from specdecode_operator.objects.kinds import RESOURCE, TRIAL, Manifest

WAIT_S = 1200.0
SWITCHBACK_WAIT_S = 7200.0
"""At least eight pairs of blocks of ten starts each."""
QUICK: Manifest = {
    "mode": "Manual",
    "editPolicy": "Guarded",
    "strategy": "Auto",
    "guard": {
        "minRequests": 30,
        "minStratumRequests": 5,
        "minDuration": "20s",
        "maxDuration": "15m",
        "warmUp": "5s",
        "coolDown": "0s",
    },
    "canary": {"replicas": 1, "baseline": "Stable"},
    "switchback": {"block": "10s", "washout": "2s", "minPairs": 3},
    "exploration": {"maxCandidateShare": "99%"},
}
FOREIGN, FOREIGN_IN_TURNS = "eagle3-foreign", "eagle3-foreign-in-turns"
FREE_CHOICE: list[Manifest] = [{"from": 1, "candidateSteps": [1, 16]}]
FIVE_STEPS: list[Manifest] = [{"from": 1, "candidateSteps": [5]}]
"""So many are drafted whatever is accepted: a draft that does not fit shows in full."""
LONG: Manifest = {"guard": {"maxDuration": "12h"}}
"""A pair of blocks takes at least twenty starts of a pod, and a busy node starts them slowly."""
EQUAL_TRIALS = 10
EQUAL: Manifest = {
    "guard": {"maxDuration": "2m", "minDuration": "1m"},
    "switchback": {"block": "4s", "washout": "1s"},
}
"""A verdict needs eleven pairs of blocks, which fit."""
ALGORITHMS: tuple[Manifest, ...] = (
    {"algorithm": "EAGLE3", "draft": {"uri": "pvc://models/eagle3"}, "numSteps": 5},
    {"algorithm": "NGRAM", "draft": None, "numSteps": 7},
    {"algorithm": "DFLASH", "draft": {"uri": "pvc://models/dflash"}, "numSteps": 7},
)
"""The first one is in force; each of the others is compared with the best before it."""
REPETITIVE = Client(0, True, True, tuple(each for each in LONG_QUESTIONS if each.temperature == 0))
"""Long greedy answers of the example target repeat themselves."""
TOO_DEEP: list[Manifest] = [{"from": 1, "candidateSteps": [16]}]
# Long enough at 1 draft step that its cost is known for every batch size, then at 16 for good.
STUBBORN: list[Manifest] = [
    {
        "from": 1,
        "candidateSteps": [1, 16],
        "upHysteresis": -8.0,
        "downHysteresis": -8.0,
        "warmupBatches": 1500,
    },
]


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of an act."""

    verdict: str
    reason: str
    requests: int
    seconds: float
    faults: tuple[str, ...] = ()
    gain: str = ""
    """Of decode time per token, where the arms were compared, and its interval."""


def too_deep(scene: Scene) -> Ended:
    """Leave only the most draft steps; the operator is killed in the middle of the trial."""
    _unguarded(scene, {"policy": "Goodput", "batchSizes": FREE_CHOICE})
    scene.patch({"speculation": {"adaptive": {"batchSizes": TOO_DEEP}}})
    scene.wait("trial that measures", lambda _: _measures(_latest(scene)), WAIT_S)
    trial = _latest(scene)
    kill_container(scene.operator_pod())
    ended = _verdict(scene)
    faults = [] if ended.verdict == "RolledBack" else [f"the bad table was {ended.verdict}"]
    if _latest(scene)["startedAt"] != trial["startedAt"]:
        faults.append("the trial restarted when the operator was killed")
    if _status(scene)["effective"]["reason"] == "FollowsSpec":
        faults.append("the bad table is in force")
    return _with(ended, faults)


def better_in_auto(scene: Scene) -> Ended:
    """Serve too deep by the spec; mode Auto finds the better table and puts it in force."""
    _unguarded(scene, {"policy": "Ema", "batchSizes": STUBBORN}, num_steps=1)
    scene.patch({"rollout": {"mode": "Auto", "editPolicy": "Immediate"}})
    before = _spec(scene)
    ended = _verdict(scene)
    faults = [] if ended.verdict == "Promoted" else [f"the better table was {ended.verdict}"]
    if _spec(scene) != before:
        faults.append("the spec was written")
    return _with(ended, faults)


def wrong_draft(scene: Scene) -> Ended:
    """Name a draft of another kind, which the engine refuses; a canary tries it."""
    return _with_draft(scene, "draft", "CheckpointInvalid", "Canary")


def foreign_draft(scene: Scene) -> Ended:
    """Name a draft that loads and hardly ever agrees with the target; a canary tries it."""
    write_foreign_draft(MODELS / "eagle3", HOST_FOLDER / FOREIGN)
    return _with_draft(scene, FOREIGN, "AcceptLengthFell", "Canary")


def foreign_draft_in_turns(scene: Scene) -> Ended:
    """Name such a draft; with two pods, Auto restarts them with it."""
    # In a folder of its own: what the act before has had rejected is not tried again.
    write_foreign_draft(MODELS / "eagle3", HOST_FOLDER / FOREIGN_IN_TURNS)
    return _with_draft(scene, FOREIGN_IN_TURNS, "AcceptLengthFell", "Auto")


def better_draft(scene: Scene) -> Ended:
    """Serve with a draft that hardly ever agrees; Switchback finds the one that does better."""
    write_foreign_draft(MODELS / "eagle3", HOST_FOLDER / FOREIGN)
    _unguarded(scene, {"policy": "Goodput", "batchSizes": FIVE_STEPS}, draft=FOREIGN)
    scene.patch({"rollout": {"strategy": "Switchback", **LONG}})
    scene.patch({"speculation": {"draft": {"uri": "pvc://models/eagle3"}}})
    ended = _verdict(scene, SWITCHBACK_WAIT_S)
    faults = [] if ended.verdict == "Promoted" else [f"the better draft was {ended.verdict}"]
    if _latest(scene)["strategy"] != "Switchback":
        faults.append("the drafts were not compared on the same pods")
    if _status(scene)["effective"]["reason"] != "FollowsSpec":
        faults.append("the better draft is not in force")
    return _with(ended, faults)


def best_algorithm(scene: Scene) -> Ended:
    """Serve with EAGLE-3 on one pod, edit it to NGRAM, then to DFlash; the best stays in force.

    One client alone sends requests, whose answers repeat themselves. At batch 1 a CPU decodes them
    with NGRAM at 1.5 times the rate of EAGLE-3, with DFlash at 0.85, each at its best number of
    draft steps. Policy Static measures no costs at start: a block lasts ten times as long as a
    pod's start.
    """
    _unguarded(scene, {"policy": "Static", "batchSizes": None}, num_steps=ALGORITHMS[0]["numSteps"])
    scene.patch({"replicas": 1, "rollout": {"strategy": "Auto", **LONG}})
    scene.settle()
    trials = []
    with scene.load.paused(), scene.load.more((REPETITIVE,)) as load:
        for candidate in ALGORITHMS[1:]:
            scene.patch({"speculation": candidate})
            trials.append(_verdict(scene, SWITCHBACK_WAIT_S))
        tally = load.tally
    best, in_force = best_of(trials), _status(scene)["speculation"]["algorithm"]
    scene.patch({"replicas": 2, "speculation": best})  # the spec may have one that lost
    scene.settle()
    faults = [f"an algorithm was {each.verdict} for {each.reason}" for each in _undecided(trials)]
    if in_force != best["algorithm"]:
        faults.append(f"{in_force} is in force, not the best, {best['algorithm']}")
    return Ended(
        ", ".join(each.verdict for each in trials),
        ", ".join(each.reason for each in trials),
        sum(each.requests for each in trials),
        round(sum(each.seconds for each in trials), 1),
        (*faults, *_failures_of(tally)),
        ", ".join(each.gain for each in trials),
    )


def best_of(trials: Sequence[Ended]) -> Manifest:
    """The algorithm that was promoted last, given the trials of all but the first."""
    pairs = zip(ALGORITHMS[1:], trials, strict=True)
    return [ALGORITHMS[0], *(each for each, ended in pairs if ended.verdict == "Promoted")][-1]


def _undecided(trials: Sequence[Ended]) -> list[Ended]:
    return [each for each in trials if each.verdict not in ("Promoted", "RolledBack")]


def equal_tables(scene: Scene) -> Ended:
    """Try ten tables that decide as the one in force does, under bursts and sticky content."""
    _unguarded(scene, {"policy": "Goodput", "batchSizes": FIVE_STEPS})
    scene.patch({"rollout": EQUAL})
    names = [f"equal-{number}" for number in range(EQUAL_TRIALS)]
    scene.cluster.kubectl("delete", "sdt", *names, "--ignore-not-found", "--wait")
    bursts, started = Bursts.drawn(seed=1), time.monotonic()
    with scene.load.more(sticky_clients(), bursts.is_on) as load:
        for number, name in enumerate(names):
            # With a single candidate there is nothing to decide, whatever the average weighs.
            table = [{**FIVE_STEPS[0], "emaAlpha": round(0.3 + number / 100, 2)}]
            manifest = _trial(name, {"speculation": {"adaptive": {"batchSizes": table}}})
            scene.cluster.kubectl("create", "-f", "-", given=json.dumps(manifest))
        scene.wait("end of all trials", lambda _: len(_ended(scene, names)) == len(names), 2700.0)
        tally = load.tally
    found = _ended(scene, names)
    verdicts = sorted({str(each["verdict"]) for each in found})
    faults = [*_misjudged(found), *_failures_of(tally)]
    requests = sum(map(_requests, found))
    reasons = sorted({str(each["reason"]) for each in found})
    seconds = round(time.monotonic() - started, 1)
    return Ended(", ".join(verdicts), ", ".join(reasons), requests, seconds, tuple(faults))


def _trial(name: str, candidate: Manifest) -> Manifest:
    return {
        "apiVersion": "specdecode.io/v1alpha1",
        "kind": "SpecDecodeTrial",
        "metadata": {"name": name},
        "spec": {"deployment": NAME, "candidate": candidate, "strategy": "Hot"},
    }


def _ended(scene: Scene, names: list[str]) -> list[Manifest]:
    """Statuses of the trials that have ended."""
    found = [_trial_status(scene, name) for name in names]
    return [each for each in found if each.get("phase") == "Ended"]


def _misjudged(ended: list[Manifest]) -> list[str]:
    """Verdicts against either arm, and trials too short for any verdict."""
    faults = [
        f"equal tables were {each['verdict']} for {each['reason']}: {each.get('message')}"
        for each in ended
        if each["verdict"] != "Inconclusive"
    ]
    few = sum(_requests(each) < 2 * QUICK["guard"]["minRequests"] for each in ended)
    return [*faults, *([f"{few} trials counted too few requests for a verdict"] if few else [])]


def _failures_of(further: Tally) -> list[str]:
    """What went wrong in a load of an act's own."""
    wrong = [f"{further.wrong_text} answers differ from plain decoding"] * bool(further.wrong_text)
    return [*further.failures, *wrong]


def _requests(trial: Manifest) -> int:
    arms = (trial.get("baseline") or {}, trial.get("candidate") or {})
    return sum(int(arm.get("requests", 0)) for arm in arms)


def _with_draft(scene: Scene, checkpoint: str, reason: str, strategy: str) -> Ended:
    _unguarded(scene, {"policy": "Goodput", "batchSizes": FIVE_STEPS})
    scene.patch({"rollout": {"strategy": strategy, **(LONG if strategy == "Auto" else {})}})
    scene.patch({"speculation": {"draft": {"uri": f"pvc://models/{checkpoint}"}}})
    ended = _verdict(scene)
    is_right = (ended.verdict, ended.reason) == ("RolledBack", reason)
    return _with(ended, [] if is_right else [f"it was {ended.verdict} for {ended.reason}"])


Act = Callable[[Scene], Ended]

ACTS: tuple[Act, ...] = (
    too_deep,
    better_in_auto,
    wrong_draft,
    foreign_draft,
    foreign_draft_in_turns,
    better_draft,
    equal_tables,
    best_algorithm,
)


def _unguarded(
    scene: Scene, adaptive: Manifest, num_steps: int | None = None, draft: str = "eagle3"
) -> None:
    """Put a speculation in force without a trial, then guard it; earlier verdicts stay."""
    scene.patch({"rollout": {"editPolicy": "Immediate", "mode": "Manual"}})
    clean = {"numSteps": None, "adaptive": {"policy": "Static", "batchSizes": None}}
    eagle3 = {"algorithm": "EAGLE3", "draft": {"uri": f"pvc://models/{draft}"}}
    scene.patch({"speculation": {**eagle3, **clean}})
    scene.patch({"speculation": {"numSteps": num_steps, "adaptive": adaptive}})
    scene.settle()
    scene.patch({"rollout": QUICK})
    scene.settle()  # an edit that the operator sees together with its guard is not tried


def _verdict(scene: Scene, wait_s: float = WAIT_S) -> Ended:
    """Wait until the trial that began last has ended."""
    before = (_status(scene).get("lastTrial") or {}).get("name")
    started = time.monotonic()

    def has_ended(seen: Seen) -> bool:
        last = (seen.resource.get("status") or {}).get("lastTrial") or {}
        return last.get("name") not in (None, before)

    scene.wait("verdict", has_ended, wait_s)
    ended = _trial_status(scene, _status(scene)["lastTrial"]["name"])  # the next one may run
    seconds = round(time.monotonic() - started, 1)
    gain = ended.get("interval") or {}
    shown = "{gain} ({low} to {high})".format_map(gain) if gain else ""
    return Ended(ended["verdict"], ended["reason"], _requests(ended), seconds, gain=shown)


def _latest(scene: Scene) -> Manifest:
    """Status of the trial that runs, or of the one that ended last; {} without any."""
    deployment = _status(scene)
    last = deployment.get("lastTrial") or {}
    name = deployment.get("activeTrial") or last.get("name")
    return _trial_status(scene, name) if name else {}


def _trial_status(scene: Scene, name: str) -> Manifest:
    status: Manifest = scene.reader.get(TRIAL.path(NAMESPACE, name)).get("status") or {}
    return status


def _measures(trial: Manifest) -> bool:
    return trial.get("phase") == "Measuring" and trial["measuredSeconds"] > 0


def _status(scene: Scene) -> Manifest:
    status: Manifest = scene.reader.get(RESOURCE.path(NAMESPACE, NAME)).get("status") or {}
    return status


def _spec(scene: Scene) -> Manifest:
    spec: Manifest = scene.reader.get(RESOURCE.path(NAMESPACE, NAME))["spec"]
    return spec


def _with(ended: Ended, faults: list[str]) -> Ended:
    return replace(ended, faults=tuple(faults))
