"""A row's path through quantized maps follows from its position, and with it its bits.

Triton's interpreter has one product for all tiles; here that of tiles of 64 rows keeps fewer bits
of its sums, to show where it is used. Rows are of float16: the interpreter cuts off to bfloat16,
unlike torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams, TokenLogprobs
from specdecode_engine.batch.sequence import PrefillChunk, Sequence
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.steps.block_rows import rows_by_block
from specdecode_kernels import PROMPT_BLOCK, tokens_in_blocks
from specdecode_kernels.choice import KERNELS_VARIABLE
from specdecode_kernels.testing import mended_interpreter
from specdecode_kernels.triton import linear as triton_linear
from tests.engine.checkpoints import Checkpoints

PROMPT = tuple(place * 7 % 90 + 3 for place in range(150))
IN_BLOCKS, LAST = 128, len(PROMPT) - 1
MAX_TOKENS, CHUNK = 3, 512


@dataclass(slots=True)
class Launches:
    """The rows of each launch of a map by the height of its tiles, since the last `clear`."""

    found: list[tuple[int, list[int] | int]] = field(default_factory=list)

    def clear(self) -> None:
        self.found.clear()


@pytest.fixture(scope="module")
def launched() -> Iterator[Launches]:
    """Records launches; products of tiles of 64 rows keep 12 bits of each sum."""
    from triton.runtime import interpreter

    def create_dot(_: Any, a: Any, b: Any, sums: Any, *options: Any) -> Any:
        total = sums.data.copy()
        for at in range(a.data.shape[1]):
            total += a.data[:, at, None].astype(total.dtype) * b.data[at]
            if a.data.shape[0] == triton_linear.MANY_ROWS:
                total.view("int32")[:] &= ~0xFFF
        return interpreter.TensorHandle(total, sums.dtype.scalar)

    launches, launch = Launches(), triton_linear._launch

    def recorded(
        x: torch.Tensor, weight: Any, bias: Any, out: Any, chosen: torch.Tensor | None, height: int
    ) -> None:
        launches.found.append((height, len(x) if chosen is None else chosen.tolist()))
        launch(x, weight, bias, out, chosen, height)

    with pytest.MonkeyPatch.context() as patch, mended_interpreter():
        patch.setenv(KERNELS_VARIABLE, "triton")
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
        patch.setattr(triton_linear, "_launch", recorded)
        yield launches


def engine_of(checkpoints: Checkpoints, chunk: int = CHUNK) -> EngineCore:
    document = {
        "model": {"path": str(checkpoints.target), "dtype": "float16", "quantization": "int8"},
        "speculation": {"algorithm": "NONE"},
        "scheduling": {"max_running_requests": 64, "chunked_prefill_tokens": chunk},
        "attention_backend": "torch",
        "device": "cpu",
    }
    return build_core(EngineBoot.model_validate(document))


def request_of(name: str, prompt: tuple[int, ...], *, scores: bool = True) -> Request:
    sampling = SamplingParams(
        0, MAX_TOKENS, 0.0, ignore_eos=True, logprobs=3, prompt_logprobs=1 if scores else None
    )
    return Request(name, prompt, sampling)


Scores = list[TokenLogprobs]


def finish(core: EngineCore, name: str) -> tuple[list[int], Scores]:
    """Run until all requests end; return tokens and all log-probabilities of one."""
    tokens, scores = list[int](), Scores()
    while core.has_work():
        for output in core.step():
            if output.request_id == name:
                tokens += output.token_ids
                scores += [*(output.prompt_logprobs or ()), *(output.logprobs or ())]
    return tokens, scores


@pytest.fixture(scope="module")
def alone(checkpoints: Checkpoints, launched: Launches) -> tuple[list[int], Scores]:
    """The prompt in one chunk, and which rows took which path."""
    core = engine_of(checkpoints)
    launched.clear()
    core.submit(request_of("long", PROMPT))
    answer = finish(core, "long")
    many, few = list(range(IN_BLOCKS)), list(range(IN_BLOCKS, len(PROMPT)))
    assert (triton_linear.MANY_ROWS, many) in launched.found
    assert (triton_linear.SOME_ROWS, few) in launched.found
    # Heads, also of prompt logprobs, and steps of decoding.
    assert all(height < PROMPT_BLOCK for height, rows in launched.found if isinstance(rows, int))
    return answer


@pytest.mark.parametrize("chunk", [16, 48, 100])
def test_a_prompt_in_chunks_has_the_same_bits(
    chunk: int,
    checkpoints: Checkpoints,
    launched: Launches,
    alone: tuple[list[int], Scores],
) -> None:
    core = engine_of(checkpoints, chunk)
    launched.clear()
    core.submit(request_of("long", PROMPT))
    assert finish(core, "long") == alone
    many = [rows for height, rows in launched.found if height == triton_linear.MANY_ROWS]
    first = list(range(min(chunk, IN_BLOCKS)))
    assert many[0] == first
    sizes = {len(rows) for rows in many if not isinstance(rows, int)}
    assert sizes == {min(chunk, IN_BLOCKS - at) for at in range(0, IN_BLOCKS, chunk)}


def test_a_prompt_among_63_decode_rows_has_the_same_bits(
    checkpoints: Checkpoints, launched: Launches, alone: tuple[list[int], Scores]
) -> None:
    core = engine_of(checkpoints)
    for number in range(63):
        core.submit(request_of(str(number), (5, 6, 7 + number), scores=False))
    core.step()
    launched.clear()
    core.submit(request_of("long", PROMPT))
    assert finish(core, "long") == alone
    others = list(range(IN_BLOCKS, len(PROMPT) + 63))
    assert (triton_linear.MANY_ROWS, list(range(IN_BLOCKS))) in launched.found
    assert (triton_linear.SOME_ROWS, others) in launched.found


def test_without_prompt_logprobs_the_answer_has_the_same_bits(
    checkpoints: Checkpoints, launched: Launches, alone: tuple[list[int], Scores]
) -> None:
    """The last layer then computes the last row alone."""
    core = engine_of(checkpoints)
    launched.clear()
    core.submit(request_of("long", PROMPT, scores=False))
    tokens, scores = finish(core, "long")
    assert tokens == alone[0]
    assert scores == alone[1][-MAX_TOKENS:]
    assert (triton_linear.FEW_ROWS, 1) in launched.found


def test_an_answer_that_is_computed_again_takes_the_path_for_few(
    checkpoints: Checkpoints, launched: Launches
) -> None:
    """Of 127 tokens of a prompt the first 64 lie in a block, whatever follows them."""
    prompt = PROMPT[:127]
    core = engine_of(checkpoints)
    core.submit(request_of("long", prompt, scores=False))
    tokens, scores = finish(core, "long")
    request = request_of("long", prompt, scores=False).resumed(tokens[:2])
    other = engine_of(checkpoints)
    launched.clear()
    other.submit(request)
    assert finish(other, "long") == (tokens[2:], scores[2:])
    assert (triton_linear.MANY_ROWS, list(range(64))) in launched.found
    assert (triton_linear.SOME_ROWS, list(range(64, 129))) in launched.found


def test_the_path_of_a_row_changes_its_bits(
    checkpoints: Checkpoints, launched: Launches, alone: tuple[list[int], Scores]
) -> None:
    """Else the tests above would prove nothing."""
    core = engine_of(checkpoints)
    assert core.context.ops.row_paths is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(core.context.ops.row_paths), "of", lambda *_: None)
        core.submit(request_of("long", PROMPT))
        assert finish(core, "long")[1] != alone[1]


@pytest.mark.parametrize(
    ("prompt", "start", "end", "inside"),
    [
        (64, 0, 64, 0),
        (65, 0, 65, 64),
        (128, 0, 128, 64),
        (129, 0, 129, 128),
        (150, 100, 150, 28),
        (150, 130, 150, 0),
        (10, 0, 90, 0),  # an answer of 80 tokens
    ],
)
def test_rows_in_whole_blocks_of_the_prompt(prompt: int, start: int, end: int, inside: int) -> None:
    sequence = Sequence.of(request_of("r", (1,) * prompt))
    short = PrefillChunk(Sequence.of(request_of("s", (1,) * 66)), 60, 66)
    many, few = rows_by_block((short, PrefillChunk(sequence, start, end)))
    assert many == [*range(4), *range(6, 6 + inside)]
    assert few == [4, 5, *range(6 + inside, 6 + end - start)]


def test_the_last_token_of_a_prompt_is_in_no_block() -> None:
    assert [tokens_in_blocks(count) for count in (0, 1, 64, 65, 128, 129)] == [0, 0, 0, 64, 64, 128]
