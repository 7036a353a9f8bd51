"""Texts are encoded as `tokenizers` reads tokenizer.json, whatever class transformers chooses."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

from specdecode_engine.cli.check.command import check
from specdecode_engine.serve.text.loading import TokenizerUnusable, load_text_model, load_tokenizer
from specdecode_engine.serve.text.tokenizer import Vocabulary
from specdecode_engine.serve.text.tokenizer_check import TEXTS
from tests.engine.checkpoints import Checkpoints

SPECIAL = ["<unk>", "<s>", "</s>"]
NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
WORDS = ["return value 123 4567 89 of the turn", "value returned in turn 123 4567"] * 20
ASKED = (*TEXTS, "  return", "turn</s>return", "turn 123", "<|endoftext|>", "<pad><bos><eos>")
BY_MODEL_TYPE = [  # every class that served model types have, which tokenizer_config.json may omit
    ("llama", None), ("llama", "LlamaTokenizer"), ("llama", "LlamaTokenizerFast"),
    ("llama", "CodeLlamaTokenizer"), ("mistral", "LlamaTokenizer"), ("mixtral", "LlamaTokenizer"),
    ("deepseek_v3", "LlamaTokenizerFast"), ("minicpm3", "LlamaTokenizer"),
    ("qwen2", None), ("qwen2", "PreTrainedTokenizerFast"), ("qwen2", "LlamaTokenizerFast"),
    ("qwen3", "Qwen2Tokenizer"), ("qwen3_next", "Qwen2TokenizerFast"),
    ("qwen3_5_text", "Qwen2Tokenizer"), ("qwen3_5_moe_text", "PreTrainedTokenizerFast"),
    ("gemma2", "GemmaTokenizer"), ("gemma3_text", None), ("gemma4_text", "GemmaTokenizerFast"),
    ("cohere2", "CohereTokenizerFast"), ("starcoder2", "GPT2TokenizerFast"), ("phi", None),
    ("olmo", "GPTNeoXTokenizerFast"), ("gpt_oss", "PreTrainedTokenizerFast"),
    ("phi3", "LlamaTokenizer"), ("glm4", "PreTrainedTokenizerFast"), ("granite", "GPT2Tokenizer"),
]  # fmt: skip


@cache
def llama_file() -> str:
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence(steps)
    ends = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), *ends])
    lone = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=[*SPECIAL, *lone], max_token_length=8, show_progress=False
    )
    made.train_from_iterator(WORDS, trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = content["added_tokens"][: len(SPECIAL)]
    return json.dumps(content)


@cache
def byte_file() -> str:
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    numbers = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+"), "isolated")
    level = ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([numbers, level])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(WORDS, trainer)
    made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return made.to_str()


FILES = {"llama": llama_file, "bytes": byte_file}


def write(folder: Path, file: str, model_type: str = "llama", **config: Any) -> Path:
    (folder / "tokenizer.json").write_text(file, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMES | config))
    size = Tokenizer.from_str(file).get_vocab_size()
    keys = {"model_type": model_type, "vocab_size": size}
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


def edited(file: str, **changes: Any) -> str:
    return json.dumps({**json.loads(file), **changes})


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("model_type", "declared"), BY_MODEL_TYPE)
def test_ids_are_those_of_the_file(
    model_type: str, declared: str | None, file: str, tmp_path: Path
) -> None:
    content = FILES[file]()
    config = {} if declared is None else {"tokenizer_class": declared}
    text = load_text_model(write(tmp_path, content, model_type, **config))
    reader = Tokenizer.from_str(content)
    for asked in ASKED:
        for adds in (False, True):
            expected = reader.encode(asked, add_special_tokens=adds).ids
            assert list(text.encode(asked, adds)) == expected, asked
        assert text.decode(text.encode(asked, False)) == reader.decode(text.encode(asked, False))


@pytest.mark.parametrize(("model_type", "declared"), BY_MODEL_TYPE)
def test_the_class_is_the_one_that_transformers_chooses(
    model_type: str, declared: str | None, tmp_path: Path
) -> None:
    config = {} if declared is None else {"tokenizer_class": declared}
    folder = write(tmp_path, byte_file(), model_type, **config)
    chosen = type(AutoTokenizer.from_pretrained(folder, local_files_only=True))
    assert type(load_tokenizer(folder).wrapped) is chosen


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("prefix", [None, True, False])
def test_flags_of_a_class_change_no_ids(legacy: bool, prefix: bool | None, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"legacy": legacy, "add_prefix_space": prefix, "add_bos_token": True}
    keys |= {"add_eos_token": True, "tokenizer_class": "LlamaTokenizer"}
    text = load_text_model(write(tmp_path, llama_file(), **keys))
    reader = Tokenizer.from_str(llama_file())
    assert [list(text.encode(asked)) for asked in ASKED] == [reader.encode(a).ids for a in ASKED]


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    reader = Tokenizer.from_str(byte_file())
    reader.enable_truncation(2)
    reader.enable_padding(length=50)
    text = load_text_model(write(tmp_path, reader.to_str()))
    assert list(text.encode(WORDS[0])) == Tokenizer.from_str(byte_file()).encode(WORDS[0]).ids


def test_named_tokens_become_special_when_the_file_has_them(tmp_path: Path) -> None:
    """Whether they are named as such, in a list, or by `added_tokens_decoder`."""
    reader = Tokenizer.from_str(byte_file())
    reader.add_tokens(["<call>", "<turn>", "<text>"])
    call, turn, end = (reader.token_to_id(name) for name in ("<call>", "<turn>", "value"))
    stated = {str(call): {"content": "<call>", "special": True}, "0": {"content": "<other>"}}
    keys: dict[str, Any] = {
        "added_tokens_decoder": stated,
        "additional_special_tokens": ["<turn>", "<none>"],
    }
    keys |= {"eot_token": {"content": "value", "__type": "AddedToken"}}
    text = load_text_model(write(tmp_path, reader.to_str(), **keys))
    assert text.vocabulary.special_ids == {0, 1, 2, call, turn, end}
    assert text.encode("<call>the<turn>value<none>", False)[-1] != end
    assert text.encode("<call>value<turn>", False) == (call, end, turn)
    assert text.tokenizer.get_vocab_size() == reader.get_vocab_size()


@pytest.mark.parametrize(
    ("token_id", "rows", "is_added"), [(320, 400, True), (321, 400, False), (320, 320, False)]
)
def test_a_token_is_added_when_its_id_is_next_and_has_a_row(
    token_id: int, rows: int, is_added: bool, tmp_path: Path
) -> None:
    content = byte_file()
    first = Tokenizer.from_str(content).get_vocab_size()
    token_id, rows = token_id - 320 + first, rows - 320 + first
    stated = {str(token_id): {"content": "<call>", "special": False, "lstrip": False}}
    folder = write(tmp_path, content, added_tokens_decoder=stated)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": rows}))
    text = load_text_model(folder)
    assert (text.encode("<call>", False) == (token_id,)) == is_added
    assert all(each < rows for each in text.encode("<call>"))


def test_a_file_that_is_not_a_tokenizer_is_refused(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, byte_file())
    (folder / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(TokenizerUnusable, match=r"save a tokenizer\.json") as caught:
        load_text_model(folder)
    target = tmp_path / "target"
    target.mkdir()
    for file in checkpoints.target.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (target / "tokenizer.json").write_text('{"model": {}}')
    assert check([str(target)]) == 1
    assert str(caught.value).removeprefix(str(folder)) in capsys.readouterr().err


def test_check_names_texts_that_transformers_encodes_otherwise(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in checkpoints.target.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(llama_file(), encoding="utf-8")
    config = NAMES | {"tokenizer_class": "LlamaTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert check([str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tokenizer"]
    assert found["transformers_class"] == "LlamaTokenizer"
    assert "texts differently: " in found["difference"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(NAMES))
    assert check([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"]["difference"] is None


def test_check_warns_when_a_draft_has_another_tokenizer(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for name, file in (("target", byte_file()), ("draft", llama_file())):
        folder = tmp_path / name
        folder.mkdir()
        for each in getattr(checkpoints, name).iterdir():
            (folder / each.name).write_bytes(each.read_bytes())
        (folder / "tokenizer.json").write_text(file, encoding="utf-8")
        folders.append(str(folder))
    assert check([*folders, "--json"]) == 0
    warning = json.loads(capsys.readouterr().out)["draft"]["warning"]
    assert warning.startswith("its tokenizer encodes ")
    (tmp_path / "draft" / "tokenizer.json").write_text(byte_file(), encoding="utf-8")
    assert check([*folders, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"]["warning"] is None


def test_case_22_latin_letters_are_decoded_as_tokenizers_does() -> None:
    """Added tokens whose characters are all in the byte alphabet are read as bytes."""
    reader = Tokenizer.from_str(byte_file())
    names = ["naïve", "Straße", "中文", "<think>"]
    reader.add_tokens(names)
    vocabulary, ids = Vocabulary(reader), {name: reader.token_to_id(name) for name in names}
    decoded: dict[str, str] = {}
    for name, token_id in ids.items():
        assert token_id is not None
        decoded[name] = reader.decode([token_id])
        assert vocabulary.shown(token_id) == decoded[name]
    assert [decoded[name] for name in names[2:]] == names[2:]
    assert decoded["naïve"] == "na\ufffdve"
