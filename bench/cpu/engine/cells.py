"""What is measured: one engine configuration and one batch size."""

from dataclasses import dataclass
from pathlib import Path

from specdecode_api.boot import EngineBoot

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "models"
DRAFTS = {"STANDALONE": "draft", "EAGLE": "eagle", "EAGLE3": "eagle3"}
PLAIN = "NONE"


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration; `topk` and `num_steps` are 0 for plain decoding."""

    algorithm: str
    topk: int
    num_steps: int
    batch_size: int

    @property
    def name(self) -> str:
        """How the cell is called in the results."""
        if self.algorithm == PLAIN:
            return f"{PLAIN} b{self.batch_size}"
        return f"{self.algorithm} k{self.topk} s{self.num_steps} b{self.batch_size}"

    def boot(self) -> EngineBoot:
        """The boot file of an engine for this cell."""
        speculation: dict[str, object] = {}
        if self.algorithm != PLAIN:
            speculation = {
                "algorithm": self.algorithm,
                "draft_path": str(EXAMPLES / DRAFTS[self.algorithm]),
                "topk": self.topk,
                "num_steps": self.num_steps,
            }
        return EngineBoot.model_validate(
            {
                "model": {"path": str(EXAMPLES / "target")},
                "speculation": speculation,
                "scheduling": {"max_running_requests": self.batch_size},
                "memory": {"prefix_cache": False},
                "device": "cpu",
                "threads": 1,
            }
        )


def all_cells() -> list[Cell]:
    """Every algorithm whose draft is there, with chains and trees, and plain decoding."""
    sizes, shapes = (1, 8), ((1, 3), (1, 5), (2, 4), (4, 3), (8, 3))
    cells = [Cell(PLAIN, 0, 0, size) for size in sizes]
    for algorithm, folder in DRAFTS.items():
        if (EXAMPLES / folder).exists():
            cells += [Cell(algorithm, k, s, size) for size in sizes for k, s in shapes]
    return cells
