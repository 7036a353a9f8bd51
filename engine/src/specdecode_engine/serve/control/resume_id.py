"""`resume_id`: equal for engines that would write the same answer, bit for bit.

It is the hash of everything that an answer depends on besides the request: the bytes of the
checkpoint with tokenizer and chat template, data types, kernels, and the code of this release.
Weights are hashed whole, because two checkpoints may differ in a few rows of one tensor. That takes
seconds per GB, so threads of low priority do it while the engine serves, from the first request of
a router on; until they are done the engine continues no stream of another engine.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

FACTS: Final = (
    "device", "dtype", "kv_cache_dtype", "quantization", "model_quantization",
    "model_implementation", "target_attention", "linears", "cpu_numerics", "threads",
    "tensor_parallel_size", "sum_order",
)  # fmt: skip
"""Facts about an engine that its numbers depend on."""
LIBRARIES: Final = (
    "torch", "triton", "flashinfer-python", "transformers", "tokenizers", "llguidance", "numpy",
)  # fmt: skip
PACKAGES: Final = ("specdecode_engine", "specdecode_kernels")
TEXT_FILES: Final = frozenset((".json", ".model", ".txt", ".jinja"))
SOURCES: Final = frozenset((".py", ".c", ".h"))
DIGITS: Final = 32
MAX_THREADS: Final = 4
NICENESS: Final = 19


class ResumeId:
    """Computes the id of an engine once, in threads of its own; `value` is None until then.

    It changes with the LoRA adapters that requests may choose.
    """

    def __init__(self) -> None:
        self._of_model: str | None = None
        self._adapters = ""
        self._is_wanted = False
        self._known: tuple[Path, Mapping[str, object]] | None = None

    @property
    def value(self) -> str | None:
        """The id; None until it is computed."""
        if self._of_model is None or not self._adapters:
            return self._of_model
        both = f"{self._of_model} {self._adapters}"
        return hashlib.sha256(both.encode()).hexdigest()[:DIGITS]

    def note_adapters(self, adapters: Iterable[Mapping[str, object]]) -> None:
        """Take name and digest of each adapter that requests may choose."""
        digests = sorted([str(one["name"]), str(one["sha256"])] for one in adapters)
        self._adapters = json.dumps(digests) if digests else ""

    def prepare(
        self, folder: Path, facts: Mapping[str, object], served: Mapping[str, object]
    ) -> None:
        """Take what the id depends on; engines that no router uses do not compute it.

        Args:
            folder: of the target's checkpoint.
            facts: those of `FACTS` count.
            served: options of the server that answers depend on.
        """
        self._known = folder, {name: facts[name] for name in FACTS if name in facts} | dict(served)
        if self._is_wanted:
            self._start(*self._known)

    def want(self) -> None:
        """Begin to compute the id, once the engine is loaded: a router uses it."""
        if not self._is_wanted and self._known is not None:
            self._start(*self._known)
        self._is_wanted = True

    def _start(self, folder: Path, known: Mapping[str, object]) -> None:
        thread = threading.Thread(
            target=self._compute, args=(folder, known), name="resume-id", daemon=True
        )
        thread.start()

    def _compute(self, folder: Path, known: Mapping[str, object]) -> None:
        started_s = time.monotonic()
        try:
            self._of_model = resume_id(folder, known)
        except OSError as error:
            log.warning("no stream can be resumed on this engine: its checkpoint: %s", error)
            return
        log.info("resume id %s, computed in %.1f s", self.value, time.monotonic() - started_s)


def resume_id(folder: Path, known: Mapping[str, object]) -> str:
    """Return the id of an engine that serves the checkpoint in a folder.

    Raises:
        OSError: a file cannot be read.
    """
    document = {
        "facts": {name: str(value) for name, value in known.items()},
        "libraries": {name: _version(name) for name in LIBRARIES},
        "sources": _digest_of(_sources()),
        "checkpoint": _checkpoint(folder),
    }
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _checkpoint(folder: Path) -> list[tuple[str, int, str]]:
    """Return name, size and digest of every file that the engine reads."""
    files = sorted(each for each in folder.iterdir() if each.is_file())
    weights = [each for each in files if each.suffix == ".safetensors"]
    weights = weights or [each for each in files if each.suffix == ".bin"]
    found = [*weights, *(each for each in files if each.suffix in TEXT_FILES)]
    threads = max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
    with ThreadPoolExecutor(threads, "resume-id", initializer=_yield_to_others) as pool:
        digests = list(pool.map(_digest, found))
    sizes = [each.stat().st_size for each in found]
    names = [each.name for each in found]
    return list(zip(names, sizes, digests, strict=True))


def _yield_to_others() -> None:
    """Lower the priority of the current thread alone, as Linux allows."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _sources() -> Iterable[Path]:
    for package in PACKAGES:
        found = find_spec(package)  # without an import, which would take seconds
        assert found is not None
        assert found.origin is not None
        root = Path(found.origin).parent
        yield from sorted(each for each in root.rglob("*") if each.suffix in SOURCES)


def _digest_of(files: Iterable[Path]) -> str:
    return hashlib.sha256("".join(map(_digest, files)).encode()).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
