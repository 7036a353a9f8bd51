"""Downloads from a hub, with everything that can go wrong on the way."""

import errno
import hashlib
import json
import shutil
import threading
from collections import namedtuple

import pytest

from specdecode_api.model_uri import HubLocation, parse_uri
from specdecode_api.report import ModelRole, ModelState, TerminationReason
from specdecode_engine.fetch.download import Download, ModelFolder
from specdecode_engine.fetch.hub import FetchError, Hub
from specdecode_engine.fetch.progress import Counts

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")
LARGE = "model.safetensors"


@pytest.fixture
def download(hub, tmp_path):
    """A download from the hub into a folder of this test."""

    def make(uri="hf://org/tiny", token=None, endpoint=None):
        location = parse_uri(uri)
        assert isinstance(location, HubLocation)
        return Download(
            ModelRole.TARGET,
            uri,
            location,
            tmp_path / "cache",
            Hub(endpoint or hub.url, token),
            Counts({ModelRole.TARGET: uri}),
        )

    return make


def report(download):
    (model,) = download.counts.progress().models
    return model


def names(folder):
    return {path.name for path in folder.path.iterdir() if not path.name.startswith(".")}


def fails(download):
    with pytest.raises(FetchError) as caught:
        download.run()
    return caught.value.reason, str(caught.value)


def test_what_an_engine_reads_arrives_and_nothing_else(tiny, download, files):
    started = download()
    folder = started.run()
    assert folder.path.parts[-4:] == ("hf", "org", "tiny", COMMIT)
    assert names(folder) == set(NEEDED)
    for name in NEEDED:
        assert folder.final(name).read_bytes() == files[name]
    total = sum(len(files[name]) for name in NEEDED)
    reported = report(started)
    assert (reported.state, reported.revision) == (ModelState.READY, COMMIT)
    assert (reported.bytes_done, reported.bytes_total) == (total, total)
    assert not folder.partial("").exists()


@pytest.mark.parametrize("revision", ["main", "v1", "refs/pr/1", COMMIT])
def test_branches_tags_and_commits_are_revisions(revision, tiny, download):
    tiny.branches |= {"v1": COMMIT, "refs/pr/1": COMMIT}
    assert download(f"hf://org/tiny@{revision}").run().path.name == COMMIT


def test_a_complete_commit_costs_no_request(hub, tiny, download):
    download().run()
    hub.requests.clear()
    again = download(f"hf://org/tiny@{COMMIT}")
    again.run()
    assert hub.requests == []
    assert report(again).state is ModelState.READY


def test_a_complete_branch_costs_one_request_and_follows_the_branch(hub, tiny, download, files):
    first = download().run()
    hub.requests.clear()
    assert download().run() == first
    assert len(hub.requests) == 1
    tiny.commits[OTHER_COMMIT] = files | {"config.json": b"{}"}
    tiny.branches["main"] = OTHER_COMMIT
    assert download().run().final("config.json").read_bytes() == b"{}"
    assert first.final("config.json").read_bytes() == files["config.json"]


def test_a_transfer_that_breaks_off_is_taken_up_in_the_same_try(large, hub, tiny, download):
    hub.faults.cut[LARGE] = [15_000_000]
    folder = download().run()
    assert folder.final(LARGE).read_bytes() == large
    assert {asked for asked in hub.ranges() if asked} == {f"bytes={10 * 2**20}-"}


def test_a_killed_download_is_taken_up_by_the_next(hub, tiny, download, files):
    folder = ModelFolder.of(download().cache, "org/tiny", COMMIT)
    folder.open()
    folder.partial(LARGE).write_bytes(files[LARGE][:70_000])
    download().run()
    assert folder.final(LARGE).read_bytes() == files[LARGE]
    assert {asked for asked in hub.ranges() if asked} == {"bytes=70000-"}


