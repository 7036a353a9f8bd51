"""The heads of a run: those of a chosen agreement, and one that agrees as a trained head did."""

from bench.gpu.peers.cells import AGREEMENTS, RECORDED, head_name
from bench.gpu.peers.checkpoint.cycle import draw_agreement
from bench.gpu.peers.checkpoint.sizes import CheckpointSize
from bench.gpu.peers.recording import read_recording

Agreements = dict[str, tuple[int, ...]]


def agreements_of(size: CheckpointSize) -> Agreements:
    """Return by head the agreement bits along the cycle."""
    chosen: Agreements = {head_name(one): draw_agreement(size.cycle, one) for one in AGREEMENTS}
    return chosen | {RECORDED: read_recording().agreement(size.cycle)}
