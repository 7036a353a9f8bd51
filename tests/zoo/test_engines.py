"""Whole engines whose target transformers computes: text, drafts, /server_info and the flag."""

from pathlib import Path

import pytest

from checks.zoo.lossless_runs import CASES, compare_texts, make_material, plain_engine
from checks.zoo.models import ZooModel
from specdecode_api.boot import EngineBoot
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import CannotServe
from tests.zoo.conftest import MakeModel

SEED = 3


@pytest.mark.parametrize("name", ["gemma2", "llama", "glm4_moe", "deepseek_v3", "glm4_moe_lite"])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE3"])
def test_text_equals_plain_text(
    name: str,
    algorithm: str,
    make_model: MakeModel,
    models: dict[str, ZooModel],
    eagle3: Path,
    tmp_path: Path,
) -> None:
    target = make_model(name)[0]
    models[name].make(tmp_path / "draft", change=0.004)
    drafts = {"STANDALONE": tmp_path / "draft", "EAGLE3": eagle3}
    pair, plain = plain_engine(target, drafts)
    runs = compare_texts(pair, algorithm, plain, make_material(97), SEED)
    assert (runs.cases, runs.difference) == (CASES, "")
    assert runs.drafted_tokens > 0
    assert runs.graph_steps > 0


def test_server_info_names_the_implementation(make_model: MakeModel) -> None:
    target = str(make_model("phi3")[0])
    core = build_core(EngineBoot.model_validate({"model": {"path": target}, "device": "cpu"}))
    assert core.facts["model_implementation"] == "transformers"
    llama = {"path": str(make_model("llama")[0])}
    core = build_core(EngineBoot.model_validate({"model": llama, "device": "cpu"}))
    assert core.facts["model_implementation"] == "native"


def test_the_flag_is_that_of_vllm(make_model: MakeModel) -> None:
    target = str(make_model("llama")[0])
    boot = parse_flags(["--model-path", target, "--model-impl", "transformers"])
    assert boot.model.implementation == "transformers"


def test_a_context_longer_than_the_model_is_refused(make_model: MakeModel) -> None:
    model = {"path": str(make_model("gemma2")[0]), "context_length": 1000}
    with pytest.raises(CannotServe, match="more than the 512 positions"):
        build_core(EngineBoot.model_validate({"model": model, "device": "cpu"}))
