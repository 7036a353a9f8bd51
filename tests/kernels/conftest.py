"""One thread per process, and Triton's interpreter made to work with this numpy."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def bounds_of_interpreted_loops() -> None:
    """Let a loop run to a bound that was computed.

    Triton 3.6 makes an index of an array of one element by int(), which numpy 2.4 refuses.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    original = interpreter._patch_lang_tensor

    def patch(tensor, scope) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch
