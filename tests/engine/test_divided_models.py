"""Ranks that have parts of a model compute what the whole model does, with equal bits on all."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.lossless.families import FAMILIES, LATENT, LLAMA, LONGROPE, RECURRENT, make_family
from checks.zoo.logits import PagedTexts
from specdecode_api.boot import EngineBoot
from specdecode_engine.model.drafts.eagle import Eagle1Head
from specdecode_engine.model.drafts.mtp import MtpHead
from specdecode_engine.model.layers.linears import DividedLinear, Linears
from specdecode_engine.model.target.config import AuxHiddenStates
from specdecode_engine.model.target.language_model import NeededRows
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.startup.build import build
from specdecode_engine.startup.config import resolve
from specdecode_kernels import TORCH, Backend
from specdecode_kernels.testing import backend_of
from tests.engine.checkpoints import Checkpoints, cut_vocabulary
from tests.engine.model.checkpoint.quantized.writers import CASES, write_quantized
from tests.engine.thread_ranks import on_ranks
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

NATIVE = [one for one in FAMILIES if one not in (LONGROPE, LATENT, *RECURRENT)]
CPU = torch.device("cpu")
VOCAB = 96
CHUNKS = [(0, 0, 20), (1, 0, 9)], [(0, 20, 27), (1, 9, 14)], [(0, 27, 28), (1, 14, 15)]
"""Spans of two texts: prompts, of whose second chunks the last rows alone are needed, and a step of
decode rows.
"""
Outputs = dict[str, Tensor]


@pytest.fixture(scope="module")
def llama(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 4 heads, 2 KV heads and a vocabulary that can be divided."""
    return cut_vocabulary(checkpoints.target, tmp_path_factory.mktemp("llama") / "target", VOCAB)


def load(
    folder: Path, ranks: Ranks = ALONE, dtype: torch.dtype = torch.float64, **loading: Any
) -> Llama:
    return Llama.load(folder, dtype=dtype, device=CPU, ranks=ranks, **loading)


@torch.no_grad()
def compute(model: Llama, ops: Backend = TORCH) -> Outputs:
    """Compute the chunks, with aux hidden states, and the logits of the last two."""
    texts = PagedTexts.make(model, 4, ops)
    tokens = torch.randint(VOCAB, (2, 28), generator=torch.Generator().manual_seed(5))
    outputs: Outputs = {}
    for number, spans in enumerate(CHUNKS):
        positions, view = texts.spans(spans)
        ids = torch.cat([tokens[text, start:end] for text, start, end in spans])
        needed = None
        if number == 1:
            rows = torch.tensor([end - start for _, start, end in spans]).cumsum(0) - 1
            _, of_last = texts.spans([(text, end - 1, end) for text, _, end in spans])
            needed = NeededRows(rows, of_last)
        hidden, aux = model.forward(ids, positions, view, AuxHiddenStates(layers=(0, 1)), needed)
        assert aux is not None
        outputs |= {f"aux {number}": aux, f"hidden {number}": hidden}
        outputs[f"logits {number}"] = model.logits(hidden)
    for group in texts.cache.groups:
        rows = texts.slots(torch.zeros(28, dtype=torch.int64), torch.arange(28))
        outputs[f"keys {len(outputs)}"] = group.k[:, rows]
    return outputs


def of_ranks(folder: Path, size: int, dtype: torch.dtype = torch.float64) -> list[Outputs]:
    return on_ranks(size, lambda ranks: compute(load(folder, ranks, dtype)))


