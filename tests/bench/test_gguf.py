"""GGUF files and tokenizers: what is written is what a reader of the format finds."""

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from bench.cpu.peers.byte_vocabulary import EOS_ID, SPECIAL, make_vocabulary, write_tokenizer
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from bench.cpu.peers.gguf import ALIGNMENT, Field, NamedTensor, write_gguf
from bench.cpu.peers.llama_gguf import interleave_halves, write_llama_gguf

SIZE = Size(2, 32, vocab=300, heads=4, context=64, kv_heads=2, inner=48)
_FORMATS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}


class Reader:
    """An independent reader, by the format's description."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            assert file.read(4) == b"GGUF"
            version, tensors, fields = struct.unpack("<IQQ", file.read(20))
            assert version == 3
            self.fields = dict(self._field(file) for _ in range(fields))
            infos = [self._info(file) for _ in range(tensors)]
            start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
            self.tensors = {}
            for name, shape, dtype, offset in infos:
                assert offset % ALIGNMENT == 0
                file.seek(start + offset)
                data = file.read(int(np.prod(shape)) * np.dtype(dtype).itemsize)
                self.tensors[name] = np.frombuffer(data, dtype).reshape(shape)

    def _field(self, file: BinaryIO) -> tuple[str, Any]:
        name = self._string(file)
        (kind,) = struct.unpack("<I", file.read(4))
        return name, self._value(file, kind)

    def _value(self, file: BinaryIO, kind: int) -> Any:
        if kind == 8:
            return self._string(file)
        if kind == 9:
            inner, count = struct.unpack("<IQ", file.read(12))
            return [self._value(file, inner) for _ in range(count)]
        form = _FORMATS[kind]
        return struct.unpack(form, file.read(struct.calcsize(form)))[0]

    def _info(self, file: BinaryIO) -> tuple[str, tuple[int, ...], str, int]:
        name = self._string(file)
        (dimensions,) = struct.unpack("<I", file.read(4))
        shape = struct.unpack(f"<{dimensions}Q", file.read(8 * dimensions))
        kind, offset = struct.unpack("<IQ", file.read(12))
        return name, shape[::-1], {0: "f4", 1: "f2"}[kind], offset

    def _string(self, file: BinaryIO) -> str:
        (length,) = struct.unpack("<Q", file.read(8))
        return file.read(length).decode()


def test_fields_and_tensors_come_back(tmp_path: Path) -> None:
    path = tmp_path / "some.gguf"
    odd = NamedTensor("odd", np.arange(5, dtype=np.float32))
    half = NamedTensor("half", np.arange(6, dtype=np.float16).reshape(2, 3))
    fields: dict[str, Field] = {
        "a": 7,
        "b": 0.5,
        "c": "wörld",
        "d": ["x", "y z"],
        "e": [1, -2],
        "f": True,
    }
    write_gguf(path, fields, [odd, half])
    read = Reader(path)
    assert read.fields == fields
    for tensor in (odd, half):
        np.testing.assert_array_equal(read.tensors[tensor.name], tensor.values)


def test_a_tensor_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    wrong = NamedTensor("blk.0", np.zeros(3, dtype=np.float64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"blk\.0 is float64; give it as float32 or float16"):
        write_gguf(tmp_path / "wrong.gguf", {}, [wrong])


def test_a_llama_keeps_every_weight_to_the_bit(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path, SIZE, STRONG)
    write_llama_gguf(target, tmp_path / "model.gguf")
    read = Reader(tmp_path / "model.gguf")
    weights = load_file(target / "model.safetensors")
    assert len(read.tensors) == len(weights)
    pairs = {
        "blk.1.ffn_down.weight": weights["model.layers.1.mlp.down_proj.weight"],
        "output.weight": weights["lm_head.weight"],
        "blk.0.attn_k.weight": interleave_halves(
            weights["model.layers.0.self_attn.k_proj.weight"], 2
        ),
    }
    for name, wanted in pairs.items():
        np.testing.assert_array_equal(read.tensors[name].astype(np.float32), wanted)
    assert read.fields["llama.attention.head_count_kv"] == 2
    assert read.fields["tokenizer.ggml.tokens"] == list(make_vocabulary(300).tokens)


def test_matrices_are_float16_unless_float32_is_chosen(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path, SIZE, STRONG)
    write_llama_gguf(target, tmp_path / "half.gguf")
    write_llama_gguf(target, tmp_path / "full.gguf", "float32")
    half, full = Reader(tmp_path / "half.gguf"), Reader(tmp_path / "full.gguf")
    assert (half.fields["general.file_type"], full.fields["general.file_type"]) == (1, 0)
    for name, values in half.tensors.items():
        assert values.dtype == ("f4" if values.ndim == 1 else "f2")
        assert full.tensors[name].dtype == "f4"
        np.testing.assert_array_equal(full.tensors[name], values, err_msg=name)


def test_rows_of_a_head_alternate_between_its_halves() -> None:
    weight = np.arange(8, dtype=np.float32)[:, None]  # two heads of four rows
    assert interleave_halves(weight, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_no_weight_of_the_pair_needs_more_than_half_width(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path, SIZE, STRONG)
    for folder in (target, draft):
        for name, values in load_file(folder / "model.safetensors").items():
            same = values.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(same, values, err_msg=name)
    head = load_file(target / "model.safetensors")["lm_head.weight"]
    assert not head[EOS_ID].any()


def test_every_text_has_tokens_and_comes_back(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 4096, 64)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Hello, wörld: 你好 abc\n\ttest"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_to_id("abc") in ids
    assert tokenizer.get_vocab_size() == 4096
    assert tokenizer.encode(SPECIAL[EOS_ID]).ids == [EOS_ID]
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == SPECIAL[EOS_ID]


def test_a_vocabulary_that_cannot_hold_all_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="200 tokens: use 259 to"):
        make_vocabulary(200)
