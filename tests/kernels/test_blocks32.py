"""Sums in blocks of 32: multiply-adds, AMX in software and the definition agree to the bit."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specdecode_kernels import ExpertWeights, GatedActivation, QuantizedTensor
from specdecode_kernels.cpu.compile import CACHE_VARIABLE
from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.loading import load_library
from specdecode_kernels.cpu.packing import pack_weight
from specdecode_kernels.cpu.tuning import Tuning
from specdecode_kernels.testing import backend_of, checked
from tests.kernels.blocks32 import emulate_linear
from tests.kernels.drawn_maps import FORMS, DrawnMap, draw_map
from tests.kernels.maps_library import agree, compile_maps, is_as_defined, map_in_blocks32
from tests.kernels.mixtures import WIDTH, draw_routing, draw_weights, normal
from tests.kernels.quantized import FLOAT4, draw_quantized
from tests.kernels.quantized import FORMS as QUANTIZED

MAPS = 1000
PARTS = 5
FIRST_OF_ERRORS = 10**6
MAPS_OF_A_CONTROL = 100
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def multiply_adds() -> Library:
    return load_library(torch.bfloat16)


@pytest.fixture(scope="module")
def in_software(tmp_path_factory: pytest.TempPathFactory) -> Library:
    library = compile_maps(tmp_path_factory.mktemp("software"), in_software=True)
    assert library.use_amx(is_wanted=True) == 0
    return library


def rows_in_batches(seed: int, rows: int) -> Iterator[slice]:
    """Yield one row alone, and a few rows next to one another."""
    rng = random.Random(seed)
    for height in (1, rng.randint(1, min(rows, 40))):
        first = rng.randint(0, rows - height)
        yield slice(first, first + height)


def assert_maps_agree(seed: int, *libraries: Library) -> DrawnMap:
    """Compare the bits of the definition, of each library, and of some rows alone."""
    drawn = draw_map(seed)
    wanted = emulate_linear(drawn.x, drawn.weight, drawn.bias)
    for library in libraries:
        library.use(Tuning.draw(random.Random(seed)))
        assert agree(map_in_blocks32(library, drawn), wanted), drawn.name
        for some in rows_in_batches(seed, len(wanted)):
            assert agree(map_in_blocks32(library, drawn, some), wanted[some]), (drawn.name, some)
    return drawn


@pytest.fixture
def tuning_is_kept(multiply_adds: Library) -> Iterator[None]:
    before = multiply_adds.tuning
    yield
    multiply_adds.use(before)


@pytest.mark.usefixtures("tuning_is_kept")
@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_maps_have_the_bits_of_the_definition(
    part: int, multiply_adds: Library, in_software: Library
) -> None:
    drawn = [
        assert_maps_agree(seed, multiply_adds, in_software) for seed in range(part, MAPS, PARTS)
    ]
    assert {one.name.split(": ")[1].split(",")[0] for one in drawn} == set(FORMS)
    assert min(len(one.x) for one in drawn) == 1
    assert max(len(one.x) for one in drawn) > 240  # more than a slab


MULTIPLY_ADDS_ERRORS = {
    "both sums are added one by one": (
        "        sum += even[row][part] + odd[row][part];",
        "        sum += even[row][part];\n        sum += odd[row][part];",
    ),
    "rows of the chains are swapped": ("x[rows + row];", "x[row];"),
    "sums are not flushed": (
        "    uint64_t before = flush_subnormals();\n    long tiles",
        "    uint64_t before = __builtin_ia32_stmxcsr();\n    long tiles",
    ),
    "the scale is that of the next group": (
        "place_of(of, of.first + at).header, part)",
        "place_of(of, of.first + (at + of.together) % of.inputs).header, part)",
    ),
    "scales of the wrong group of float4": (
        "place_of(of, at + group), to + group / 2 * BLOCK",
        "(struct place){place_of(of, at + group).weights, place_of(of, at).header, NULL},"
        " to + group / 2 * BLOCK",
    ),
    "scales are flushed": (
        "        scale_groups(of, groups, rows, sums);",
        "        uint64_t mode = flush_subnormals();\n"
        "        scale_groups(of, groups, rows, sums);\n"
        "        restore_rounding(mode);",
    ),
    "the remainder of the inputs is not zero": (
        "    memset(to, 0, (size_t)((padded_inputs(by) - by.inputs) * rows) * sizeof(float));",
        "    for (long at = 0; at < (padded_inputs(by) - by.inputs) * rows; at++) to[at] = 1;",
    ),
}
TILES_ERRORS = {
    "rows of the chains are swapped": (
        "*to = first << 16 | second;", "*to = second << 16 | first;",
    ),
    "the remainder of the inputs is not zero": (
        "at + 1 < by.inputs ? from[by.order ? by.order[at + 1] : at + 1] : 0;",
        "at + 1 < by.inputs ? from[by.order ? by.order[at + 1] : at + 1] : 0x3f80;",
    ),
    "a group continues the sums of another": (
        "            sums += rows * BLOCK;\n        }",
        "            sums += (at + SUM_BLOCK < of.inputs ? 0 : rows) * BLOCK;\n        }",
    ),
    "the buffer that is read is widened": (
        "buffers + (at / SUM_BLOCK + 1) % 2 * BUFFER_WORDS);", "buffers);",
    ),
    "tiles of 32 rows have one height": (
        "rows > HEIGHT ? rows - HEIGHT : rows;", "rows > HEIGHT ? HEIGHT : rows;",
    ),
}  # fmt: skip
MOST_MAPS_OF_AN_ERROR = 400
FORMS_OF_ERRORS = {
    "the scale is that of the next group": "int4",
    "scales of the wrong group of float4": "nvfp4",
    "scales are flushed": "mxfp4",
    "the remainder of the inputs is not zero": "int8 groups zeros order",
    "a group continues the sums of another": "int4",
    "the buffer that is read is widened": "int8",
}
"""Of maps that show them; others are of any form."""


def assert_error_is_found(library: Library, error: str) -> None:
    form = FORMS_OF_ERRORS.get(error)
    seeds = range(FIRST_OF_ERRORS, FIRST_OF_ERRORS + MOST_MAPS_OF_AN_ERROR)
    assert not all(is_as_defined(library, draw_map(seed, form=form)) for seed in seeds)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep libraries with errors out of the user's cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("in_software", [False, True])
def test_libraries_without_an_error_have_the_bits_of_the_definition(
    in_software: bool, tmp_path: Path
) -> None:
    """The same build as of those with errors."""
    library = compile_maps(tmp_path, {}, in_software=in_software)
    assert not in_software or library.use_amx(is_wanted=True) == 0
    seeds = range(FIRST_OF_ERRORS, FIRST_OF_ERRORS + MAPS_OF_A_CONTROL)
    assert all(is_as_defined(library, draw_map(seed)) for seed in seeds)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("error", MULTIPLY_ADDS_ERRORS)
def test_errors_in_multiply_adds_are_found(error: str, tmp_path: Path) -> None:
    assert_error_is_found(compile_maps(tmp_path, dict([MULTIPLY_ADDS_ERRORS[error]])), error)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("error", TILES_ERRORS)
def test_errors_in_tiles_are_found(error: str, tmp_path: Path) -> None:
    library = compile_maps(tmp_path, dict([TILES_ERRORS[error]]), in_software=True)
    assert library.use_amx(is_wanted=True) == 0
    assert_error_is_found(library, error)


@pytest.mark.parametrize("form", ["bfloat16", *QUANTIZED, *FLOAT4])
def test_rows_of_experts_have_the_same_bits_in_any_batch(form: str) -> None:
    ops = checked(backend_of("cpu", CPU, torch.bfloat16, "blocks32"))
    assert ops.pack_weight is not None
    plain = draw_weights(torch.bfloat16)
    assert isinstance(plain.gate_up, Tensor)
    assert isinstance(plain.down, Tensor)
    both = (plain.gate_up, plain.down)
    forms = both if form == "bfloat16" else [draw_quantized(form, one) for one in both]
    gate_up, down = map(ops.pack_weight, forms)
    weights = ExpertWeights(gate_up, down, plain.gate_up_bias, plain.down_bias)
    x, routing = normal(40, WIDTH).bfloat16(), draw_routing(40)
    whole = ops.experts(x, routing, weights, GatedActivation("silu"))
    for first, rows in ((0, 1), (39, 1), (3, 8), (20, 20)):
        some = slice(first, first + rows)
        part = type(routing)(routing.ids[some], routing.weights[some])
        found = ops.experts(x[some], part, weights, GatedActivation("silu"))
        assert torch.equal(found, whole[some]), some


def test_weights_of_either_order_are_read_back_the_same(multiply_adds: Library) -> None:
    for form in (*QUANTIZED, *FLOAT4):
        weight = draw_quantized(form, normal(100, 333).bfloat16())
        plain = [
            pack_weight(multiply_adds, weight, sums=sums).plain() for sums in ("inputs", "blocks32")
        ]
        assert torch.equal(*plain), form


def test_groups_without_whole_blocks_are_refused(multiply_adds: Library) -> None:
    weight = QuantizedTensor(
        torch.zeros(64, 96, dtype=torch.int8), torch.ones(64, 2), torch.Size((64, 96)),
        torch.bfloat16, 48,
    )  # fmt: skip
    with pytest.raises(ValueError, match="groups of 48 inputs; these must be a multiple of 32"):
        pack_weight(multiply_adds, weight, sums="blocks32")
    narrow = draw_quantized("nvfp4", normal(64, 128).bfloat16())
    wide = replace(narrow, group=64, scales=narrow.scales[:, ::4].contiguous())
    with pytest.raises(ValueError, match="groups of 64 inputs; these must divide 32"):
        pack_weight(multiply_adds, wide, sums="blocks32")
