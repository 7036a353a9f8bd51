"""Two real engines under load: they export what their clients saw."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_operator.engines.engine_client import open_engine_client
from specdecode_operator.engines.engine_poller import EnginePoller
from specdecode_operator.fleet import Ledger
from specdecode_operator.judge.evidence import ArmKey, RequestSums
from specdecode_operator.recommend import (
    Bounds,
    Current,
    NotYet,
    Recommendation,
    pool_of,
    recommend,
)
from specdecode_operator.trial.strategies.looks import Look

MODELS = Path(__file__).parents[3] / "examples" / "models"
HASH = "v1-0011223344556677"
BUCKETS = {"127.0.0.1": 3, "127.0.0.2": 1}
"""Addresses as of two pods, and the draft steps that each begins with."""

HTTP = httpx.Client(trust_env=False)


def boot(address, port):
    num_steps = BUCKETS[address]
    return {
        "config_hash": HASH,
        "model": {"path": str(MODELS / "target"), "served_name": "chat", "context_length": 256},
        "speculation": {
            "algorithm": "STANDALONE",
            "draft_path": str(MODELS / "draft"),
            "num_steps": num_steps,
            "policy": "static",
            "table": {"1": {"candidate_steps": [num_steps]}, "200": {"candidate_steps": [0, 1, 3]}},
        },
        "memory": {"kv_cache_bytes": 32 * 2**20},
        "scheduling": {"max_running_requests": 8},
        "server": {
            "host": address,
            "port": port,
            "management_port": port,
            "request_labels": ["code"],
        },
        "device": "cpu",
        "threads": 1,
    }


class Engine:
    """The real program; it may be killed and started again at its address."""

    def __init__(self, folder, address, port):
        self.address, self.port = address, port
        self._boot, self._log = folder / f"{address}.json", (folder / address).open("w")
        self._steps = None
        self._boot.write_text(json.dumps(boot(address, port)))
        self.start()

    def start(self):
        command = [sys.executable, "-m", "specdecode_engine", "--boot", str(self._boot)]
        self._process = subprocess.Popen(command, stderr=self._log)

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self):
        self.kill()
        self._log.close()

    @property
    def url(self):
        return f"http://{self.address}:{self.port}"

    @property
    def pod(self):
        return {"metadata": {"name": self.address, "uid": self.address},
                "status": {"podIP": self.address}}  # fmt: skip

    def is_ready(self):
        try:
            return HTTP.get(f"{self.url}/ready", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, tokens=24, label="", **fields):
        """One request; the decode steps and their tokens that its client receives."""
        body = {"prompt": "Speculative decoding is", "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True, **fields}  # fmt: skip
        head = {"X-Specdecode-Label": label}
        answer = HTTP.post(f"{self.url}/v1/completions", json=body, headers=head, timeout=60)
        usage = answer.raise_for_status().json()["usage"]
        return usage["completion_tokens"] - 1, usage["specdecode"]["decode_steps"]

    def is_decoding(self):
        """Whether a request has its first tokens, from decode steps under today's table."""
        now = HTTP.get(f"{self.url}/server_info", timeout=10).json()["snapshot"]
        before, self._steps = self._steps, now["decode_steps_total"]
        return now["running_requests"] == 1 and before is not None and self._steps > before

    def exchange(self, table):
        answer = HTTP.put(f"{self.url}/speculation/table", json={"table": table}, timeout=10)
        return answer.raise_for_status().json()["table_hash"]


@pytest.fixture(scope="module")
def port():
    """A port that is free at both addresses."""
    import socket

    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.2", one.getsockname()[1]))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def engines(tmp_path_factory, eventually, port):
    folder = tmp_path_factory.mktemp("engines")
    found = [Engine(folder, address, port) for address in BUCKETS]
    try:
        for engine in found:
            eventually(engine.is_ready, 180)
        yield found
    finally:
        for engine in found:
            engine.close()


@pytest.fixture
def read(engines, port):
    async def scrape():
        async with open_engine_client(port) as client:
            found = await client.scrape([engine.pod for engine in engines])
        assert not found.failures
        return found.readings

    return scrape


def total(evidence):
    return sum(evidence.strata.values(), RequestSums())


