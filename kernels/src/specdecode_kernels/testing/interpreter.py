"""Triton's interpreter, made to work with this numpy and not to repeat its preparations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch


@contextmanager
def mended_interpreter() -> Iterator[None]:
    """Let kernels be interpreted with this numpy, faster; does nothing to compiled kernels.

    Triton 3.6 makes an index of an array of one element by int(), which numpy 2.4 refuses, so loops
    would not run to a computed bound; and it prepares the language at each call within a kernel.
    """
    from triton.language import core
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_with_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    with (
        patch.object(interpreter, "_patch_lang_tensor", patch_tensor_with_index),
        patch.object(interpreter, "_patch_lang", _once_a_launch(interpreter)),
        patch.object(interpreter, "_get_np_dtype", _once_a_type(interpreter)),
        patch.object(core, "_type_for_tuple_values", _once_a_shape(core)),
    ):
        yield


def _once_a_launch(interpreter: Any) -> Callable[[Any], Any]:
    """`_patch_lang`, which replaces nothing again until its kernel has ended."""
    replace, replaced = interpreter._patch_lang, set[Any]()

    languages = (interpreter.tl, interpreter.tl.core)

    @cache
    def languages_of(fn: Any) -> frozenset[Any]:
        values = fn.__globals__.values()
        return frozenset(each for each in languages if any(each is value for value in values))

    def replace_once(fn: Any) -> Any:
        languages = languages_of(fn)
        if languages <= replaced:
            return interpreter._LangPatchScope()
        scope = replace(fn)
        replaced.update(languages)
        restore = scope.restore

        def restore_and_forget() -> None:
            restore()
            replaced.clear()

        scope.restore = restore_and_forget
        return scope

    return replace_once


def _once_a_type(interpreter: Any) -> Callable[[Any], Any]:
    """`_get_np_dtype`, which makes no table of all types for each value."""
    find, kept = interpreter._get_np_dtype, dict[str, Any]()

    def find_once(kind: Any) -> Any:
        element = kind.scalar
        if element.name not in kept:
            kept[element.name] = find(element)
        return kept[element.name]

    return find_once


def _once_a_shape(core: Any) -> Callable[..., Any]:
    """`_type_for_tuple_values`, which keeps the types of tuples of constants."""
    describe, kept = core._type_for_tuple_values, dict[Any, Any]()

    def describe_once(values: Sequence[Any], fields: Any = None) -> Any:
        if fields is not None or not all(type(value) is core.constexpr for value in values):
            return describe(values, fields)
        key = tuple((type(value.value), value.value) for value in values)
        if key not in kept:
            kept[key] = describe(values)
        return kept[key]

    return describe_once
