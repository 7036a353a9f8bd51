"""Chains of MTP modules in whole engines: texts, transformers' drafts as golden, exact rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.drafts_zoo.format import chain_drafter_state
from checks.drafts_zoo.formats.mtp_chain import FORMS
from checks.lossless.poison import build_poisoned
from checks.lossless.run import RandomNumSteps
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_rest import DraftRest
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.forward import ForwardOutputs
from specdecode_engine.speculate.chain_drafter import ChainDrafter
from specdecode_engine.speculate.draft_state import KEPT_ROWS
from specdecode_engine.startup.config import CannotServe
from tests.engine.checkpoints import CHAIN as MODULES
from tests.engine.checkpoints import Checkpoints
from tests.engine.mtp_checkpoints import with_modules
from tests.engine.test_mtp import PROMPTS, make_core, run
from tests.engine.whole_engine import boot_of, requests_of, tokens_of
from tests.engine.whole_engine import run as run_requests


@pytest.mark.parametrize("graphs", ["off", "static"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_modules_in_the_targets_checkpoint_change_no_text(
    checkpoints: Checkpoints, tmp_path: Path, graphs: str, temperature: float
) -> None:
    folder = with_modules(checkpoints.target, tmp_path / "with", "deepseek", 3, 4, 5)
    plain = run(make_core(checkpoints.target), temperature)
    for num_steps in range(1, MODULES + 1):
        core = make_core(folder, graphs=graphs, algorithm="MTP_CHAIN", num_steps=num_steps)
        assert run(core, temperature) == plain
        counted = core.counters.decode
        assert counted.drafted_tokens > 0
        assert (core.facts["mtp_modules"], core.facts["mtp_modules_used"]) == (3, num_steps)
        assert core.context.graphs.report().graph_steps == (counted.steps if graphs != "off" else 0)


def test_draft_steps_that_change_every_step_change_no_text(checkpoints: Checkpoints) -> None:
    requests = requests_of(checkpoints.vocab, 4, max_tokens=40)
    plain = run_requests(build_poisoned(_boot(checkpoints)), requests)
    core = build_poisoned(_boot(checkpoints, 0, 1, 2, 3))
    core.scheduler.drafting.policy = RandomNumSteps((0, 1, 2, 3), seed=4)
    assert tokens_of(run_requests(core, requests, preempted_at_step=9)) == tokens_of(plain)
    assert core.counters.decode.accepted_tokens > 0


def _boot(checkpoints: Checkpoints, *candidates: int) -> EngineBoot:
    algorithm = "MTP_CHAIN" if candidates else "NONE"
    document = boot_of(checkpoints, algorithm, 1, memory={"page_size": 4})
    if candidates:
        entry = {"candidate_steps": candidates, "update_interval": 1, "warmup_batches": 0}
        document["speculation"] |= {"policy": "ema", "table": {"1": entry}}
    return EngineBoot.model_validate(document)


@pytest.mark.parametrize("name", FORMS)
def test_logits_of_every_module_are_those_of_transformers_layers(tmp_path: Path, name: str) -> None:
    """Windows, sinks, gates, parts of heads that turn: nothing that a drafted token might hide."""
    form = FORMS[name]
    files = form.write(tmp_path, seed=2, fit_steps=0)
    reference, core = (
        form.read(files),
        make_core(
            files.target, algorithm="MTP_CHAIN", draft_path=str(files.draft), num_steps=MODULES
        ),
    )
    with _recorded_logits(core) as found:
        run(core)
    assert len(found) > 2 * MODULES
    for (committed, drafted), logits in found.items():
        expected = reference.next_logits(committed, drafted)
        assert expected is not None
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert {len(drafted) for _, drafted in found} == set(range(MODULES))


Logits = dict[tuple[tuple[int, ...], tuple[int, ...]], torch.Tensor]


@contextmanager
def _recorded_logits(core: EngineCore) -> Iterator[Logits]:
    """Note the logits of every module by the committed and the drafted tokens."""
    graphs, table, found = core.context.graphs, core.context.table, Logits()
    run_graph = graphs.run

    def noted(kind: ForwardKind, inputs: DecodeInputs) -> ForwardOutputs:
        outputs = run_graph(kind, inputs)
        if kind is ForwardKind.MODULE:
            batch = inputs.gather(table)
            for row, length in enumerate(batch.lengths.tolist()):
                known = torch.arange(length + 1 + inputs.first)
                tokens = table.tokens_at(batch.req_indices[row].expand(len(known)), known).tolist()
                key = tuple(tokens[: length + 1]), tuple(tokens[length + 1 :])
                found[key] = outputs.logits[row].double()
        return outputs

    with mock.patch.object(graphs, "run", noted):
        yield found


@pytest.fixture
def golden(checkpoints: Checkpoints, tmp_path: Path) -> Iterator[Any]:
    """Return transformers' drafts of a target with modules, by the number of known tokens."""
    import transformers
    from transformers.generation import candidate_generator

    kind = candidate_generator.MTPCandidateGenerator
    original, found = kind.get_candidates, dict[int, list[int]]()

    def noted(self: Any, input_ids: Any, *arguments: Any, **options: Any) -> Any:
        drafted, logits = original(self, input_ids, *arguments, **options)
        if drafted.shape[1] > (known := input_ids.shape[1]):
            found[known] = drafted[0, known:].tolist()
        return drafted, logits

    def draft(folder: Path, pattern: str, prompt: tuple[int, ...]) -> dict[int, list[int]]:
        found.clear()
        llama: Any = transformers.LlamaForCausalLM
        with mock.patch.object(llama, "_keys_to_ignore_on_load_unexpected", [pattern]):
            options = {"dtype": torch.float64, "attn_implementation": "eager"}
            model = llama.from_pretrained(folder, **options).eval()
            model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, use_mtp=True)
        return dict(found)

    with mock.patch.object(kind, "get_candidates", noted):
        yield draft