def test_a_server_without_ranges_sends_all_again(hub, tiny, download, files):
    hub.faults.no_ranges = True
    folder = ModelFolder.of(download().cache, "org/tiny", COMMIT)
    folder.open()
    folder.partial(LARGE).write_bytes(b"x" * 70_000)
    started = download()
    started.run()
    assert folder.final(LARGE).read_bytes() == files[LARGE]
    assert report(started).bytes_done == report(started).bytes_total


@pytest.mark.parametrize("name", ["config.json", LARGE])
def test_a_changed_file_is_fetched_once_more(name, hub, tiny, download, files):
    hub.faults.change[name] = 1
    assert download().run().final(name).read_bytes() == files[name]


@pytest.mark.parametrize("name", ["config.json", LARGE])
def test_a_file_that_stays_changed_is_refused(name, hub, tiny, download):
    hub.faults.change[name] = 100
    started = download()
    reason, message = fails(started)
    assert reason is TerminationReason.CHECKSUM_MISMATCH
    assert name in message
    folder = ModelFolder.of(started.cache, "org/tiny", COMMIT)
    assert folder.complete_bytes() is None
    assert not folder.final(name).exists()


def test_rubbish_in_the_partial_file_is_found_out(hub, tiny, download, files):
    folder = ModelFolder.of(download().cache, "org/tiny", COMMIT)
    folder.open()
    folder.partial(LARGE).write_bytes(b"x" * 70_000)
    download().run()
    assert folder.final(LARGE).read_bytes() == files[LARGE]


def test_a_partial_file_that_is_too_long_is_dropped(tiny, download, files):
    folder = ModelFolder.of(download().cache, "org/tiny", COMMIT)
    folder.open()
    folder.partial(LARGE).write_bytes(files[LARGE] + b"more")
    assert download().run().final(LARGE).read_bytes() == files[LARGE]


def test_a_file_that_somebody_cut_is_fetched_again(hub, tiny, download, files):
    folder = download().run()
    folder.final(LARGE).write_bytes(b"short")
    assert download(f"hf://org/tiny@{COMMIT}").run().final(LARGE).read_bytes() == files[LARGE]


PRIVATE = {"token": "right", "is_gated": False}
GATED = {"token": "right", "is_gated": True}


@pytest.mark.parametrize(
    ("settings", "token", "reason", "words"),
    [
        (PRIVATE, None, TerminationReason.UNAUTHORIZED, "download.tokenSecret"),
        (PRIVATE, "wrong", TerminationReason.UNAUTHORIZED, "refuses the token (HTTP 401)"),
        (GATED, None, TerminationReason.UNAUTHORIZED, "download.tokenSecret"),
        (GATED, "wrong", TerminationReason.UNAUTHORIZED, "accept its terms"),
    ],
)
def test_a_model_that_one_may_not_read(settings, token, reason, words, hub, download, files):
    hub.add("org/tiny", files, **settings)
    found, message = fails(download(token=token))
    assert found is reason
    assert words in message
    assert message.startswith("hf://org/tiny: ")
    assert "right" not in message
    assert "wrong" not in message


def test_a_token_opens_a_private_model_and_goes_nowhere_else(hub, download, files):
    hub.add("org/tiny", files, **PRIVATE)
    assert download(token="right").run().final(LARGE).exists()
    assert hub.asked("/stored/"), "the large file comes from the store"
    assert hub.leaked == []


@pytest.mark.parametrize(("token", "reason"), [(None, "Unauthorized"), ("x", "ModelNotFound")])
def test_a_model_that_is_not_there(token, reason, hub, download):
    # The hub reports a missing repository as such only to requests with a token.
    assert fails(download("hf://org/no-such-model", token=token))[0] == reason


def test_a_revision_that_is_not_there(tiny, download):
    reason, message = fails(download("hf://org/tiny@v9"))
    assert reason is TerminationReason.REVISION_NOT_FOUND
    assert "hf://org/tiny@v9" in message


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_in_trouble(status, hub, tiny, download):
    hub.faults.status = status
    reason, message = fails(download())
    assert reason is TerminationReason.HUB_UNREACHABLE
    assert f"HTTP {status}" in message


