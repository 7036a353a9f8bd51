"""`python -m bench.gpu.peers.checkpoint FOLDER SIZE DEVICE`: write a checkpoint of a run.

`pair` as the size is the example pair with recorded answers.

A process of its own, so that the device is free afterwards. An error is the last line on standard
error.
"""

import sys
from pathlib import Path

import torch

from bench.gpu.peers.checkpoint.heads import agreements_of
from bench.gpu.peers.checkpoint.pair import write_pair
from bench.gpu.peers.checkpoint.sizes import SIZES
from bench.gpu.peers.checkpoint.writing import CheckpointError, is_written, write_checkpoint

PAIR = "pair"


def main(folder: Path, size_name: str, device: str) -> int:
    """Write it unless it is there; 1 if the disk is full."""
    try:
        if size_name == PAIR:
            write_pair(folder)
            return 0
        size = SIZES[size_name]
        agreements = agreements_of(size)
        if not is_written(folder, size, agreements):
            write_checkpoint(folder, size, agreements, torch.device(device))
    except (CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