@pytest.mark.parametrize("modules", [1, MODULES])
def test_drafts_are_those_of_transformers(
    checkpoints: Checkpoints, tmp_path: Path, golden: Any, modules: int
) -> None:
    """DeepSeek's layout around the layer of a dense target, one module and several."""
    numbers = range(3, 3 + modules)
    folder = with_modules(
        checkpoints.target, tmp_path / "with", "deepseek", *numbers, num_mtp_layers=modules
    )
    _pass_hidden_states_on(folder, numbers)
    theirs = golden(folder, r"model\.layers\.[345]\.", PROMPTS[1])
    algorithm = "MTP" if modules == 1 else "MTP_CHAIN"
    assert (
        _agreeing(
            theirs, make_core(folder, dtype="float64", algorithm=algorithm, num_steps=modules)
        )
        >= 8
    )


def _pass_hidden_states_on(folder: Path, numbers: range) -> None:
    """Make the draft tokens such that some are accepted."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for number in numbers:
        projection = tensors[f"model.layers.{number}.eh_proj.weight"]
        projection[:, len(projection) :] += 3 * torch.eye(len(projection))
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("has_norm", [False, True])
def test_drafts_of_inklings_layout_are_those_of_transformers(
    checkpoints: Checkpoints, tmp_path: Path, golden: Any, has_norm: bool
) -> None:
    """Names, order of inputs and the shared norm; the blocks of Inkling itself are refused."""
    keys = {"mtp_hidden_states_first": True, "chain_hidden_post_norm": has_norm}
    folder = with_modules(
        checkpoints.target, tmp_path / "with", "inkling", 0, 1, num_mtp_layers=2, **keys
    )
    file = folder / "model.safetensors"
    if not has_norm:
        tensors = load_file(file)
        del tensors["model.mtp.chain_norm.weight"]
        save_file(tensors, file, metadata={"format": "pt"})
    theirs = golden(folder, r"model\.mtp\..*", PROMPTS[1])
    assert (
        _agreeing(theirs, make_core(folder, dtype="float64", algorithm="MTP_CHAIN", num_steps=2))
        >= 8
    )


def _agreeing(theirs: dict[int, list[int]], core: EngineCore) -> int:
    """Count the texts after which both draft, and the same."""
    drafter, ours = core.context.drafter, dict[int, list[int]]()
    assert drafter is not None
    draft = drafter.draft

    def noted(batch: Any, *arguments: Any) -> Any:
        made = draft(batch, *arguments)
        ours[int(batch.lengths[0]) + 1] = made.tokens[0].tolist()
        return made

    vars(drafter)["draft"] = noted
    sampling = SamplingParams(seed=0, max_tokens=20, temperature=0.0, ignore_eos=True)
    core.submit(Request("r", PROMPTS[1], sampling))
    while core.has_work():
        core.step()
    common = theirs.keys() & ours.keys()
    assert {known: ours[known] for known in common} == {known: theirs[known] for known in common}
    return len(common)


def test_modules_that_lack_rows_catch_up_exactly(checkpoints: Checkpoints) -> None:
    """One draft step for a while, then three: rows are those of a prefill, for every module."""
    core = build_poisoned(_boot(checkpoints, 0, 1, 3))
    policy = core.scheduler.drafting.policy = RandomNumSteps((0, 1, 3), seed=0)
    sampling = SamplingParams(seed=0, max_tokens=60, temperature=0.0, ignore_eos=True)
    core.submit(Request("r", PROMPTS[1], sampling))
    drafter = core.context.drafter
    assert isinstance(drafter, ChainDrafter)
    for num_steps, steps in ((1, 12), (0, 6), (1, 3), (3, 1)):
        _use(policy, num_steps)
        for _ in range(steps):
            core.step()
    (sequence,) = core.scheduler.running
    assert sequence.req_index is not None
    assert drafter.is_complete(sequence.req_index)
    fresh = build_poisoned(_boot(checkpoints, 3))
    fresh.submit(Request("f", tuple(sequence.tokens), sampling))
    while not fresh.scheduler.running or fresh.scheduler.running[0].is_prefilling:
        fresh.step()
    expected = chain_drafter_state(fresh, fresh.scheduler.running[0])
    for name, (first, rows) in chain_drafter_state(core, sequence).items():
        start = max(first, expected[name].first)
        own = rows[start - first :]
        other = expected[name].rows[start - expected[name].first :]
        count = min(len(own), len(other))
        assert count > 20
        torch.testing.assert_close(own[:count], other[:count], atol=1e-5, rtol=1e-5)


def _use(policy: RandomNumSteps, num_steps: int) -> None:
    vars(policy)["decide"] = lambda *_: Decision(num_steps, 1, 0, Reason.STATIC)


def test_rows_whose_hidden_states_are_lost_are_zero_and_not_reused(
    checkpoints: Checkpoints,
) -> None:
    core = build_poisoned(_boot(checkpoints, 0, 1, 3))
    policy = core.scheduler.drafting.policy = RandomNumSteps((0, 1, 3), seed=0)
    core.scheduler.drafting.rest = DraftRest()  # all steps keep hidden states
    lost = KEPT_ROWS + 30
    sampling = SamplingParams(seed=0, max_tokens=lost + 20, temperature=0.0, ignore_eos=True)
    core.submit(Request("r", PROMPTS[1], sampling))
    drafter = core.context.drafter
    assert isinstance(drafter, ChainDrafter)
    _use(policy, 3)
    core.step()  # 21 prompt tokens in chunks of 12
    core.step()
    core.step()
    (sequence,) = core.scheduler.running
    reusable, before = sequence.reusable, len(sequence.tokens)
    for num_steps in (0, 1):  # the first module catches up; the others lack the rows
        _use(policy, num_steps)
        while len(sequence.tokens) < before + (lost if num_steps == 0 else lost + 2):
            core.step()
    _use(policy, 3)
    core.step()
    assert sequence.req_index is not None
    assert not drafter.is_complete(sequence.req_index)
    assert sequence.reusable <= reusable + MODULES
    rows = chain_drafter_state(core, sequence)
    for module in range(MODULES):
        keys = rows[f"k of group 0, module {module}"].rows
        assert bool(torch.isfinite(keys).all())
        zero = (keys == 0).flatten(1).all(dim=1).nonzero().flatten().tolist()
        assert zero
        assert zero == list(range(zero[0], zero[-1] + 1))
        assert zero[-1] < len(sequence.tokens) - KEPT_ROWS + 3
    _use(policy, 1)
    while core.has_work():
        core.step()


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        ({"num_steps": 4}, "4 draft steps are more than the 3 tokens that .* can draft; lower"),
        ({"num_steps": 2, "topk": 4}, "MTP_CHAIN drafts chains alone: set topk 4 to 1"),
    ],
)
def test_more_draft_steps_than_modules_and_trees_are_refused(
    checkpoints: Checkpoints, speculation: dict[str, Any], message: str
) -> None:
    with pytest.raises((CannotServe, ValueError), match=message):
        make_core(
            checkpoints.target,
            algorithm="MTP_CHAIN",
            draft_path=str(checkpoints.mtp_chain),
            **speculation,
        )


def test_default_tables_end_at_the_modules(checkpoints: Checkpoints) -> None:
    options: dict[str, Any] = {
        "algorithm": "MTP_CHAIN",
        "draft_path": str(checkpoints.mtp_chain),
        "profile_seconds": 0,
    }
    core = make_core(checkpoints.target, policy="goodput", **options)
    assert core.scheduler.drafting.policy.table.candidates() == (0, 1, 2, 3)
    assert core.facts["num_steps_at_start"] == MODULES
