"""O8: what a long trial costs: a table on eight engines for two hours, with forty strata.

`python -m bench.operator.long_trial [--seconds N]`: the operator's own poller, plan and status run
in simulated time, look by look, against engines that serve metrics over HTTP from another process.
The API server is a dictionary that stores what would be written; everything else is there.
"""

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx

from bench.operator.recommending import free_port, timed_callbacks
from bench.operator.report import Figures, percentile
from bench.operator.trial_engines import PATH_CLOCK, address
from bench.operator.world import NAMESPACE, resource
from specdecode_api import names
from specdecode_operator import trial
from specdecode_operator.engines.engine_client import open_engine_client
from specdecode_operator.engines.engine_poller import EnginePoller
from specdecode_operator.objects.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    TRIAL,
    ChildId,
    Manifest,
    child_id,
)
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import Plan, plan
from specdecode_operator.process.heap import frozen_heap
from specdecode_operator.process.run import THREAD_SWITCH_S
from specdecode_operator.settings import Settings
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.record.revisions import readable
from specdecode_operator.trial.record.stored import RecordMemory, recorded
from specdecode_operator.trial.strategies.context import EngineSnapshot
from specdecode_operator.trial.strategies.looks import Look

PODS = 8
DURATION_S = 7200.0
BEGIN_S = 1_800_000_000.0
NAME, UID = "o8", "uid-o8"
SETTINGS = Settings(engine_image="none")
MIB, KIB = 2**20, 2**10


@dataclass(slots=True)
class Store:
    """The API server's objects, and how much was written to them."""

    resource: Manifest
    children: dict[ChildId, Manifest] = field(default_factory=dict)
    pods: tuple[Manifest, ...] = ()
    trials: dict[str, Manifest] = field(default_factory=dict)
    revisions: dict[str, Manifest] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    """Bytes of each object of a trial and of each status, whenever it was written."""

    def observed(self, now_s: float) -> Observed:
        """The state as an operator sees it."""
        trials, revisions = tuple(self.trials.values()), tuple(self.revisions.values())
        at = datetime.fromtimestamp(now_s, UTC)
        return Observed(
            self.resource, dict(self.children), self.pods, at=at, trials=trials, revisions=revisions
        )

    def write(self, decided: Plan, new: Manifest) -> None:
        """Store what was decided, and the new status of the resource."""
        for write in decided.writes:
            self.children[child_id(write.manifest)] = write.manifest
        for manifest in decided.objects.revisions:
            self.revisions[manifest["metadata"]["name"]] = self._stored(manifest)
        for manifest in decided.objects.creates:
            metadata = manifest["metadata"] | {"generation": 1, "uid": f"uid-{len(self.trials)}"}
            live = self._stored(manifest | {"metadata": metadata})
            self.trials[manifest["metadata"]["name"]] = live
        for manifest, of_trial in decided.objects.statuses:
            name = manifest["metadata"]["name"]
            self.trials[name] = self._stored(self.trials[name] | {"status": of_trial})
        for manifest in decided.objects.deletes:
            kept = self.trials if manifest["kind"] == TRIAL.kind else self.revisions
            del kept[manifest["metadata"]["name"]]
        if new != self.resource.get("status"):
            self.resource = self._stored(self.resource | {"status": new})

    def _stored(self, manifest: Manifest) -> Manifest:
        text = json.dumps(manifest, separators=(",", ":"))
        self.sizes.append(len(text))
        stored: Manifest = json.loads(text)
        return stored


@dataclass(slots=True)
class SimulatedOperator:
    """Looks and reconciles as the operator does, with a clock that jumps to the next look."""

    poller: EnginePoller
    store: Store
    clock: httpx.AsyncClient
    now_s: float = BEGIN_S
    latest_s: float = -math.inf
    memory: RecordMemory | None = None
    look_cpu_s: list[float] = field(default_factory=list)
    """Processor time of each look at the participants of a trial, with its reconcile."""
    pairs: int = 0

    async def run(self, until_s: float) -> None:
        """Run a trial until it has ended."""
        while self.now_s < until_s:
            observed = self.store.observed(self.now_s)
            record = await asyncio.to_thread(_stored_record, observed, self.memory)
            if self.pairs and record.trial is None:
                return
            since_s = self.now_s - self.latest_s
            look = trial.next_look(observed, record, self.now_s, since_s)
            if look is None:
                await self.pass_time(1.0)
                await self.reconcile(None)
                continue
            await self.pass_time(max(look.due_s, 0.0))
            cpu_s = time.process_time()
            await self._look(look)
            if record.trial is not None:
                self.look_cpu_s.append(time.process_time() - cpu_s)
                evidence = record.trial.evidence
                self.pairs = max(self.pairs, len(getattr(evidence, "pairs", ())))

    async def reconcile(self, snapshot: EngineSnapshot | None) -> None:
        """Plan in a thread and write, as `Reconciler` does."""
        observed = self.store.observed(self.now_s)
        decided = await asyncio.to_thread(
            plan, observed, SETTINGS, self.now_s, snapshot, self.memory
        )
        assert decided.refused is None, decided.refused
        self.memory = decided.memory
        new = status(observed, decided, Outcome(), observed.at)
        await asyncio.to_thread(self.store.write, decided, new)

    async def _look(self, look: Look) -> None:
        self.latest_s = self.now_s
        snapshot = await self.poller.observe(UID, look, lambda: self.now_s)
        if snapshot.failures or snapshot.refusals:
            raise RuntimeError(f"engines failed: {snapshot.failures} {snapshot.refusals}")
        await self.reconcile(snapshot)

    async def pass_time(self, seconds: float) -> None:
        """Let the engines answer requests meanwhile."""
        self.now_s += seconds
        (await self.clock.put(PATH_CLOCK, json={"seconds": seconds})).raise_for_status()


