"""Triton's interpreter, for trying the script out without a GPU."""

import os
from typing import Any


def interpret_kernels() -> None:
    """Make kernels run on a CPU; before anything imports Triton.

    Triton 3.6 turns a computed loop bound into an index by int(), which numpy 2.4 refuses for an
    array of one element.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch
