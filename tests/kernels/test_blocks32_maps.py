"""Multiply-adds in the order blocks32 have the bits of the definition on x86-64 with FMA.

`test_cpu_library` runs this with the kernels of smaller levels. ARM, which is refused, is left out.
"""

import pytest
import torch

from specdecode_kernels.cpu.loading import load_library
from tests.kernels.drawn_maps import FORMS, draw_map
from tests.kernels.maps_library import is_as_defined

FIRST, MAPS = 3 * 10**6, 8


@pytest.mark.parametrize("form", sorted(set(FORMS)))
def test_maps_of_each_form_have_the_bits_of_the_definition(form: str) -> None:
    library = load_library(torch.bfloat16)
    for seed in range(FIRST, FIRST + MAPS):
        drawn = draw_map(seed, form=form)
        assert is_as_defined(library, drawn), drawn.name
