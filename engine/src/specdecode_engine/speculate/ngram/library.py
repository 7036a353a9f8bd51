"""The sources of drafts in C, compiled at their first use and loaded."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

from specdecode_kernels.cpu.compile import CannotCompile, compile_library

_FOLDER = Path(__file__).parent
_SOURCES = tuple(_FOLDER / name for name in ("forest.c", "trie.c", "suffix.c", "lookup.c"))
_HEADERS = (_FOLDER / "forest.h",)
# Without fused multiply-adds: equal probabilities are equal on every processor.
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-Wall", "-fPIC", "-shared")

_ADDRESS, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
_DRAFT = [_ADDRESS, _ADDRESS, *[_COUNT] * 4, _ADDRESS, _ADDRESS]


class DraftResult(ctypes.Structure):
    """What a suffix tree drafted: the sum of the probabilities, tokens, and tokens matched."""

    _fields_ = (("score", _NUMBER), ("count", _COUNT), ("matched", _COUNT))


class NgramLibrary:
    """The functions by their names in C. They keep Python's lock: a call takes microseconds."""

    trie_new: Callable[..., int | None]
    trie_free: Callable[..., None]
    trie_insert: Callable[..., None]
    trie_draft: Callable[..., int]
    trie_bytes: Callable[..., int]
    suffix_new: Callable[..., int | None]
    suffix_free: Callable[..., None]
    suffix_append: Callable[..., None]
    suffix_end: Callable[..., None]
    suffix_draft: Callable[..., None]
    suffix_bytes: Callable[..., int]
    lookup_draft: Callable[..., int]
    mark_tokens: Callable[..., int]
    forest_most_bytes: Callable[..., int]

    def __init__(self, file: Path) -> None:
        loaded = ctypes.PyDLL(str(file))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "trie_new": (_ADDRESS, [_COUNT] * 7),
    "trie_free": (None, [_ADDRESS]),
    "trie_insert": (None, [_ADDRESS, _ADDRESS, _COUNT]),
    "trie_draft": (_COUNT, list(_DRAFT)),
    "trie_bytes": (_COUNT, [_ADDRESS]),
    "suffix_new": (_ADDRESS, [_COUNT, _COUNT, _COUNT, _NUMBER, _NUMBER, _COUNT]),
    "suffix_free": (None, [_ADDRESS]),
    "suffix_append": (None, [_ADDRESS, _ADDRESS, _COUNT]),
    "suffix_end": (None, [_ADDRESS]),
    "suffix_draft": (None, [*_DRAFT, ctypes.POINTER(DraftResult)]),
    "suffix_bytes": (_COUNT, [_ADDRESS]),
    "lookup_draft": (_COUNT, [_ADDRESS, *[_COUNT] * 4, ctypes.POINTER(_COUNT)]),
    "mark_tokens": (_COUNT, [_ADDRESS, _COUNT, _COUNT, _ADDRESS, _COUNT]),
    "forest_most_bytes": (ctypes.c_size_t, [ctypes.c_uint32]),
}


@cache
def ngram_library() -> NgramLibrary:
    """Load the library, compiled at the first use.

    Raises:
        CannotCompile: there is no C compiler, or it fails; the message contains the remedy.
    """
    return compile_library(_SOURCES, _HEADERS, _FLAGS, NgramLibrary)


def unsupported_reason() -> str | None:
    """Return why drafts without a model cannot be made here, None if they can; compiles."""
    try:
        ngram_library()
    except (CannotCompile, OSError) as error:
        return str(error)
    return None