async def long_trial(seconds: float = DURATION_S) -> Figures:
    """O8: processor time per look, longest callback, largest object and bytes written."""
    store = Store(_manifest(seconds, [1, 5]))
    bare = store.observed(BEGIN_S)
    settled = plan(bare, SETTINGS, BEGIN_S)
    store.write(settled, status(bare, settled, Outcome(), bare.at))
    store.pods = tuple(_pod(store.children.values(), number) for number in range(PODS))
    port = free_port()
    with _engines(store.children.values(), str(settled.config_hash), port):
        base = f"http://{address(0)}:{port}"
        async with (
            open_engine_client(port) as client,
            httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as clock,
        ):
            return await _measure(EnginePoller(client, time.monotonic), store, clock, seconds)


async def _measure(
    poller: EnginePoller, store: Store, clock: httpx.AsyncClient, seconds: float
) -> Figures:
    operator = SimulatedOperator(poller, store, clock)
    sys.setswitchinterval(THREAD_SWITCH_S)
    for _ in range(2):  # the first configuration is accepted
        await operator.reconcile(None)
    edited = _manifest(seconds, [5])["spec"]
    metadata = store.resource["metadata"] | {"generation": 2}
    store.resource = store.resource | {"spec": edited, "metadata": metadata}
    await operator.pass_time(0.0)  # the bench's own first request loads modules
    store.sizes.clear()
    with frozen_heap(), timed_callbacks() as callbacks:
        await operator.run(BEGIN_S + seconds + 600.0)
    left = _stored_record(store.observed(operator.now_s), operator.memory)
    if not operator.pairs or left.trial is not None:
        raise RuntimeError(f"the trial did not run to its end; {operator.pairs} pairs")
    looks = operator.look_cpu_s
    return {
        "trial_cpu_ms_per_look": round(1000 * sum(looks) / len(looks), 1),
        "trial_cpu_ms_per_look_p95": round(1000 * percentile(looks, 0.95), 1),
        "trial_looks": float(len(looks)),
        "trial_pairs": float(operator.pairs),
        "trial_callback_max_ms": round(max(callbacks.cpu_ms), 2),
        "trial_callbacks_above_5_ms": float(sum(each > 5.0 for each in callbacks.cpu_ms)),
        "trial_largest_object_kib": round(max(store.sizes) / KIB, 1),
        "trial_written_mib": round(sum(store.sizes) / MIB, 3),
    }


def _stored_record(observed: Observed, memory: RecordMemory | None) -> Record:
    """The state of trials, as it is stored."""
    return recorded(observed, readable(observed), memory)


def _manifest(seconds: float, candidates: list[int]) -> Manifest:
    """A guarded resource whose trials last for the whole time."""
    manifest = resource(NAME)
    adaptive = {
        "policy": "Goodput",
        "batchSizes": [{"from": 1, "candidateSteps": candidates}],
    }
    speculation = manifest["spec"]["speculation"] | {"numSteps": 5, "adaptive": adaptive}
    guard = {"maxDuration": f"{seconds:.0f}s", "minDuration": f"{seconds - 60:.0f}s"}
    rollout = {"mode": "Manual", "editPolicy": "Guarded", "guard": guard}
    more = {"replicas": PODS, "speculation": speculation, "rollout": rollout}
    metadata = manifest["metadata"] | {"uid": UID, "generation": 1, "resourceVersion": "1"}
    return manifest | {"metadata": metadata, "spec": manifest["spec"] | more}


def _pod(children: Iterable[Manifest], number: int) -> Manifest:
    (template,) = (each["spec"]["template"] for each in children if each["kind"] == DEPLOYMENT.kind)
    conditions = [{"type": "Ready", "status": "True"}]
    metadata = {"name": f"pod-{number}", "namespace": NAMESPACE, "uid": f"pod-uid-{number}"}
    return {
        "kind": POD.kind,
        "metadata": template["metadata"] | metadata,
        "spec": template["spec"],
        "status": {"phase": "Running", "podIP": address(number), "conditions": conditions},
    }


@contextmanager
def _engines(children: Iterable[Manifest], config_hash: str, port: int) -> Iterator[None]:
    """Serve the engines from another process."""
    (boot,) = (
        each["data"][names.BOOT_FILE_NAME] for each in children if each["kind"] == CONFIG_MAP.kind
    )
    description = json.dumps({"boot": boot, "config_hash": config_hash, "count": PODS})
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.operator.trial_engines", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(description + "\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "serving":
            raise RuntimeError(f"the engines did not start; exit code {process.wait()}")
        yield
    finally:
        process.kill()
        process.communicate()


def main() -> int:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.operator.long_trial")
    parser.add_argument("--seconds", type=float, default=DURATION_S, help="of the trial, simulated")
    options = parser.parse_args()
    figures = asyncio.run(long_trial(options.seconds))
    print(json.dumps({**figures, "load_average": os.getloadavg()[0]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
