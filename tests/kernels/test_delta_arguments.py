"""Arguments of the gated delta rule that do not fit are refused, in a sentence."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from specdecode_kernels import TORCH, DeltaShape
from specdecode_kernels.testing import checked
from specdecode_kernels.testing.gated_delta import DeltaForm, ancestry_of, delta_rows

OPS = checked(TORCH)
FORM = DeltaForm(DeltaShape(1, 2, 4, 6, 3), nodes=4)
PARAMS, STATE = FORM.draw_params(0), FORM.draw_state(0)
STATE.drafted.fill_(0)
STATE.drafted_gates.fill_(0)
U, GATES = FORM.draw_inputs(4, 0)
ROWS = delta_rows([1], [4], 0)
SLOTS, ACCEPTED = torch.tensor([1, 2]), torch.tensor([1, 0])


def mix(u=U, gates=GATES, params=PARAMS, state=STATE, layer=0, rows=ROWS) -> object:
    return OPS.gated_delta(u, gates, params, state, layer, rows)


def keep(slots=SLOTS, path=None, accepted=ACCEPTED) -> None:
    OPS.keep_drafted(PARAMS, STATE, slots, path, accepted)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "layer": (lambda: mix(layer=2), "there is no layer 2 of 2"),
    "rows": (
        lambda: mix(u=U[:3]),
        r"u \[3, 20\] and gates \[4, 4\] must be \[4, 20\] and \[4, 4\]",
    ),
    "types": (lambda: mix(gates=GATES.half()), "gates torch.float16 must be of the states' inputs"),
    "heads": (
        lambda: mix(params=replace(PARAMS, shape=DeltaShape(2, 3, 4, 6, 3))),
        "3 v heads cannot share 2 k heads",
    ),
    "convolution": (
        lambda: mix(params=replace(PARAMS, conv=PARAMS.conv.transpose(1, 2))),
        r"conv \[2, 20, 3\] must be \[2, 3, 20\], contiguous",
    ),
    "strided states": (
        lambda: mix(
            state=replace(STATE, matrices=STATE.matrices.transpose(3, 4).mT.contiguous().mT)
        ),
        r"matrices .* must be \[2, 5, 2, 4, 6\], contiguous",
    ),
    "type of states": (
        lambda: mix(state=replace(STATE, matrices=STATE.matrices.half())),
        "matrices torch.float16 must be torch.float32",
    ),
    "starts": (
        lambda: mix(rows=ROWS._replace(batch_size=2)),
        r"cu_seqlens \[2\] must be one for each of 2 requests and the end",
    ),
    "type of starts": (
        lambda: mix(rows=ROWS._replace(cu_seqlens=torch.tensor([0, 4], dtype=torch.int32))),
        "cu_seqlens torch.int32 must be int64",
    ),
    "counts": (
        lambda: mix(rows=ROWS._replace(cu_seqlens=torch.tensor([0, 3]))),
        r"requests of \[3\] rows are not 4 rows",
    ),
    "large drafts": (
        lambda: mix(
            state=replace(
                STATE,
                drafted=STATE.drafted[:, :, :2].contiguous(),
                drafted_gates=STATE.drafted_gates[:, :, :2].contiguous(),
            )
        ),
        "a draft of 4 nodes has room for 3",
    ),
    "trees next to chunks": (
        lambda: mix(rows=delta_rows([1], [4], 1, ancestry_of([[0, 0, 1, 1]]))),
        r"ancestry \[1, 4, 4\] torch.bool must be \[1, nodes, nodes\] bool, without chunks",
    ),
    "accepted": (lambda: keep(accepted=ACCEPTED[:1]), r"accepted \[1\] must both be \[batch\]"),
    "path": (lambda: keep(path=torch.zeros(3, 2).long()), r"path \[3, 2\] must be \[2, steps\]"),
    "many accepted": (lambda: keep(accepted=ACCEPTED * 9), "9 nodes were accepted of 3"),
    "type of slots": (lambda: keep(slots=SLOTS.int()), "slots and accepted must be int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_what_fits_is_computed() -> None:
    assert mix() is not None
    keep()
