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
    from triton.language.semantic import TritonSemantic
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
        patch.object(core, "_unwrap_if_constexpr", _unwrap_by_type(core)),
        patch.object(core.block_type, "__init__", _check_once_a_block(core)),
        patch.object(core.tensor, "__init__", _describe_once_a_block(core)),
        patch.object(TritonSemantic, "broadcast_impl_value", _broadcast_unequal(TritonSemantic)),
        patch.object(TritonSemantic, "cast", _cast_others(TritonSemantic)),
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


def _unwrap_by_type(core: Any) -> Callable[[Any], Any]:
    """`_unwrap_if_constexpr`, which compares the type of a value once."""
    unwrap = core._unwrap_if_constexpr
    plain = {int, float, bool, core.dtype, core.block_type, core.pointer_type, core.tensor}

    def unwrap_by_type(value: Any) -> Any:
        kind = type(value)
        if kind is core.constexpr:
            return value.value
        return value if kind in plain else unwrap(value)

    return unwrap_by_type


def _check_once_a_block(core: Any) -> Callable[[Any, Any, Any], None]:
    """`block_type.__init__`, which keeps shapes: blocks of equal shape have the same object."""
    check, shapes = core.block_type.__init__, dict[tuple[int, ...], Any]()
    kept = dict[tuple[str, tuple[int, ...]], tuple[Any, int, str]]()

    def check_once(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(shape)
        if not all(type(size) is int for size in sizes):
            check(self, element_ty, shape)
            return
        known = kept.get((element_ty.name, sizes))
        if known is None:
            check(self, element_ty, shape)
            same = shapes.setdefault(sizes, self.shape)
            known = kept[element_ty.name, sizes] = same, self.numel, self.name
        self.element_ty = element_ty
        self.shape, self.numel, self.name = known

    return check_once


def _describe_once_a_block(core: Any) -> Callable[[Any, Any, Any], None]:
    """`tensor.__init__`, which keeps the shapes of tensors as Triton's constants."""
    describe, kept = core.tensor.__init__, dict[tuple[int, ...], tuple[Any, Any]]()

    def describe_once(self: Any, handle: Any, kind: Any) -> None:
        sizes = tuple(kind.shape.values) if kind.is_block() else ()
        if sizes not in kept:
            describe(self, handle, kind)
            kept[sizes] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = kept[sizes]

    return describe_once


def _broadcast_unequal(semantic: Any) -> Callable[[Any, Any, Any], Any]:
    """`broadcast_impl_value`, which compares no shapes that are the same object."""
    broadcast = semantic.broadcast_impl_value

    def broadcast_unequal(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return broadcast_unequal


def _cast_others(semantic: Any) -> Callable[..., Any]:
    """`cast`, which compares no types that are the same object."""
    cast = semantic.cast

    def cast_others(self: Any, value: Any, kind: Any, *rounding: Any, **named: Any) -> Any:
        is_same = value.type.scalar is kind.scalar
        return value if is_same else cast(self, value, kind, *rounding, **named)

    return cast_others
