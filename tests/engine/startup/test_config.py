"""What is resolved before weights are read, from the boot file and the checkpoints' configs."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.shapes import ForwardKind, ForwardWidths
from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import resolve
from tests.engine.thread_ranks import Meeting, ThreadRanks


def make_boot(target: Path, draft: Path, algorithm: str, **scheduling: object) -> EngineBoot:
    return EngineBoot.model_validate(
        {
            "model": {"path": str(target), "dtype": "float32"},
            "speculation": {
                "algorithm": algorithm, "draft_path": str(draft), "num_steps": 3, "topk": 4,
            },
            "scheduling": {"max_running_requests": 2, **scheduling},
            "device": "cpu",
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "name"), [("STANDALONE", "draft"), ("EAGLE", "eagle"), ("EAGLE3", "eagle3")]
)
def test_every_config_json_is_read_once_at_start(
    checkpoints: Any, monkeypatch: pytest.MonkeyPatch, algorithm: str, name: str
) -> None:
    opened: Counter[Path] = Counter()
    open_file = ConfigFile.open

    def count(file: Path) -> ConfigFile:
        opened[file] += 1
        return open_file(file)

    monkeypatch.setattr(ConfigFile, "open", count)
    draft = getattr(checkpoints, name)
    build_core(make_boot(checkpoints.target, draft, algorithm))
    assert {checkpoints.target / "config.json", draft / "config.json"} <= opened.keys()
    assert set(opened.values()) == {1}


def test_sizes_of_a_step_cover_its_widest_draft(checkpoints: Any) -> None:
    boot = make_boot(checkpoints.target, checkpoints.eagle3, "EAGLE3", overlap=True)
    config = resolve(boot)
    shape = config.sizes.shapes[3]
    assert config.sizes.max_draft_tokens == shape.num_tokens
    assert config.sizes.lag_tokens == config.sizes.max_path_length == 4
    assert config.sizes.reserve_tokens == shape.num_tokens + 4
    plain = resolve(make_boot(checkpoints.target, checkpoints.eagle3, "EAGLE3", overlap=False))
    assert plain.sizes.reserve_tokens == shape.num_tokens


def test_widths_are_those_of_target_and_draft(checkpoints: Any) -> None:
    head = resolve(make_boot(checkpoints.target, checkpoints.eagle3, "EAGLE3"))
    width = head.aux_spec.width(head.target.decoder.hidden_size)
    assert head.widths[ForwardKind.VERIFY] == ForwardWidths(
        head.target.vocab_size, hidden_out=width
    )
    assert head.widths[ForwardKind.CATCH_UP].hidden_out > 0
    draft = resolve(make_boot(checkpoints.target, checkpoints.draft, "STANDALONE"))
    assert draft.aux_spec.is_empty
    assert set(draft.widths.values()) == {ForwardWidths(draft.target.vocab_size)}


@pytest.mark.parametrize(
    ("proposed", "speculation", "num_steps"),
    [
        (5, {}, 5),
        (5, {"num_steps": 2}, 2),
        (5, {"policy": "goodput"}, 5),
        (4, {"policy": "goodput"}, 3),
        (5, {"table": {"1": {"candidate_steps": [2, 4, 6]}}}, 4),
        (5, {"num_draft_tokens": 4}, 3),
        (99, {}, 16),
        (None, {}, 3),
    ],
)
def test_the_draft_proposes_the_draft_steps_at_start(
    checkpoints: Any, tmp_path: Path, proposed: int, speculation: dict[str, Any], num_steps: int
) -> None:
    """As speculators writes it; a number that is set, or a table without it, is stronger."""
    shutil.copytree(checkpoints.eagle3, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "config.json"
    methods = [{"proposal_type": "greedy", "speculative_tokens": proposed}]
    keys = {"speculators_config": {"proposal_methods": methods}}
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))
    document = make_boot(checkpoints.target, tmp_path, "EAGLE3").model_dump(mode="json")
    del document["speculation"]["num_steps"]
    document["speculation"] |= {"topk": 1, **speculation}
    config = resolve(EngineBoot.model_validate(document))
    assert config.boot.speculation.num_steps == num_steps
    assert num_steps in config.sizes.shapes


def test_a_head_that_lacks_a_tensor_is_refused_before_weights_are_read(
    checkpoints: Any, tmp_path: Path
) -> None:
    shutil.copytree(checkpoints.eagle3, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorError, match=r"lacks norm\.weight"):
        resolve(make_boot(checkpoints.target, tmp_path, "EAGLE3"))


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_the_target_of_a_config_is_the_part_of_a_rank(
    implementation: str, checkpoints: Any
) -> None:
    """The draft is whole, and is checked against the whole target."""
    boot = make_boot(checkpoints.target, checkpoints.eagle3, "EAGLE3")
    model = boot.model.model_copy(update={"implementation": implementation})
    boot = boot.model_copy(update={"model": model})
    whole, config = resolve(boot), resolve(boot, ranks=ThreadRanks(1, 2, Meeting(2)))
    assert config.whole_target == whole.whole_target == whole.target
    assert config.target.decoder.num_attention_heads * 2 == whole.target.decoder.num_attention_heads
    assert config.target.layer_map.shapes[0].kv_heads == 1
    assert config.draft == whole.draft
    assert config.widths == whole.widths
