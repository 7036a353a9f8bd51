"""Every algorithm has a method, which describes to the start of an engine how it drafts."""

from typing import Any

import pytest

from specdecode_api.boot import SpeculationBoot
from specdecode_api.speculation import Algorithm, Policy
from specdecode_engine.batch.shapes import DraftShape, ForwardKind, StepSizes
from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.implementations import read_config
from specdecode_engine.startup.config import resolve_speculation
from specdecode_engine.startup.draft_methods.method import DraftMethod
from specdecode_engine.startup.draft_methods.registry import METHODS, algorithm_of, read_draft
from specdecode_engine.startup.policies import range_table
from tests.engine.checkpoints import Checkpoints


def test_every_algorithm_of_the_contract_has_a_method() -> None:
    assert list(METHODS) == list(Algorithm), "in the contract's order"
    for algorithm, method in METHODS.items():
        if algorithm.needs_draft and method.head is None:
            assert algorithm is Algorithm.STANDALONE
        assert algorithm.takes_draft or method.head is None


def test_one_kind_of_head_at_most_recognizes_a_draft(checkpoints: Checkpoints) -> None:
    names = ("draft", "eagle", "eagle3", "dflash", "dspark", "peagle", "mtp_chain", "frozen_kv_mtp")
    for name in names:
        folder = getattr(checkpoints, name)
        config = ConfigFile.open(folder / "config.json")
        heads = {each: method.head for each, method in METHODS.items() if method.head}
        found = [each for each, head in heads.items() if head.recognizes(config)]
        assert found in ([], [algorithm_of(folder)])
        assert algorithm_of(folder) == {"draft": "STANDALONE"}.get(name, name.upper())


@pytest.mark.parametrize(
    ("algorithm", "draft"),
    [("MTP", "frozen_kv_mtp"), ("STANDALONE", "frozen_kv_mtp"), ("DFLASH", "eagle3")],
)
def test_a_draft_of_another_algorithm_is_refused_with_its_own(
    checkpoints: Checkpoints, algorithm: str, draft: str
) -> None:
    folder, target = getattr(checkpoints, draft), read_config(checkpoints.target)
    with pytest.raises(CheckpointError, match=f"draft is of algorithm {draft.upper()}; set"):
        read_draft(Algorithm(algorithm), folder, target)


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if each.takes_draft])
def test_forwards_are_of_kinds_with_known_widths(
    checkpoints: Checkpoints, algorithm: Algorithm
) -> None:
    target = read_config(checkpoints.target)
    folder = getattr(checkpoints, {"STANDALONE": "draft"}.get(algorithm, algorithm.lower()))
    draft, method = read_draft(algorithm, folder, target), METHODS[algorithm]
    sizes = StepSizes.over({n: DraftShape.of(n, 3) for n in (1, 2, 5)}, is_overlapped=True)
    kinds = {one.kind for shape in sizes.shapes.values()
             for one in method.forwards(sizes, shape, 2)}  # fmt: skip
    assert kinds == set(method.widths(draft))
    assert ForwardKind.VERIFY not in kinds
    usual = SpeculationBoot(algorithm=algorithm, draft_path=str(folder), policy=Policy.GOODPUT)
    speculation, table = resolve_speculation(usual, draft)
    assert table is not None
    assert speculation.num_steps in table.candidates()
    written = range_table(usual.entries, usual.policy)
    assert written is not None
    assert table.table_hash == written.up_to(draft.max_steps).table_hash


def test_without_a_method_nothing_is_drafted() -> None:
    nothing = DraftMethod()
    sizes = StepSizes.over({0: DraftShape.chain(0)}, is_overlapped=False)
    assert list(nothing.forwards(sizes, DraftShape.chain(3), 2)) == []
    arguments: Any = (None,) * 5
    with pytest.raises(NotImplementedError, match="DraftMethod has no draft model"):
        nothing.wire(*arguments)