def test_a_hub_that_is_not_there(download):
    reason, message = fails(download(endpoint="http://127.0.0.1:9"))
    assert reason is TerminationReason.HUB_UNREACHABLE
    assert "download.endpoint" in message


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"config.json": b"{}", "consolidated.00.pth": b"pickle"}, "only consolidated.00.pth"),
        ({"config.json": b"{}"}, "no weights at all"),
        ({"model.safetensors": b"x"}, "has no config.json"),
    ],
)
def test_a_repository_that_is_no_checkpoint(held, words, hub, download):
    hub.add("org/tiny", held)
    reason, message = fails(download())
    assert reason is TerminationReason.CHECKPOINT_INVALID
    assert words in message


def test_pickles_are_downloaded_where_there_are_no_safetensors(hub, files, download):
    shards = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    others = dict.fromkeys((*shards, "pytorch_model.bin.index.json", "optimizer.bin"), b"{}")
    hub.add("org/both", files | others)
    assert not {*shards} & names(download("hf://org/both").run())
    hub.add("org/pickles", {"config.json": b"{}", **others})
    found = names(download("hf://org/pickles").run())
    assert found == {"config.json", "pytorch_model.bin.index.json", *shards}


def test_a_volume_that_is_too_small_is_refused_before_a_byte_is_written(
    hub, tiny, download, files, monkeypatch
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    reason, message = fails(download())
    total = sum(len(files[name]) for name in NEEDED)
    assert reason is TerminationReason.OUT_OF_SPACE
    assert f"needs {total} bytes more, and the volume has 1000" in message
    assert hub.ranges() == []


def test_a_volume_that_fills_up_on_the_way(hub, tiny, download, monkeypatch):
    def full(counts, role, file, count):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Counts, "set_bytes", full)
    reason, message = fails(download())
    assert reason is TerminationReason.OUT_OF_SPACE
    assert "No space left on device" in message


def test_a_volume_that_cannot_be_written(tiny, download, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    reason, message = fails(download())
    assert reason is TerminationReason.CACHE_NOT_WRITABLE
    assert "65532" in message


def test_two_downloads_of_one_model_share_the_work(hub, tiny, download):
    hub.faults.hold = threading.Event()
    first, second = download(), download()
    threads = [threading.Thread(target=each.run) for each in (first, second)]
    for thread in threads:
        thread.start()
    waiting = threading.Event()
    states = set()
    while ModelState.WAITING not in states:
        states = {report(each).state for each in (first, second)}
        waiting.wait(0.01)
    hub.faults.hold.set()
    for thread in threads:
        thread.join()
    assert {report(each).state for each in (first, second)} == {ModelState.READY}
    assert len(hub.asked("/resolve/")) == len(NEEDED)


def test_progress_is_reported_on_the_way(hub, tiny, download, files):
    hub.faults.hold = threading.Event()
    started = download()
    thread = threading.Thread(target=started.run)
    thread.start()
    pause = threading.Event()
    while report(started).state is not ModelState.DOWNLOADING:
        pause.wait(0.01)
    assert report(started).bytes_total == sum(len(files[name]) for name in NEEDED)
    assert report(started).bytes_done < report(started).bytes_total
    hub.faults.hold.set()
    thread.join()
    assert report(started).bytes_done == report(started).bytes_total


def test_the_marker_lists_what_is_there(tiny, download, files):
    folder = download().run()
    marker = json.loads((folder.path / ".complete.json").read_text())
    assert marker == {name: len(files[name]) for name in NEEDED}
    digest = hashlib.sha256(folder.final(LARGE).read_bytes()).hexdigest()
    assert digest == hashlib.sha256(files[LARGE]).hexdigest()
