"""The resume id: the same for equal engines, another one for whatever may change an answer."""

import shutil
import threading
from pathlib import Path

import pytest

from specdecode_engine.serve.control.resume_id import ResumeId, resume_id

FACTS = {"dtype": "float32", "kv_cache_dtype": "float32", "cpu_numerics": "abc"}


@pytest.fixture
def folder(tmp_path: Path, model_folder: Path) -> Path:
    copied = shutil.copytree(model_folder, tmp_path / "model")
    (copied / "model-00001-of-00002.safetensors").write_bytes(bytes(4096))
    (copied / "model-00002-of-00002.safetensors").write_bytes(bytes(4096))
    return copied


def test_equal_engines_have_one_id(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "elsewhere")
    assert resume_id(folder, FACTS) == resume_id(other, FACTS)
    assert len(resume_id(folder, FACTS)) == 32


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        "model-00002-of-00002.safetensors", "tokenizer.json", "tokenizer_config.json",
        "config.json", "generation_config.json",
    ],
)  # fmt: skip
def test_one_bit_of_any_file_changes_the_id(folder, name):
    before = resume_id(folder, FACTS)
    flip_a_bit(folder / name)
    assert resume_id(folder, FACTS) != before


@pytest.mark.parametrize("fact", FACTS)
def test_every_fact_changes_the_id(folder, fact):
    assert resume_id(folder, FACTS) != resume_id(folder, FACTS | {fact: "other"})


def test_files_that_no_engine_reads_do_not(folder):
    before = resume_id(folder, FACTS)
    (folder / "README.md").write_text("about the model")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    assert resume_id(folder, FACTS) == before


def test_another_template_changes_the_id(folder):
    before = resume_id(folder, FACTS)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert resume_id(folder, FACTS) != before


def test_code_and_libraries_are_part_of_the_id(folder, monkeypatch, tmp_path):
    before = resume_id(folder, FACTS)
    changed = tmp_path / "kernel.c"
    changed.write_text("int add;")
    place = "specdecode_engine.serve.control.resume_id"
    with monkeypatch.context() as patch:
        patch.setattr(f"{place}._sources", lambda: [changed])
        assert resume_id(folder, FACTS) != before
    with monkeypatch.context() as patch:
        patch.setattr(f"{place}._version", lambda name: "0")
        assert resume_id(folder, FACTS) != before
    assert resume_id(folder, FACTS) == before


def started(folder, facts, served):
    found = ResumeId()
    found.want()
    found.prepare(folder, facts, served)
    return found


def test_an_id_is_computed_for_routers_alone(folder, eventually):
    found = ResumeId()
    found.prepare(folder, FACTS, {})
    assert not any(each.name == "resume-id" for each in threading.enumerate())
    found.want()
    eventually(lambda: found.value is not None)


def test_an_unreadable_checkpoint_leaves_the_engine_without_an_id(tmp_path, eventually, caplog):
    found = started(tmp_path / "missing", FACTS, {})
    eventually(lambda: "no stream can be resumed" in caplog.text)
    assert found.value is None


def test_only_known_facts_count(folder, eventually):
    first = started(folder, FACTS, {"served_name": "a"})
    second = started(folder, FACTS | {"kv_pages": 7}, {"served_name": "a"})
    eventually(lambda: first.value is not None and second.value is not None)
    assert first.value == second.value


@pytest.mark.parametrize("fact", ["model_quantization", "tensor_parallel_size"])
def test_engines_whose_sums_are_rounded_otherwise_have_other_ids(folder, eventually, fact):
    first, second = (started(folder, FACTS | {fact: value}, {}) for value in (1, 2))
    eventually(lambda: first.value is not None and second.value is not None)
    assert first.value != second.value


def test_the_id_follows_the_adapters_of_an_engine(folder, eventually):
    found = started(folder, FACTS, {})
    eventually(lambda: found.value is not None)
    values = [found.value]
    for adapters in ({}, {"a": "1"}, {"a": "2"}, {"b": "1"}, {"b": "1", "a": "1"}, {"a": "1"}, {}):
        found.note_adapters([{"name": name, "sha256": one} for name, one in adapters.items()])
        values.append(found.value)
    assert values[0] == values[1] == values[-1]
    assert values[2] == values[-2]
    assert len({*values}) == 5
    assert {len(value) for value in values} == {32}
