"""LoRA adapters come and go in whole engines, between steps of running requests."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from checks.harness.adapter_files import ATTENTION, EVERYWHERE, random_factors, write_adapter
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.adapters import AdapterNotLoaded, AdapterRefused, ChangeAdapters
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import CannotServe
from specdecode_engine.startup.draft_staging import DraftStaging
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import boot_of, run

PROMPT = tuple(place * 7 % 97 for place in range(18))


@pytest.fixture(scope="module")
def root(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    for seed, (name, maps) in enumerate({"a": EVERYWHERE, "b": ATTENTION}.items()):
        write_adapter(folder / name, random_factors(checkpoints.target, maps, seed=seed))
    return folder


def make_core(
    checkpoints: Checkpoints, root: Path, modules: Mapping[str, str], algorithm: str = "NONE"
) -> EngineCore:
    document = boot_of(checkpoints, algorithm, 1, memory={"page_size": 4})
    adapters = {"modules": dict(modules), "root": str(root), "max_loaded": 2}
    return build_poisoned(EngineBoot.model_validate(document | {"adapters": adapters}))


def changes_of(core: EngineCore) -> ChangeAdapters:
    assert core.change_adapters is not None
    return core.change_adapters


def request_of(adapter: str, name: str = "r", max_tokens: int = 24) -> Request:
    sampling = SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)
    return Request(name, PROMPT, sampling, adapter=adapter)


@pytest.mark.parametrize("algorithm", ["NONE", "EAGLE3", "STANDALONE"])
def test_running_requests_keep_their_texts_when_adapters_change(
    checkpoints: Checkpoints, root: Path, algorithm: str
) -> None:
    fixed = make_core(checkpoints, root, {name: str(root / name) for name in "ab"})
    expected = {name: run(fixed, [request_of(name)])["r"].tokens for name in ("", "a", "b")}
    core = make_core(checkpoints, root, {"a": str(root / "a")}, algorithm)
    changes = changes_of(core)
    found: dict[str, list[int]] = {"": [], "a": [], "b": []}
    for name in ("", "a"):
        core.submit(request_of(name, name=name))
    for step in range(200):
        if step == 4:
            changes.stage("b", root / "b")()
            core.submit(request_of("b", name="b"))
        if changes.remove("a"):
            assert len(found["a"]) == 24
        for output in core.step():
            found[output.request_id] += output.token_ids
        if step > 4 and not core.has_work():
            break
    assert found == expected
    assert changes.remove("b")


def test_waiting_requests_keep_their_adapter(checkpoints: Checkpoints, root: Path) -> None:
    core = make_core(checkpoints, root, {"a": str(root / "a")})
    core.submit(request_of("a"))
    assert not changes_of(core).remove("a")
    core.abort("r")
    assert changes_of(core).remove("a")
    assert changes_of(core).remove("a")
    with pytest.raises(AdapterNotLoaded, match="adapter 'a' is not loaded"):
        core.submit(request_of("a"))
    assert not core.has_work()


def cached_of(core: EngineCore, adapter: str) -> int:
    core.submit(request_of(adapter, max_tokens=4))
    found = 0
    while core.has_work():
        found = max(found, *[one.cached_tokens for one in core.step()], 0)
    return found


def test_prefixes_are_those_of_the_content(checkpoints: Checkpoints, root: Path) -> None:
    core = make_core(checkpoints, root, {"x": str(root / "a")})
    changes, hits = changes_of(core), [cached_of(core, "x")]
    for name, folder in (("x", "b"), ("x", "a"), ("y", "b")):
        assert changes.remove("x")
        changes.stage(name, root / folder)()
        hits.append(cached_of(core, name))
    assert hits == [0, 0, 16, 16]


def test_refused_adapters_leave_the_others(
    checkpoints: Checkpoints, root: Path, tmp_path: Path
) -> None:
    core = make_core(checkpoints, root, {"a": str(root / "a")})
    changes, before = changes_of(core), run(core, [request_of("a")])
    same = changes.stage("a", root / "a")()
    assert same["path"] == str(root / "a")
    with pytest.raises(AdapterRefused, match=r"a is loaded, with other content .*unload it first"):
        changes.stage("a", root / "b")
    with pytest.raises(AdapterRefused, match=r"adapter_config\.json") as missing:
        changes.stage("c", tmp_path)
    assert not missing.value.is_conflict
    changes.stage("b", root / "b")()
    with pytest.raises(AdapterRefused, match=r"2 adapters are loaded \(a, b\)") as full:
        changes.stage("c", root / "b")
    assert full.value.is_conflict
    assert run(core, [request_of("a")]) == before


def test_memory_is_kept_for_adapters_to_come(
    checkpoints: Checkpoints, root: Path, tmp_path: Path
) -> None:
    document = boot_of(checkpoints, "NONE", 1)
    kept = []
    for rank in (4, 16, None):
        adapters = {"root": str(root), "max_loaded": 2, "max_rank": rank}
        core = build_core(EngineBoot.model_validate(document | {"adapters": adapters}))
        assert core.facts["adapters"] == []
        assert isinstance(core.stage_draft, DraftStaging)
        kept.append(core.stage_draft.models.weight_bytes[0])
    assert kept[0] < kept[1] == kept[2]
    adapters = {"root": str(tmp_path / "none"), "max_loaded": 1}
    with pytest.raises(CannotServe, match="none is not a folder; give the one below which"):
        build_core(EngineBoot.model_validate(document | {"adapters": adapters}))


def test_an_adapter_that_is_written_while_it_is_read_is_refused(
    checkpoints: Checkpoints, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "specdecode_engine.model.checkpoint.adapters.adapter.adapter_digest"
    digests = iter(["before", "after"])
    core = make_core(checkpoints, root, {})
    monkeypatch.setattr(place, lambda folder: next(digests))
    with pytest.raises(AdapterRefused, match="was written while it was read"):
        changes_of(core).stage("a", root / "a")
