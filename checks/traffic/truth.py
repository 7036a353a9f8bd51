"""Holds a status against the objects it speaks of, and the objects against what there should be.

The desired side comes from the operator's own pure builders, so a wrong hash or a child of an older
spec shows as well.
"""

from collections import Counter
from collections.abc import Iterator

from checks.traffic.seen import Seen, hash_of
from specdecode_operator.objects.kinds import Manifest, child_id
from specdecode_operator.objects.observed import controller_of, is_controlled_by
from specdecode_operator.objects.resource import parse_stored
from specdecode_operator.owned import Built, build, routed


def untruths(seen: Seen, engine_image: str) -> tuple[str, ...]:
    """Describe what the status reports and is not so."""
    generation = seen.resource["metadata"]["generation"]
    reported = seen.resource.get("status") or {}
    if reported.get("observedGeneration") != generation:
        return (
            f"the status is of generation {reported.get('observedGeneration')}, not {generation}",
        )
    built = build(parse_stored(seen.resource), engine_image)
    pairs = [*_counts(seen, built, reported), *_conditions(seen, built)]
    return tuple(
        f"{what} is {stated!r}, not {true!r}" for what, true, stated in pairs if stated != true
    )


def strays(seen: Seen, engine_image: str) -> tuple[str, ...]:
    """Sentences about children that are missing, twice, of nobody, or of no use any more.

    While pods of another configuration live, its boot file stays as well.
    """
    resource = parse_stored(seen.resource)
    built = routed([*build(resource, engine_image).children], resource, "", is_serving=True)
    uid = seen.resource["metadata"]["uid"]
    found = Counter(child_id(child) for child in seen.children)
    wanted = Counter(child_id(child) for child in built)
    kept = {f"{child.kind} {child.name}" for child in found - wanted if _is_used(seen, child.name)}
    sentences = [f"{child.kind} {child.name} is missing" for child in wanted - found]
    sentences += [f"{child.kind} {child.name} is one too many" for child in found - wanted]
    sentences = [text for text in sentences if text.removesuffix(" is one too many") not in kept]
    sentences += [
        f"{child['kind']} {child['metadata']['name']} has no owner or another's"
        for child in seen.children
        if not is_controlled_by(child, uid)
    ]
    return (*sentences, *_orphans(seen))


def is_settled(seen: Seen, engine_image: str) -> bool:
    """Whether the resource has come to rest: ready, routable, true, and nothing left over."""
    return (
        seen.condition("Ready").get("status") == "True"
        and seen.routable == seen.wanted
        and len(seen.pods) == seen.wanted
        and len(seen.router_pods) == len(seen.ready_routers) == seen.wanted_routers
        and seen.leads_to_routers == bool(seen.wanted_routers)
        and _running_sets(seen) <= 1
        and not untruths(seen, engine_image)
        and not strays(seen, engine_image)
    )


def _counts(seen: Seen, built: Built, reported: Manifest) -> Iterator[tuple[str, object, object]]:
    current = [pod for pod in seen.living_pods if hash_of(pod) == built.config_hash]
    yield "configHash", built.config_hash, reported.get("configHash")
    yield "replicas", len(seen.living_pods), reported.get("replicas")
    yield "readyReplicas", len(seen.ready_pods), reported.get("readyReplicas")
    yield "routableReplicas", seen.routable, reported.get("routableReplicas")
    yield "updatedReplicas", len(current), reported.get("updatedReplicas")
    if seen.wanted_routers:
        router = reported.get("router") or {}
        yield "router.readyReplicas", len(seen.ready_routers), router.get("readyReplicas")
        yield "router.isServing", seen.leads_to_routers, router.get("isServing")


def _conditions(seen: Seen, built: Built) -> Iterator[tuple[str, object, object]]:
    ready = [pod for pod in seen.ready_pods if hash_of(pod) == built.config_hash]
    is_complete = len(ready) == len(seen.living_pods) == seen.wanted
    # A change that waits for a repair is stalled: it does not reconcile.
    is_stalled = seen.condition("Stalled").get("status") == "True"
    expected = {
        "Available": bool(seen.ready_pods),
        "Progressing": True,
        "Reconciling": not is_complete and not is_stalled,
        "ConfigResolved": True,
    }
    if is_complete:
        expected |= {"Ready": True, "Stalled": False, "Degraded": False, "ModelReady": True}
    for kind, holds in expected.items():
        condition = seen.condition(kind)
        yield f"condition {kind}", "True" if holds else "False", condition.get("status")
        generation = seen.resource["metadata"]["generation"]
        yield f"generation of {kind}", generation, condition.get("observedGeneration")


def _is_used(seen: Seen, name: str) -> bool:
    """Whether a boot file's configuration is that of a pod, or of a set that may make one."""
    holders = (*seen.pods, *(s["spec"]["template"] for s in seen.replica_sets if _replicas(s)))
    return any(name.endswith(f"-{hash_of(holder)}") for holder in holders)


def _orphans(seen: Seen) -> Iterator[str]:
    """Objects of other controllers that hang on nothing, or on something that is gone."""
    uids = {child["metadata"]["uid"] for child in seen.children}
    replica_sets = (*seen.replica_sets, *seen.router_sets)
    sets = {each["metadata"]["uid"] for each in replica_sets}
    for parts, owners in (
        (replica_sets, uids),
        (seen.slices, uids),
        ((*seen.living_pods, *seen.living_routers), sets),
    ):
        for part in parts:
            owner = controller_of(part) or {}
            if owner.get("uid") not in owners:
                yield f"{part['kind']} {part['metadata']['name']} is an orphan"


def _running_sets(seen: Seen) -> int:
    return sum(bool(_replicas(each)) for each in seen.replica_sets)


def _replicas(replica_set: Manifest) -> int:
    wanted = replica_set["spec"].get("replicas", 0)
    return int(wanted) + int((replica_set.get("status") or {}).get("replicas", 0))
