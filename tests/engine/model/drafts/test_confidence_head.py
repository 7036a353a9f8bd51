"""DSpark's confidence head: its values, what they decide, and that nothing else reads it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.drafts_zoo.drafting import Drafted, for_several, record_drafts
from checks.drafts_zoo.engines import build_drafting, decode
from checks.drafts_zoo.format import DraftFormat
from checks.drafts_zoo.formats import all_formats
from checks.drafts_zoo.formats.dspark import DSparkReference
from checks.drafts_zoo.targets import ANSWER_TOKENS, PROMPTS
from checks.lossless.block_drafts import save_dspark
from checks.lossless.poison import build_poisoned
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.drafts.confidence_head import ConfidenceHead
from tests.engine.checkpoints import HIDDEN, VOCAB, Checkpoints
from tests.engine.model.drafts.test_dspark import edit, force_bigrams, successor
from tests.engine.test_block_drafts import PROMPTS as SHORT_PROMPTS
from tests.engine.test_block_drafts import make_boot, request

STEPS, VERIFIED = 5, 2


def divided(verify_tokens: int | None, **others: object) -> dict[str, object]:
    entry = {"candidate_steps": [STEPS], "verify_tokens": verify_tokens}
    return {"policy": "static", "num_steps": STEPS, "table": {"1": entry}, **others}


@pytest.mark.parametrize("kind", ["vanilla", "gated"])
def test_scores_are_those_of_a_slow_reference(kind: str, tmp_path: Path) -> None:
    """The vanilla format's head reads hidden states alone, the gated one's the token before too."""
    form = all_formats()[f"dspark-{kind}"]
    assert isinstance(form, DraftFormat)
    form = replace(form, num_steps=STEPS, speculation=divided(VERIFIED))
    files = form.write(tmp_path, 1)
    reference = form.reference(files)
    core = build_drafting(form, files)
    drafts = record_drafts(core)
    decode(core, PROMPTS, ANSWER_TOKENS)
    checked = drafts[:: -(-len(drafts) // 24)]
    for drafted in checked:
        own = for_several(reference, STEPS) if drafted.batch_size > 1 else reference
        assert isinstance(own, DSparkReference)
        wanted = own.log_survival(drafted.committed, drafted.tokens)
        found = torch.tensor(drafted.scores, dtype=torch.float64)
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
    assert len({round(one.scores[0], 3) for one in checked}) > len(checked) // 2


def logit(token: int) -> float:
    """How sure the head is after a token; no two are alike."""
    return (token * 37 % VOCAB) / 8 - 5


def save_forced(checkpoints: Checkpoints, folder: Path) -> None:
    """Write a draft of certain bigrams, whose confidence follows from the token before alone."""
    save_dspark(folder, checkpoints.target, "vanilla", markov_rank=VOCAB)
    force_bigrams(folder, "vanilla")
    weight = torch.tensor([[0.0] * HIDDEN + [logit(token) for token in range(VOCAB)]])
    bias = torch.zeros(1)
    edit(folder, **{"confidence_head.proj.weight": weight, "confidence_head.proj.bias": bias})


def best_by_confidence(drafts: Sequence[Drafted]) -> list[int]:
    """Count the tokens of each request among the best of all."""
    ranked: list[tuple[float, int, int]] = []
    for place, drafted in enumerate(drafts):
        token, score = drafted.committed[-1], 0.0
        for step in range(STEPS):
            score += float(torch.nn.functional.logsigmoid(torch.tensor(logit(token))))
            ranked.append((-score, step, place))
            token = successor(token)
    chosen = [place for *_, place in sorted(ranked)[: VERIFIED * len(drafts)]]
    return [chosen.count(place) for place in range(len(drafts))]


@pytest.mark.parametrize("graphs", ["off", "static"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_most_confident_requests_verify_the_most(
    checkpoints: Checkpoints, tmp_path: Path, verified_tokens: list[list[int]], graphs: str,
    temperature: float,
) -> None:  # fmt: skip
    save_forced(checkpoints, tmp_path / "draft")
    speculation = divided(VERIFIED, algorithm="DSPARK")
    core = build(checkpoints, tmp_path / "draft", speculation, graphs)
    drafts = record_drafts(core)
    for number, prompt in enumerate(SHORT_PROMPTS):
        core.submit(request(str(number), prompt, temperature=temperature, max_tokens=90))
    while len(verified_tokens) < 20:
        core.step()
    by_step: list[list[Drafted]] = []
    while drafts:
        size = drafts[0].batch_size
        by_step.append(drafts[:size])
        del drafts[:size]
    wanted = [best_by_confidence(one) for one in by_step]
    assert verified_tokens == wanted[: len(verified_tokens)]
    assert {0, STEPS} <= {count for step in verified_tokens for count in step}


def build(
    checkpoints: Checkpoints, draft: Path, speculation: dict[str, object], graphs: str
) -> EngineCore:
    sections: dict[str, Any] = {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "graphs": {"mode": graphs},
        "scheduling": {"max_running_requests": 4, "overlap": False},
    }
    return build_poisoned(make_boot(checkpoints.target, draft, speculation=speculation, **sections))


@pytest.mark.parametrize("topk", [1, 3])
def test_a_step_that_verifies_all_computes_no_confidence(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, topk: int
) -> None:
    calls = list[None]()
    monkeypatch.setattr(ConfidenceHead, "log_survival", lambda *_: calls.append(None))
    speculation = divided(None, algorithm="DSPARK", topk=topk)
    core = build(checkpoints, checkpoints.dspark, speculation, "off")
    core.submit(request("a", SHORT_PROMPTS[1]))
    while core.has_work():
        core.step()
    assert core.counters.decode.drafted_tokens > 0
    assert not calls


def test_a_head_that_gives_no_number_is_not_trusted() -> None:
    head = ConfidenceHead(torch.ones(1, 2), torch.zeros(1))
    hidden = torch.tensor([[[torch.nan, 0.0], [9.0, 9.0]], [[1.0, 2.0], [torch.inf, 0.0]]])
    none = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(1, 1)
    scores = head.log_survival(hidden, *none)
    assert scores[0].tolist() == [-torch.inf, -torch.inf]
    expected = torch.nn.functional.logsigmoid(torch.tensor(3.0))
    torch.testing.assert_close(scores[1], expected.expand(2))
    assert scores.dtype == torch.float32


def test_a_draft_without_a_confidence_head_is_divided_by_its_probabilities(
    checkpoints: Checkpoints, tmp_path: Path, verified_tokens: list[list[int]]
) -> None:
    """A Markov head that makes its bigrams certain leaves nothing to order."""
    save_dspark(
        tmp_path / "draft", checkpoints.target, "vanilla", markov_rank=VOCAB,
        enable_confidence_head=False,
    )  # fmt: skip
    file = tmp_path / "draft" / "model.safetensors"
    kept = {name: one for name, one in load_file(file).items() if "confidence" not in name}
    save_file(kept, file)
    force_bigrams(tmp_path / "draft", "vanilla")
    core = build(checkpoints, tmp_path / "draft", divided(VERIFIED, algorithm="DSPARK"), "off")
    drafts = record_drafts(core)
    decode(core, SHORT_PROMPTS, 12)
    assert drafts
    assert all(one.scores == (0.0,) * STEPS for one in drafts)
    assert sum(map(sum, verified_tokens)) > 0
