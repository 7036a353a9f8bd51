"""Resources, trials and totals as a cluster has them, and the page that is made of them."""

import json
import random
from dataclasses import asdict, dataclass
from html.parser import HTMLParser

import pytest

from specdecode_operator.fleet.reading import PositionTotals
from specdecode_operator.judge.evidence import Role, Stratum
from specdecode_operator.judge.evidence_document import to_document
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.trial_evidence import (
    ROLES,
    Cell,
    PodEvidence,
    PodWindow,
    PodWindows,
    RoleRow,
    Tails,
    TurnEvidence,
)
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.history import EngineTotals, from_activity
from specdecode_operator.plugin.report.view import render_page, report_page

HOSTILE = "</title><script>alert('x')</script><img src=x onerror=alert(1)> & \" ' \ud800 \u202e"


@dataclass
class Found:
    """What a parser finds in a page."""

    tags: list[tuple[str, dict[str, str | None]]]
    texts: list[str]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


class Collector(HTMLParser):
    """Keeps tags and texts in their order."""

    def __init__(self):
        super().__init__()
        self.found = Found([], [])

    def handle_starttag(self, tag, attrs):
        self.found.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.found.texts.append(data)


@pytest.fixture
def parsed():
    """Parse a page."""

    def parse(html):
        parser = Collector()
        parser.feed(html)
        parser.close()
        return parser.found

    return parse


@pytest.fixture
def page(parsed, now):
    """The parsed page of a resource."""

    def make(resource, **given):
        given.setdefault("history", from_activity(resource.get("status") or {}))
        return parsed(render_page(report_page(Gathered(resource, now, **given))))

    return make


@pytest.fixture
def activity():
    """`status.activity` with a number of half hours, of which some are idle."""

    def make(count=48, buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)):
        draw = random.Random(7)
        return {
            "until": "2026-11-21T12:00:00Z",
            "tokensPerSecond": [draw.randrange(900, 1200) for _ in range(count)],
            "acceptLengthHundredths": [
                0 if at % 19 == 5 else draw.randrange(210, 330) for at in range(count)
            ],
            "draftSteps": [
                {
                    "from": bucket,
                    "tenths": [
                        -1 if at % 17 == 3 else 40 // (place + 1) + draw.randrange(4)
                        for at in range(count)
                    ],
                }
                for place, bucket in enumerate(buckets)
            ],
        }

    return make


@pytest.fixture
def advice():
    """A recommendation for two batch sizes; the second one should stay as it is."""
    return {
        "table": [{"from": 1, "candidateSteps": [0, 3]}, {"from": 4, "candidateSteps": [1]}],
        "tableHash": "abc",
        "expectedGain": "+12.0%",
        "gainLow": "+8.0%",
        "gainHigh": "+15.0%",
        "decodeSteps": 2000,
        "validityKey": "key",
        "madeAt": "2026-11-21T10:00:00Z",
        "patchHint": "kubectl patch sdd chat -n default --type merge -p '{}'",
        "batchBuckets": [
            {"batchSize": 4, "decodeSteps": 1500, "best": 1, "rates": {"1": "50.0", "3": "25.0"}},
            {"batchSize": 8, "decodeSteps": 500, "rates": {"1": "NaN", "10": "20.0", "2": "30.0"}},
        ],
    }


@pytest.fixture
def totals():
    """Counters of engines with a constant rate of 1/2 at each of four positions."""
    positions = {
        (bucket, place): PositionTotals(1024.0 / 2**place, 512.0 / 2**place)
        for bucket in (1, 8)
        for place in (1, 2, 3, 4)
    }
    steps = {(1, 3): 30.0, (1, 1): 10.0, (8, 0): 5.0}
    return EngineTotals("counters of 2 of 2 engines since their start", steps, positions)


@pytest.fixture
def trial():
    """A SpecDecodeTrial with a status."""

    def make(name="chat-x7k2p", evidence=None, **status):
        found = {"phase": "Ended", "strategy": "Hot", "startedAt": "2026-11-21T10:00:00Z"} | status
        if evidence is not None:
            found["evidence"] = evidence
        return {
            "metadata": {
                "name": name,
                "namespace": "default",
                "creationTimestamp": "2026-11-21T10:00:00Z",
            },
            "spec": {"deployment": "chat", "candidate": {"pageSize": 32}},
            "status": found,
        }

    return make


@pytest.fixture
def turns():
    """Evidence of a trial in turns whose candidate needs `ratio` of the time."""

    def make(ratio=0.9, pairs=40, strata=2):
        draw = random.Random(11)
        names = tuple(
            Stratum(2 ** (at % 9), "greedy", "free", "short", f"l{at}") for at in range(strata)
        )
        counts = tuple(_pair(ratio * (1.0 + draw.gauss(0.0, 0.03)), strata) for _ in range(pairs))
        return _recorded(TurnEvidence(strata=names, tails=Tails(1, 1), pairs=counts))

    return make


@pytest.fixture
def separate_pods():
    """Evidence of a trial on separate pods whose candidate needs `ratio` of the time."""

    def make(ratio=0.9, pods=6, windows=12):
        draw = random.Random(13)
        found = tuple(
            PodWindows(f"{role.value}-{at}", role, tuple(
                _window(number, ratio if role is Role.CANDIDATE else 1.0, draw)
                for number in range(windows)
            ))
            for role in ROLES for at in range(pods)
        )  # fmt: skip
        evidence = PodEvidence(
            strata=(Stratum(8, "greedy", "free", "short"),),
            tails=Tails(1, 1),
            total=_pair(ratio, 1),
            pods=found,
        )
        return _recorded(evidence)

    return make


def _window(number, ratio, draw):
    log_ratio = round((ratio - 1.0 + draw.gauss(0.0, 0.01)) * 1e6)
    return PodWindow(number, 100, log_ratio, 1_000_000, 100, 30_000_000)


def _pair(ratio, strata):
    """One pair: 200 requests of 1000 tokens in each role and stratum."""
    numbers = [
        number for _ in ROLES for number in RoleRow(200, 30_000_000, 10, 200_000, 10_000, 200)
    ]
    for _ in range(strata):
        for role in ROLES:
            time = ratio if role is Role.CANDIDATE else 1.0
            numbers += Cell(200, 200_000, round(4_000 * 200_000 * time), 66_666)
    return tuple(numbers)


def _recorded(evidence):
    document = {
        "guard": asdict(Guard()),
        "elapsed_s": 3600.0,
        "verdict": "Promote",
        "reason": "Faster",
        "evidence": to_document(evidence),
    }
    return json.loads(json.dumps(document))
