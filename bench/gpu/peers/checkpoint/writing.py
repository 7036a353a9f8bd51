"""Writes target and heads as Hugging Face checkpoints, and the cycle that they follow."""

import hashlib
import inspect
import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.gpu.llama_config import llama_config
from bench.gpu.peers.checkpoint.cycle import CYCLE_FILE, Cycle
from bench.gpu.peers.checkpoint.numbers import write_tokenizer
from bench.gpu.peers.checkpoint.sizes import CheckpointSize
from bench.gpu.peers.checkpoint.tensors import TensorMaker

TARGET = "target"
WRITERS = 8
SPARE_BYTES = 1 << 30
MARK = "written-by-bench-peers"
"""In a folder that may be replaced."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; the text has place and remedy."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with a target and heads by name."""

    folder: Path
    cycle: Cycle
    agreements: Mapping[str, Sequence[int]]

    @property
    def target(self) -> Path:
        """The target's folder."""
        return self.folder / TARGET


def write_checkpoint(
    folder: Path,
    size: CheckpointSize,
    agreements: Mapping[str, Sequence[int]],
    device: torch.device,
) -> Checkpoint:
    """Write a target and a head per agreement, in bfloat16; an older checkpoint is replaced.

    Args:
        agreements: by the head's name, a bit per token of the cycle.

    Raises:
        CheckpointError: the disk has less room than the files take, or the folder contains what
            this program did not write.
    """
    empty(folder)
    _check_room(folder, size.bytes_of(len(agreements)))
    cycle = Cycle.draw(size.cycle)
    maker = TensorMaker(size, device)
    with _Shards() as shards:
        _write_target(folder / TARGET, size, maker, cycle, shards)
        for name, agreement in agreements.items():
            more = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": size.cycle}
            _write_config(folder / name, size, 1, more)
            shards.write(
                folder / name / "model.safetensors", maker.eagle3(cycle.drafted(agreement))
            )
    document = _document(size, agreements) | {"files": _file_sizes(folder)}
    (folder / CYCLE_FILE).write_text(json.dumps(document))
    return Checkpoint(folder, cycle, agreements)


def is_written(folder: Path, size: CheckpointSize, agreements: Mapping[str, Sequence[int]]) -> bool:
    """Whether a folder has the complete checkpoint of this size with these heads."""
    try:
        document = json.loads((folder / CYCLE_FILE).read_text())
    except (OSError, ValueError):
        return False
    wanted = _document(size, agreements) | {"files": _file_sizes(folder)}
    return bool(document == json.loads(json.dumps(wanted)))


def _document(size: CheckpointSize, agreements: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    bits = {name: "".join(map(str, agreement)) for name, agreement in agreements.items()}
    order = Cycle.draw(size.cycle).order
    return {"size": asdict(size), "order": order, "agreements": bits, "code": code_hash()}


def code_hash() -> str:
    """Return the SHA-256 of the code that writes checkpoints."""
    digest, config = hashlib.sha256(), Path(inspect.getfile(llama_config))
    for file in [*sorted(Path(__file__).parent.glob("*.py")), config]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _file_sizes(folder: Path) -> dict[str, int]:
    files = (one for one in folder.glob("*/*") if one.is_file())
    return {str(one.relative_to(folder)): one.stat().st_size for one in sorted(files)}


def empty(folder: Path) -> None:
    """Make an empty folder with the mark of this program; remove what it wrote there before."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise CheckpointError(
            f"{folder} contains files that this program did not write; name another folder with "
            "--work"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise CheckpointError(
            f"{folder} has {free / 2**30:.1f} GiB free; the checkpoint takes "
            f"{needed / 2**30:.1f} GiB and {SPARE_BYTES >> 30} GiB must remain; name another "
            "folder with --work"
        )


def _write_target(
    folder: Path, size: CheckpointSize, maker: TensorMaker, cycle: Cycle, shards: "_Shards"
) -> None:
    _write_config(folder, size, size.layers, {})
    write_tokenizer(folder, size.vocab)
    count, index = size.layers + 2, dict[str, str]()

    def write(number: int, tensors: dict[str, Tensor]) -> None:
        name = f"model-{number:05d}-of-{count:05d}.safetensors"
        index.update(dict.fromkeys(tensors, name))
        shards.write(folder / name, tensors)

    write(1, {"model.embed_tokens.weight": maker.embedding})
    rows = maker.output_rows(cycle.successors())
    write(2, {"lm_head.weight": rows, "model.norm.weight": maker.final_norm()})
    for number in range(size.layers):
        write(number + 3, maker.layer(f"model.layers.{number}"))
    document = {"metadata": {"total_size": 2 * size.parameters}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))


def _write_config(
    folder: Path, size: CheckpointSize, layers: int, more: Mapping[str, object]
) -> None:
    folder.mkdir()
    config = {
        **llama_config(size, layers),
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": size.vocab - 2,
        "eos_token_id": size.vocab - 1,
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config))


class _Shards:
    """Writes files in threads while the device makes the next tensors."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WRITERS)
        self._slots = threading.Semaphore(WRITERS + 2)  # files held in memory
        self._writing: list[Future[None]] = []

    def __enter__(self) -> "_Shards":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        for one in self._writing:
            one.result()

    def write(self, file: Path, tensors: Mapping[str, Tensor]) -> None:
        self._slots.acquire()
        self._writing.append(self._pool.submit(self._save, file, tensors))

    def _save(self, file: Path, tensors: Mapping[str, Tensor]) -> None:
        try:
            on_host = {name: one.contiguous().cpu() for name, one in tensors.items()}
            save_file(on_host, file, metadata={"format": "pt"})
        finally:
            self._slots.release()
