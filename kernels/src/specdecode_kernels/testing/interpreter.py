"""Triton's interpreter, made to work with this numpy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def computed_loop_bounds() -> Iterator[None]:
    """Let interpreted loops run to a bound that was computed; does nothing to compiled kernels.

    Triton 3.6 makes an index of an array of one element by int(), which numpy 2.4 refuses.
    """
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch
    try:
        yield
    finally:
        interpreter._patch_lang_tensor = original
