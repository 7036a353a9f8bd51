"""A ledger as text, so that who keeps it may end and go on: small enough for a ConfigMap."""

import json
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

from specdecode_operator.fleet.ledger import Ledger, Seen
from specdecode_operator.judge.evidence import (
    ArmEvidence,
    ArmKey,
    Latencies,
    RequestSums,
    Stratum,
)

VERSION = 1
LIMIT_BYTES = 400_000
"""Below the mebibyte that a ConfigMap takes, with room for what else is in it."""

_COUNTS = (
    "answered_requests", "failed_requests", "preempted_requests", "restarts", "self_test_failures",
)  # fmt: skip

Document = dict[str, Any]


class BadCheckpoint(ValueError):
    """A text that is no ledger of this release; the message says what to do about it."""


def dump(ledger: Ledger, limit_bytes: int = LIMIT_BYTES) -> str:
    """Write a ledger.

    Where that takes more than `limit_bytes`, what each pod was read with last is left out: no
    request counts twice, but those between then and the first reading after are lost.
    """
    text = _text(_document(ledger))
    if len(text.encode()) <= limit_bytes:
        return text
    bare = {uid: replace(seen, arms=None) for uid, seen in ledger.seen.items()}
    return _text(_document(replace(ledger, seen=bare)))


def load(text: str) -> Ledger:
    """Read what `dump` wrote.

    Raises:
        BadCheckpoint: it is something else.
    """
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise ValueError(f"it has version {document['version']}, this release {VERSION}")
        return _ledger(document)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadCheckpoint(
            f"the record of a trial cannot be read: {error}; remove it, and the trial begins anew"
        ) from error


def _text(document: Document) -> str:
    return json.dumps(document, separators=(",", ":"))


def _document(ledger: Ledger) -> Document:
    keys = sorted({
        *ledger.followed, *ledger.totals, *ledger.block, *ledger.members,
        *(key for seen in ledger.seen.values() for key in (seen.key, *(seen.arms or ()))),
    })  # fmt: skip
    place = {key: index for index, key in enumerate(keys)}

    def by_place(arms: Mapping[ArmKey, ArmEvidence]) -> Document:
        return {str(place[key]): evidence_document(arm) for key, arm in arms.items()}

    return {
        "version": VERSION,
        "begun": ledger.begun_s,
        "forgotten": ledger.forgotten_s,
        "arms": [astuple(key) for key in keys],
        "followed": [place[key] for key in sorted(ledger.followed)],
        "totals": by_place(ledger.totals),
        "block": by_place(ledger.block),
        "members": {str(place[key]): sorted(uids) for key, uids in ledger.members.items()},
        "seen": {
            uid: [
                seen.start_s,
                place[seen.key],
                None if seen.arms is None else by_place(seen.arms),
            ]
            for uid, seen in ledger.seen.items()
        },
    }


def _ledger(document: Document) -> Ledger:
    keys = [ArmKey(*names) for names in document["arms"]]

    def by_key(arms: Mapping[str, Any]) -> dict[ArmKey, ArmEvidence]:
        return {keys[int(place)]: evidence_of(arm) for place, arm in arms.items()}

    return Ledger(
        begun_s=float(document["begun"]),
        followed=frozenset(keys[place] for place in document["followed"]),
        totals=by_key(document["totals"]),
        block=by_key(document["block"]),
        members={keys[int(at)]: frozenset(uids) for at, uids in document["members"].items()},
        seen={
            uid: Seen(start_s, keys[place], None if arms is None else by_key(arms))
            for uid, (start_s, place, arms) in document["seen"].items()
        },
        forgotten_s=float(document["forgotten"]),
    )


def evidence_document(arm: ArmEvidence) -> Document:
    """Write what is known of an arm; the number of its pods is left out."""
    return {
        "strata": [[*astuple(stratum), *astuple(sums)] for stratum, sums in arm.strata.items()],
        "first": _latencies(arm.first_token),
        "inter": _latencies(arm.inter_token),
        "counts": [getattr(arm, name) for name in _COUNTS],
    }


def evidence_of(document: Document) -> ArmEvidence:
    """Read what `evidence_document` wrote."""
    return ArmEvidence(
        strata={Stratum(*row[:5]): RequestSums(*row[5:]) for row in document["strata"]},
        first_token=_latencies_of(document["first"]),
        inter_token=_latencies_of(document["inter"]),
        **dict(zip(_COUNTS, document["counts"], strict=True)),
    )


def _latencies(latencies: Latencies) -> list[Any]:
    return [latencies.bounds_s, latencies.counts, latencies.sum_s]


def _latencies_of(row: list[Any]) -> Latencies:
    bounds_s, counts, sum_s = row
    return Latencies(tuple(bounds_s), tuple(counts), sum_s)