async def test_sums_are_what_clients_saw(engines, read):
    before = await read()
    ledger = Ledger.begin(before[0].start_s + 1e6).take(before)
    reported = {}
    for engine in engines:
        reported[engine.address] = [engine.ask(tokens) for tokens in (2, 9, 24, 40)]
    engines[0].ask(12, label="code", temperature=0.9)
    engines[0].ask(12, label="made up")
    readings = await read()
    ledger = ledger.take(readings)
    for reading in readings:
        assert reading.key.config_hash == HASH
        assert reading.facts["algorithm"] == "STANDALONE"
        assert reading.facts["device"].endswith("1 threads")
    found = total(ledger.arm(readings[1].key))
    tokens, rounds = zip(*reported[engines[1].address], strict=True)
    assert (found.requests, found.tokens, found.steps) == (4, sum(tokens), sum(rounds))
    assert found.seconds > 0
    labels = {(s.sampling, s.label) for s in ledger.arm(readings[0].key).strata}
    assert labels == {("greedy", ""), ("sampled", "code")}
    evidence = ledger.arm(readings[0].key)
    assert (evidence.answered_requests, evidence.failed_requests, evidence.pods) == (6, 0, 1)
    assert sum(evidence.first_token.counts) == 6


async def test_a_request_across_an_exchange_counts_for_neither(engines, read, eventually):
    engine = engines[0]
    before = await read()
    ledger = Ledger.begin(before[0].start_s + 1e6).take(before)
    old = before[0].key
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(engine.ask, 200)
        eventually(engine.is_decoding)
        new = ArmKey(HASH, engine.exchange({"1": {"candidate_steps": [1]}}))
        tokens, _ = running.result()
    engine.ask(24)
    readings = await read()
    ledger = ledger.take(readings)
    assert tokens == 199
    assert readings[0].key == new != old
    assert total(ledger.arm(old)).requests == 0
    assert total(ledger.arm(new)).requests == 1
    text = HTTP.get(f"{engine.url}/metrics", timeout=10).text
    assert "specdecode_request_sum_mixed_requests_total 1.0" in text
    assert engine.exchange({"1": {"candidate_steps": [3]},
                            "200": {"candidate_steps": [0, 1, 3]}}) == old.table_hash  # fmt: skip


async def test_looks_renew_the_table_of_a_trial_and_without_them_it_expires(
    engines, port, eventually
):
    engine = engines[0]
    table = {"1": TableEntry(candidate_steps=(1,))}
    wanted = table_hash(Policy.STATIC, table)

    def shown():
        return HTTP.get(f"{engine.url}/speculation/table", timeout=10).json()

    before = shown()["table_hash"]
    look = Look(0.0, (engine.pod,), {engine.address: table}, expires_after_s=20.0)
    async with open_engine_client(port) as client:
        poller = EnginePoller(client, time.monotonic)
        first = await poller.observe("uid", look, time.time)
        assert first.readings[engine.address].key.table_hash == wanted
        eventually(lambda: shown()["expiresAfterSeconds"] < 19.5, 30)
        again = await poller.observe("uid", look, time.time)
        assert (again.failures, again.refusals) == ({}, {})
        assert shown()["expiresAfterSeconds"] > 19.5
        await poller.observe("uid", replace(look, expires_after_s=0.2), time.time)
    eventually(lambda: shown()["table_hash"] == before, 30)
    assert shown()["expiresAfterSeconds"] is None


async def test_a_killed_engine_counts_anew_and_once(engines, read, eventually):
    engine = engines[1]
    before = await read()
    ledger = Ledger.begin(before[0].start_s + 1e6).take(before)
    key = before[1].key
    first = engine.ask(24)
    ledger = ledger.take(await read())
    engine.ask(24)  # nobody reads this before the end
    engine.kill()
    engine.start()
    eventually(engine.is_ready, 180)
    last = engine.ask(40)
    ledger = ledger.take(await read()).take(await read())
    evidence = ledger.arm(key)
    assert total(evidence).tokens == first[0] + last[0]
    assert evidence.restarts == 1


async def test_a_fleet_that_ran_two_numbers_of_draft_steps_gets_the_better_one_recommended(
    engines, read
):
    before = await read()
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(lambda engine: [engine.ask(200) for _ in range(4)], engines))
    pooled = pool_of(await read(), before)
    assert pooled is not None
    assert len(pooled.pods) == 2
    assert pooled.decode_steps > 500
    rates: dict[int, float] = {}
    for start in BUCKETS.values():
        current = Current(Policy.STATIC, {"1": TableEntry(candidate_steps=(start,))}, start)
        found = recommend(pooled, current, Bounds(frozenset({0, 1, 2, 3}), least_gain=0.0))
        assert isinstance(found, Recommendation | NotYet)
        bucket = next(each for each in found.buckets if each.bucket == 1)
        rates |= bucket.rates
        if isinstance(found, Recommendation):
            assert found.entries["1"].candidate_steps == (
                max(rates, key=lambda steps: rates[steps]),
            )
            assert found.key.model == str(MODELS / "target")
    assert rates.keys() == {1, 2, 3}, "0 was never run, and 2 lies between"
