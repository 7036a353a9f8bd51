"""A running engine takes another table: by its admin endpoint, by its mounted file, under load."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from specdecode_api.boot import SpeculationBoot
from specdecode_api.speculation import Algorithm, Policy
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.serve.control.tables import Tables

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "examples" / "models"
WIDE = {"1": {"candidate_steps": [0, 1, 3]}, "4": {"candidate_steps": [0, 1]}}
PLAIN = {"1": {"candidate_steps": [0]}}
SHALLOW = {"1": {"candidate_steps": [1]}, "7": {"candidate_steps": [3]}}
ONLY_3 = [{"from": 1, "candidateSteps": [3]}]
DEEP = {"1": {"candidate_steps": [1, 9]}}
BODY = {"prompt": "Speculative decoding is", "max_tokens": 24, "temperature": 0}


def boot_document(table: object, folder: Path) -> dict[str, Any]:
    return {
        "model": {"path": str(MODELS / "target"), "served_name": "chat", "context_length": 256},
        "speculation": {
            "algorithm": "STANDALONE",
            "draft_path": str(MODELS / "draft"),
            "num_steps": 3,
            "policy": "static",
            "table": table,
        },
        "memory": {"kv_cache_bytes": 32 * 2**20},
        "scheduling": {"max_running_requests": 8},
        "server": {"host": "127.0.0.1", "port": 0, "management_port": 0},
        "device": "cpu",
        "threads": 1,
    }


class Engine:
    """The real program, its boot file mounted through symlinks as Kubernetes does."""

    def __init__(self, folder: Path, tuned: object = None) -> None:
        self._folder = folder
        self._versions = 0
        self.write(WIDE, tuned=tuned)
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "specdecode_engine", "--boot", str(folder / "boot.json")],
            stderr=self._log,
        )

    def write(self, table: object, tuned: object = None, **changes: object) -> None:
        document = boot_document(table, self._folder) | changes
        document["speculation"] |= {"tuned": tuned} if tuned else {}
        self.write_text(json.dumps(document))

    def write_text(self, text: str) -> None:
        """Exchange the file as a kubelet does: a new folder, then the link is swapped."""
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir()
        (version / "boot.json").write_text(text)
        link = self._folder / "..new"
        link.symlink_to(version.name)
        os.replace(link, self._folder / "..data")
        if not (self._folder / "boot.json").is_symlink():
            (self._folder / "boot.json").symlink_to("..data/boot.json")

    def url(self) -> str | None:
        found = re.search(r"listening on \S+ port (\d+)", (self._folder / "log").read_text())
        return f"http://127.0.0.1:{found[1]}" if found else None

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url()}{path}", timeout=10)

    def put(self, table: object, expires_after_s: float | None = None) -> httpx.Response:
        return self.put_body({"table": table, "expiresAfterSeconds": expires_after_s})

    def put_body(self, body: object) -> httpx.Response:
        return httpx.put(f"{self.url()}/speculation/table", json=body, timeout=10)

    def delete(self) -> httpx.Response:
        return httpx.delete(f"{self.url()}/speculation/table", timeout=10)

    def results(self) -> dict[str, float]:
        """What became of tables, by result."""
        lines = re.findall(
            r'table_reloads_total\{result="(\w+)"\} (\S+)', self.get("/metrics").text
        )
        return {result: float(count) for result, count in lines}

    def remaining_s(self) -> float:
        """Seconds until the table in force expires; infinite if it does not."""
        left = self.get("/speculation/table").json()["expiresAfterSeconds"]
        return float("inf") if left is None else float(left)

    def is_ready(self) -> bool:
        try:
            return self.url() is not None and self.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def table(self) -> dict[str, dict[str, object]]:
        entries = self.get("/speculation/table").json()["entries"]
        return {bound: entry["candidate_steps"] for bound, entry in entries.items()}

    def num_steps(self) -> int:
        return int(self.get("/server_info").json()["snapshot"]["num_steps"])

    def close(self) -> None:
        assert self._process.poll() is None, "the engine did not live through it"
        self._process.kill()
        self._process.wait()
        self._log.close()


class Load:
    """Requests without a pause, from several threads; every answer is kept."""

    def __init__(self, url: str, threads: int) -> None:
        self._url = url
        self._is_over = threading.Event()
        self.answers: list[str] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._is_over.is_set():
                answer = client.post(f"{self._url}/v1/completions", json=BODY)
                if answer.status_code == 200:
                    self.answers.append(answer.json()["choices"][0]["text"])
                else:
                    self.failures.append(answer.text)

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)


@pytest.fixture(scope="module")
def engine(tmp_path_factory, eventually):
    engine = Engine(tmp_path_factory.mktemp("boot"))
    eventually(engine.is_ready, 120)
    yield engine
    engine.close()


@pytest.fixture
def load(engine):
    load = Load(engine.url(), threads=2)
    yield load
    load.stop()
    assert not load.failures
    assert len(set(load.answers)) == 1


def test_a_table_is_exchanged_by_the_admin_endpoint_under_load(engine, load, eventually):
    assert engine.put(WIDE).status_code == 200
    eventually(lambda: engine.num_steps() == 3, 30)
    assert engine.put(PLAIN).json()["entries"]["1"]["candidate_steps"] == [0]
    eventually(lambda: engine.num_steps() == 0, 30)
    assert engine.put({"batchSizes": ONLY_3}).status_code == 200
    eventually(lambda: engine.num_steps() == 3, 30)
    seen = len(load.answers)
    eventually(lambda: len(load.answers) >= seen + 4, 30)


def test_a_table_is_exchanged_by_its_mounted_file_under_load(engine, load, eventually):
    engine.write(SHALLOW)
    eventually(lambda: engine.table() == {"1": [1], "7": [3]}, 30)
    eventually(lambda: engine.num_steps() == 1, 30)
    engine.write(WIDE)
    eventually(lambda: engine.table() == {"1": [0, 1, 3], "4": [0, 1]}, 30)
    assert engine.get("/speculation/table").json()["source"] == "changed file"
    eventually(lambda: engine.num_steps() == 3, 30)


@pytest.mark.parametrize(
    ("table", "status", "message"),
    [
        ([1, 3], 400, "object"),
        ({"1": {"candidate_steps": []}, "x": 1, "8": {"ema_alfa": 2}}, 400, "ema_alpha"),
        ({"candidate_steps": [1, 3]}, 400, '"1"'),
        (DEEP, 409, "[9]"),
        (WIDE | {"strategy": "ema"}, 409, "policy"),
    ],
)
def test_a_bad_table_is_refused_and_the_old_one_stays(engine, table, status, message):
    assert engine.put(WIDE).status_code == 200
    answer = engine.put(table)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert engine.table() == {"1": [0, 1, 3], "4": [0, 1]}
    assert message in engine.get("/speculation/table").json()["latest_refusal"]


def test_a_file_whose_start_depth_is_gone_is_refused(engine, eventually):
    engine.write(PLAIN)
    refused = "num_steps 3 is in no entry"
    eventually(lambda: refused in str(engine.get("/speculation/table").json()), 30)
    assert engine.table() != {"1": [0]}
    engine.write(WIDE)


def test_a_tuned_table_comes_and_goes_with_the_file(engine, load, eventually):
    engine.write(WIDE)
    eventually(lambda: engine.table() == {"1": [0, 1, 3], "4": [0, 1]}, 30)
    engine.write(WIDE, tuned=PLAIN)
    eventually(lambda: engine.table() == {"1": [0]}, 30)
    assert engine.get("/speculation/table").json()["source"] == "tuned table of the boot file"
    assert engine.get("/server_info").json()["needs_restart"] == []
    engine.write(WIDE, tuned=DEEP)
    eventually(lambda: engine.table() == {"1": [0, 1, 3], "4": [0, 1]}, 30)
    refused = "candidate_steps [9] are not among [0, 1, 3], the draft steps"
    eventually(lambda: refused in engine.get("/speculation/table").text, 30)
    engine.write(WIDE, tuned=SHALLOW)
    eventually(lambda: engine.table() == {"1": [1], "7": [3]}, 30)
    engine.write(WIDE)
    eventually(lambda: engine.table() == {"1": [0, 1, 3], "4": [0, 1]}, 30)


@pytest.mark.parametrize(
    ("tuned", "in_force", "refused"),
    [(PLAIN, [0], None), (DEEP, [0, 1, 3], "candidate_steps [9]")],
)
def test_an_engine_starts_with_its_tuned_table_if_it_can(
    tmp_path, eventually, tuned, in_force, refused
):
    engine = Engine(tmp_path, tuned=tuned)
    try:
        eventually(engine.is_ready, 120)
        assert engine.table()["1"] == in_force
        message = engine.get("/speculation/table").json()["latest_refusal"]
        assert message is None if refused is None else refused in message
    finally:
        engine.close()


def test_a_bad_file_is_refused_and_the_old_table_stays(engine, eventually):
    assert engine.put(WIDE).status_code == 200
    engine.write({"1": {"candidate_steps": [True]}})
    refusal = "candidate_steps"
    eventually(
        lambda: (
            refusal
            in (engine.get("/server_info").json()["speculation_table"]["latest_refusal"] or "")
        ),
        30,
    )
    assert engine.table() == {"1": [0, 1, 3], "4": [0, 1]}
    metrics = engine.get("/metrics").text
    assert 'specdecode_table_reloads_total{result="refused"}' in metrics
    assert 'specdecode_table_reloads_total{result="applied"}' in metrics


def test_a_boot_file_that_nests_too_deep_is_refused_and_the_next_one_is_read(engine, eventually):
    engine.write_text("[" * 100_000)
    refusal = "boot.json is not valid JSON"
    eventually(lambda: refusal in str(engine.get("/speculation/table").json()), 30)
    engine.write(SHALLOW)
    eventually(lambda: engine.table() == {"1": [1], "7": [3]}, 30)
    engine.write(WIDE)
    eventually(lambda: engine.table() == {"1": [0, 1, 3], "4": [0, 1]}, 30)


def test_what_only_a_restart_takes_up_is_reported(engine, eventually):
    engine.write(WIDE, threads=2)
    eventually(lambda: engine.get("/server_info").json()["needs_restart"] == ["threads"], 30)
    engine.write(WIDE)
    eventually(lambda: engine.get("/server_info").json()["needs_restart"] == [], 30)


def test_a_table_with_an_expiry_returns_to_the_lasting_one_under_load(engine, load, eventually):
    lasting = engine.put(WIDE).json()["table_hash"]
    before = engine.results().get("expired", 0)
    answer = engine.put(PLAIN, expires_after_s=2).json()
    assert 0 < answer["expiresAfterSeconds"] <= 2
    assert answer["lasting_table_hash"] == lasting != answer["table_hash"]
    eventually(lambda: engine.table() == {"1": [0, 1, 3], "4": [0, 1]}, 30)
    eventually(lambda: engine.num_steps() == 3, 30)
    assert engine.results()["expired"] == before + 1
    assert engine.remaining_s() == float("inf")


def test_an_expiry_is_renewed_without_a_reload(engine, eventually):
    engine.put(WIDE)
    engine.put(PLAIN, expires_after_s=30)
    before = engine.results()
    for _ in range(3):
        eventually(lambda: engine.remaining_s() < 29.5, 30)
        assert engine.put(PLAIN, expires_after_s=30).json()["expiresAfterSeconds"] > 29.5
    after = engine.results()
    assert after["renewed"] == before.get("renewed", 0) + 3
    assert after["applied"] == before["applied"]
    assert engine.delete().json()["table_hash"] == engine.put(WIDE).json()["table_hash"]


def test_a_table_without_expiry_becomes_the_lasting_one(engine):
    engine.put(WIDE)
    engine.put(PLAIN, expires_after_s=30)
    engine.put(PLAIN)
    assert engine.remaining_s() == float("inf")
    assert engine.delete().json()["entries"]["1"]["candidate_steps"] == [0]


def test_a_removed_table_ends_at_once_and_once(engine):
    engine.put(WIDE)
    engine.put(PLAIN, expires_after_s=600)
    before = engine.results().get("removed", 0)
    for _ in range(2):
        answer = engine.delete()
        assert answer.status_code == 200
        assert answer.json()["entries"]["1"]["candidate_steps"] == [0, 1, 3]
    assert engine.results()["removed"] == before + 1


def test_a_changed_file_ends_a_table_with_an_expiry(engine, eventually):
    engine.put(PLAIN, expires_after_s=600)
    engine.write(SHALLOW)
    eventually(lambda: engine.table() == {"1": [1], "7": [3]}, 30)
    assert engine.remaining_s() == float("inf")
    engine.write(WIDE)
    eventually(lambda: engine.table() == {"1": [0, 1, 3], "4": [0, 1]}, 30)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "table is missing"),
        (WIDE, "table is missing"),
        ([], "body is []"),
        ({"table": WIDE, "expiresAfterSeconds": 0}, "expiresAfterSeconds is 0"),
        ({"table": WIDE, "expiresAfterSeconds": -1}, "expiresAfterSeconds is -1"),
        ({"table": WIDE, "expiresAfterSeconds": "5"}, 'expiresAfterSeconds is "5"'),
        ({"table": WIDE, "expiresAfterSeconds": True}, "expiresAfterSeconds is true"),
        ({"table": WIDE, "expiresAfterSeconds": 604801}, "less than or equal to 604800"),
        ({"table": WIDE, "expires": 5}, "expires is 5"),
    ],
)
def test_a_bad_offer_of_a_table_is_refused_with_the_field(engine, body, error):
    engine.put(WIDE)
    answer = engine.put_body(body)
    assert answer.status_code == 400
    assert error in answer.json()["error"]["message"]
    assert engine.remaining_s() == float("inf")


def test_a_refused_table_leaves_the_expiry_of_the_one_in_force(engine):
    engine.put(WIDE)
    engine.put(PLAIN, expires_after_s=600)
    assert engine.put(DEEP, expires_after_s=5).status_code == 409
    assert 500 < engine.remaining_s() <= 600
    engine.delete()


def test_a_body_over_the_limit_is_refused_before_it_is_parsed(engine):
    answer = engine.put_body({"table": WIDE, "padding": "x" * (256 * 1024)})
    assert answer.status_code == 413
    assert "at most 262144 bytes" in answer.json()["error"]["message"]


async def test_an_engine_without_a_table_returns_to_its_steps_at_start():
    speculation = SpeculationBoot(
        algorithm=Algorithm.STANDALONE, draft_path="/d", num_steps=2, policy=Policy.STATIC
    )
    reloaded: list[RangeTable] = []
    results: list[str] = []

    async def reload(table: RangeTable) -> None:
        reloaded.append(table)

    tables = Tables(speculation, reload, results.append)
    at_start = tables.table_hash
    await tables.apply_document(PLAIN, "test", expires_after_s=0.05)
    async with asyncio.timeout(10):
        while results != ["applied", "expired"]:
            await asyncio.sleep(0.01)
    assert reloaded[-1].candidates() == (2,)
    assert reloaded[-1].table_hash == tables.table_hash == at_start
    assert tables.describe()["source"] == "boot file or flags"


def test_every_table_expires_though_the_loop_of_the_server_may_call_timers_early():
    """The timers of uvloop count whole milliseconds: without care, one table in 500 stayed."""
    speculation = SpeculationBoot(
        algorithm=Algorithm.STANDALONE, draft_path="/d", num_steps=2, policy=Policy.STATIC
    )
    results: list[str] = []

    async def reload(table: RangeTable) -> None:
        del table

    async def expire_many() -> None:
        found = [Tables(speculation, reload, results.append) for _ in range(2000)]
        for number, tables in enumerate(found):
            await tables.apply_document(PLAIN, "test", expires_after_s=0.2 + number * 1e-4)
        async with asyncio.timeout(30):
            while results.count("expired") < len(found):
                await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(expire_many())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"table": {"1": 3}, "table": {"1": 1}}', "table"),
        ('{"table": {"1": {"ema_alpha": 1, "ema_\\u0061lpha": 0}}}', "table.1.ema_alpha"),
        ('{"table": {"batchSizes": [{}, {"from": 1, "from": 8}]}}', "table.batchSizes[1].from"),
    ],
    ids=["body", "escaped", "list"],
)
def test_a_key_that_is_given_twice_is_refused_with_its_place(engine, text, place):
    before = engine.get("/speculation/table").json()["entries"]
    answer = httpx.put(f"{engine.url()}/speculation/table", content=text, timeout=10)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (place, "duplicate_key")
    assert error["message"] == f"{place} is given twice; remove one"
    assert engine.get("/speculation/table").json()["entries"] == before


def test_text_that_is_not_json_is_refused(engine):
    answer = httpx.put(f"{engine.url()}/speculation/table", content=b"{", timeout=10)
    assert answer.status_code == 400
    assert "not valid JSON" in answer.json()["error"]["message"]