def assert_alike(parts: Sequence[Outputs], whole: Outputs, tolerance: float = 1e-12) -> None:
    """Compare all that is whole on every rank; keys of a rank are those of its heads."""
    for name, expected in whole.items():
        found = [one[name] for one in parts]
        if name.startswith("keys"):
            shares = expected.shape[2]
            found = [torch.cat(found[:: len(parts) // min(shares, len(parts))], dim=2)]
        assert all(torch.equal(one, found[0]) for one in found), name
        assert (found[0] - expected).abs().max() <= tolerance * expected.abs().max(), name


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", NATIVE)
def test_ranks_compute_together_what_one_does(
    family: str, size: int, llama: Path, tmp_path: Path
) -> None:
    folder = llama if family == LLAMA else make_family(family, llama, tmp_path / family)
    assert_alike(of_ranks(folder, size), compute(load(folder)))


@pytest.mark.parametrize("name", ["w4a16-asymmetric", "gptq", "awq", "fp8-block", "int8-channel"])
def test_quantized_models_are_divided(name: str, llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / name
    write_quantized(CASES[name], llama, folder)
    # Integers whose groups are cut are dequantized in float32.
    assert_alike(of_ranks(folder, 2), compute(load(folder)), 1e-7)


@pytest.mark.parametrize("has_head", [False, True])
def test_a_tied_head_is_rows_of_the_embedding(has_head: bool, llama: Path, tmp_path: Path) -> None:
    folder = make_family("mistral", llama, tmp_path / "tied")
    text = (folder / "config.json").read_text()
    text = text.replace('"tie_word_embeddings": false', '"tie_word_embeddings": true')
    (folder / "config.json").write_text(text)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    if has_head:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    models = on_ranks(2, lambda ranks: load(folder, ranks))
    for model in models:
        assert isinstance(model.head, DividedLinear)
        assert model.head.weight.shape == (VOCAB // 2, 64)
        assert model.head.plain_weight().untyped_storage().data_ptr() == (
            model.embedding.untyped_storage().data_ptr()
        )
    assert_alike(of_ranks(folder, 2), compute(load(folder)))


def test_a_vocabulary_that_cannot_be_divided_has_a_whole_head(checkpoints: Checkpoints) -> None:
    assert checkpoints.vocab % 2
    assert_alike(of_ranks(checkpoints.target, 2), compute(load(checkpoints.target)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_a_cpu_compute_parts_with_bits_that_are_equal_on_all_ranks(
    dtype: torch.dtype, llama: Path
) -> None:
    ops = backend_of("cpu", CPU, dtype)

    def outputs(ranks: Ranks = ALONE) -> Outputs:
        linears = Linears(ops, plain_weights=None)
        return compute(load(llama, ranks, dtype, linears=linears), ops)

    assert_alike(on_ranks(2, outputs), outputs(), 1e-5 if dtype == torch.float32 else 0.03)


def for_fewer_tokens(draft: Path, folder: Path) -> Path:
    """Copy a draft without embedding and head for the target with the smaller vocabulary."""
    shutil.copytree(draft, folder)
    keys = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**keys, "vocab_size": VOCAB}))
    return folder


@pytest.fixture
def eagle(checkpoints: Checkpoints, tmp_path: Path) -> Path:
    """An EAGLE-1 head for the target, without a head of its own."""
    return for_fewer_tokens(checkpoints.eagle, tmp_path / "eagle")


def drafted(target: Llama, head: Eagle1Head | MtpHead) -> Tensor:
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(6), dtype=target.dtype)
    return head.logits(hidden)


def test_a_draft_shares_a_head_that_is_divided(llama: Path, eagle: Path) -> None:
    def scores(ranks: Ranks = ALONE) -> tuple[bool, Tensor]:
        target = load(llama, ranks)
        head = Eagle1Head.load(eagle, target)
        return head.head is target.head, drafted(target, head)

    (_, expected), found = scores(), on_ranks(2, scores)
    assert all(is_shared for is_shared, _ in found)
    assert torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changed_row", [None, 3, VOCAB - 3])
def test_ranks_agree_whether_a_draft_repeats_the_head(
    changed_row: int | None, llama: Path, eagle: Path
) -> None:
    """A row that differs is one of one rank's alone; then both have the draft's own head, whole."""
    weight = load_file(llama / "model.safetensors")["lm_head.weight"].clone()
    if changed_row is not None:
        weight[changed_row] += 1
    tensors = load_file(eagle / "model.safetensors")
    save_file({**tensors, "lm_head.weight": weight}, eagle / "model.safetensors")

    def head(ranks: Ranks) -> tuple[bool, tuple[int, ...]]:
        target = load(llama, ranks)
        own = Eagle1Head.load(eagle, target).head
        return own is target.head, tuple(own.weight.shape)

    is_shared = changed_row is None
    assert on_ranks(2, head) == [(is_shared, (VOCAB // 2 if is_shared else VOCAB, 64))] * 2


def test_an_mtp_module_scores_with_the_divided_head(
    checkpoints: Checkpoints, llama: Path, tmp_path: Path
) -> None:
    module = for_fewer_tokens(checkpoints.mtp, tmp_path / "mtp")

    def scores(ranks: Ranks = ALONE) -> Tensor:
        target = load(llama, ranks)
        return drafted(target, MtpHead.load(module, target))

    expected, found = scores(), on_ranks(2, scores)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-12)


@pytest.fixture
def fewer_tokens(checkpoints: Checkpoints, llama: Path, tmp_path: Path) -> Checkpoints:
    """The target whose head is divided, and drafts for it."""
    return replace(
        checkpoints,
        target=llama,
        draft=cut_vocabulary(checkpoints.draft, tmp_path / "draft", VOCAB),
        eagle=for_fewer_tokens(checkpoints.eagle, tmp_path / "eagle"),
        mtp_chain=for_fewer_tokens(checkpoints.mtp_chain, tmp_path / "mtp_chain"),
        vocab=VOCAB,
    )


@pytest.mark.parametrize(
    ("algorithm", "has_divided_head"),
    [
        *[(algorithm, True) for algorithm in ("STANDALONE", "EAGLE", "MTP_CHAIN")],
        *[(algorithm, False) for algorithm in ("EAGLE3", "DFLASH")],
    ],
)
def test_texts_of_a_divided_target_do_not_depend_on_the_draft(
    algorithm: str, has_divided_head: bool, checkpoints: Checkpoints, fewer_tokens: Checkpoints
) -> None:
    models = fewer_tokens if has_divided_head else checkpoints

    def answers(ranks: Ranks, algorithm: str) -> dict[str, Answer]:
        boot = EngineBoot.model_validate(boot_of(models, algorithm, 1))
        core = build(resolve(boot, ranks=ranks), tests_draft=False)
        assert isinstance(core.context.target.head, DividedLinear) == has_divided_head
        found = run(core, requests_of(models.vocab, 4, 16), preempted_at_step=6)
        assert (core.counters.decode.drafted_tokens > 0) == (algorithm != "NONE")
        return found

    plain = on_ranks(2, lambda ranks: answers(ranks, "NONE"))
    drafted = on_ranks(2, lambda ranks: answers(ranks, algorithm))
    assert plain[0] == plain[1] == drafted[0] == drafted[1]
