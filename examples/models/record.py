"""Record which drafted tokens are accepted: `uv run python examples/models/record.py`.

The file has a line per kind of text, its bits as a hexadecimal number, the first bit the lowest.
`make models` writes it after training.
"""

import argparse
import json
from pathlib import Path

import torch

from recipe import acceptance

FOLDER = Path(__file__).parent
FILE = "acceptance.json"


def write(folder: Path) -> None:
    """Record the models of a folder, and write the file there."""
    bits = acceptance.record(folder)
    document = {
        "what": "1 where the EAGLE-3 head's first drafted token is the target's, by kind of text",
        "tokens": acceptance.TOKENS,
        "kinds": {kind: f"{int(one[::-1], 2):x}" for kind, one in bits.items()},
    }
    (folder / FILE).write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Read the flags and record."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models are")
    torch.set_num_threads(1)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
