"""EAGLE in the whole engine: texts are those of plain decoding, pairs and positions the right ones.

Row i pairs the target's own hidden state at i with token i + 1 and foretells token i + 2; drafted
rows follow at position L, the number of tokens the target has computed.
"""

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.drafts.draft_head import DraftHead
from specdecode_engine.model.drafts.eagle import Eagle1Head, Eagle3Head
from specdecode_engine.model.drafts.mtp import MtpHead
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import KVView, PagedView, ScratchView
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.speculate.model_drafter import ModelDrafter
from specdecode_kernels import AttentionMetadata
from tests.engine.whole_engine import boot_of

CPU = torch.device("cpu")
PROMPTS = {"short": (3, 14, 15, 92, 65), "long": tuple(range(40, 61)), "one": (7,)}
ANSWER = 24


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random EAGLE-1 head for the engine tests' target; its config declares 8 positions."""
    folder = tmp_path_factory.mktemp("eagle")
    generator = torch.Generator().manual_seed(4)
    shapes = {
        "fc.weight": (64, 128),
        "fc.bias": (64,),
        "layers.0.self_attn.q_proj.weight": (64, 64),
        "layers.0.self_attn.k_proj.weight": (32, 64),
        "layers.0.self_attn.v_proj.weight": (32, 64),
        "layers.0.self_attn.o_proj.weight": (64, 64),
        "layers.0.mlp.gate_proj.weight": (96, 64),
        "layers.0.mlp.up_proj.weight": (96, 64),
        "layers.0.mlp.down_proj.weight": (64, 96),
        "layers.0.post_attention_layernorm.weight": (64,),
    }
    tensors = {n: torch.randn(shape, generator=generator) * 0.2 for n, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 97,
        "max_position_embeddings": 8,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_core(target: Path, *, overlap: bool = False, **speculation: object) -> EngineCore:
    scheduling = {"max_running_requests": 4, "chunked_prefill_tokens": 8, "overlap": overlap}
    boot = {
        "model": {"path": str(target), "dtype": "float64"},
        "speculation": speculation,
        "memory": {"page_size": 4},
        "scheduling": scheduling,
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(boot))


def run(
    core: EngineCore, prompts: dict[str, tuple[int, ...]], temperature: float = 0.0
) -> dict[str, list[int]]:
    sampling = SamplingParams(
        seed=5, max_tokens=ANSWER + 1, temperature=temperature, ignore_eos=True
    )
    for name, prompt in prompts.items():
        core.submit(Request(name, prompt, sampling))
    answers: dict[str, list[int]] = {name: [] for name in prompts}
    while core.has_work():
        for output in core.step():
            answers[output.request_id] += output.token_ids
    return answers


@pytest.mark.parametrize(
    ("overlap", "topk", "temperature"),
    [(False, 1, 0.0), (True, 4, 0.0), (True, 1, 1.0), (False, 4, 1.0)],
)  # every two of them together
def test_a_random_head_changes_no_text(
    checkpoints: Any, head: Path, overlap: bool, topk: int, temperature: float
) -> None:
    plain = run(make_core(checkpoints.target), PROMPTS, temperature)
    core = make_core(
        checkpoints.target,
        overlap=overlap,
        algorithm="EAGLE",
        draft_path=str(head),
        num_steps=3,
        topk=topk,
    )
    assert run(core, PROMPTS, temperature) == plain
    assert core.counters.decode.drafted_tokens > 0


@DraftHead.register
@dataclass
class RecordingHead:
    """A head that notes what it is given; it drafts like the one it wraps."""

    wrapped: Eagle1Head
    known: list[tuple[int, int, Tensor]] = field(default_factory=list)
    drafted: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    draft_to_target: None = None

    @property
    def config(self) -> Any:
        return self.wrapped.config

    @property
    def rotary_limits(self) -> RotaryLimits:
        return self.wrapped.rotary_limits

    def store_kv(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView) -> None:
        self.forward(ids, hidden, positions, kv)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        normed, recurrent = self.wrapped.forward(ids, hidden, positions, kv)
        if isinstance(kv, ScratchView):
            self.drafted.append((int(positions[0]), hidden, recurrent))
        else:
            self.starts.append(len(self.drafted))
            self.known += zip(positions.tolist(), ids.tolist(), hidden, strict=True)
            self.drafted.append((-1, hidden, recurrent[-1:]))
        return normed, recurrent

    def logits(self, normed: Tensor) -> Tensor:
        return self.wrapped.logits(normed)


@pytest.fixture
def recorder(checkpoints: Any, head: Path, monkeypatch: pytest.MonkeyPatch) -> list[RecordingHead]:
    """Every head that the engine loads from now on, wrapped."""
    made: list[RecordingHead] = []
    load_head = Eagle1Head.load

    def load(*args: Any, **options: Any) -> RecordingHead:
        made.append(RecordingHead(load_head(*args, **options)))
        return made[-1]

    monkeypatch.setattr(Eagle1Head, "load", load)
    return made


@pytest.mark.parametrize("prompt", ["short", "long", "one"])
def test_every_row_pairs_a_hidden_state_with_the_next_token(
    checkpoints: Any, head: Path, recorder: list[RecordingHead], prompt: str
) -> None:
    """Chunks of 8 cut the long prompt in three; their last rows wait for the next one's token."""
    core = make_core(checkpoints.target, algorithm="EAGLE", draft_path=str(head), num_steps=4)
    text = [*PROMPTS[prompt], *run(core, {"r": PROMPTS[prompt]})["r"]]
    target = Llama.load(checkpoints.target, dtype=torch.float64, device=CPU)
    hidden = hidden_states(target, torch.tensor(text))
    known = recorder[0].known
    assert {position for position, _, _ in known} >= set(range(len(PROMPTS[prompt])))
    last = len(text) - 2  # the newest token has no hidden state yet
    for position, token, row in known:
        if position <= last:
            assert token == text[position + 1], position
            torch.testing.assert_close(row, hidden[position], atol=1e-9, rtol=1e-9)


def hidden_states(target: Llama, ids: Tensor) -> Tensor:
    """Run the target over a whole text at once."""
    positions = torch.arange(len(ids))
    pool = KVCache(target.config.layer_map, 2, len(ids), target.dtype, CPU)
    layout = AttentionMetadata(torch.tensor([[1]]), len(ids), (len(ids),), positions + 1, len(ids))
    view = PagedView(pool, positions + len(ids), layout)
    return target.forward(ids, positions, view)[0]


@pytest.mark.parametrize("prompt", ["short", "long", "one"])
def test_drafted_rows_follow_at_the_length_and_read_their_parent(
    checkpoints: Any, head: Path, recorder: list[RecordingHead], prompt: str
) -> None:
    core = make_core(checkpoints.target, algorithm="EAGLE", draft_path=str(head), num_steps=4)
    run(core, {"r": PROMPTS[prompt]})
    calls = recorder[0].drafted
    rounds = [
        calls[start:end]
        for start, end in zip(recorder[0].starts, [*recorder[0].starts[1:], None], strict=True)
    ]
    rounds = [drafting for drafting in rounds if len(drafting) > 1]
    first = [drafting[1][0] for drafting in rounds]
    assert first[0] == len(PROMPTS[prompt])
    assert all(1 <= high - low <= 5 for low, high in itertools.pairwise(first))
    for drafting in rounds:
        positions = [position for position, _, _ in drafting[1:]]
        assert positions == list(range(positions[0], positions[0] + 3))  # 4 steps, 3 forwards
        for (_, _, parent), (_, read, _) in itertools.pairwise(drafting):
            assert torch.equal(parent, read)


class Oracle(RecordingHead):
    """Predicts a known text: row i predicts token i + 2."""

    text: Tensor

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        super().forward(ids, hidden, positions, kv)
        given = self.text[(positions + 2).clamp(max=len(self.text) - 1)]
        sure = torch.nn.functional.one_hot(given, 97).double()
        return sure, hidden

    def logits(self, normed: Tensor) -> Tensor:
        return normed * 100


@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("prompt", ["short", "long", "one"])
def test_a_head_that_knows_the_text_is_always_right(
    checkpoints: Any, head: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, topk: int
) -> None:
    plain = run(make_core(checkpoints.target), {"r": PROMPTS[prompt]})["r"]

    load_head = Eagle1Head.load

    def load(*args: Any, **options: Any) -> Oracle:
        oracle = Oracle(load_head(*args, **options))
        oracle.text = torch.tensor([*PROMPTS[prompt], *plain])
        return oracle

    monkeypatch.setattr(Eagle1Head, "load", load)
    core = make_core(
        checkpoints.target, algorithm="EAGLE", draft_path=str(head), num_steps=3, topk=topk
    )
    assert run(core, {"r": PROMPTS[prompt]})["r"] == plain
    assert core.counters.decode.emitted_tokens == ANSWER
    assert core.counters.decode.request_steps == ANSWER // 4
    assert core.counters.decode.accepted_tokens == 3 * ANSWER // 4


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "MTP"])
def test_a_prompt_leaves_the_keys_and_values_of_a_forward_and_computes_no_more(
    checkpoints, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    def pools_after_prompts() -> list[Tensor]:
        core = build_poisoned(EngineBoot.model_validate(boot_of(checkpoints, algorithm, 1)))
        for name, prompt in PROMPTS.items():
            core.submit(Request(name, prompt, SamplingParams(0, 1, 0.0, ignore_eos=True)))
        while core.has_work():
            core.step()
        drafter = core.context.drafter
        assert isinstance(drafter, ModelDrafter)
        assert isinstance(drafter._network, DraftHead)
        parts = [part for group in drafter._pool.groups for part in (group.k, group.v)]
        return [part.nan_to_num(-1.0) for part in parts]

    attended = set[int]()
    attend = PagedView.attend

    def counted(self: PagedView, *arguments: Any) -> Tensor:
        attended.add(id(self.pool))
        return attend(self, *arguments)

    monkeypatch.setattr(PagedView, "attend", counted)
    monkeypatch.setattr(PagedView, "fusible", lambda self, layers: None)  # layers op by op
    found = pools_after_prompts()
    assert len(attended) == 1  # the target's
    forwards = list[int]()

    def forward(
        self: DraftHead[Any], ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView
    ) -> None:
        forwards.append(len(ids))
        self.forward(ids, hidden, positions, kv)

    for head in (Eagle1Head, Eagle3Head, MtpHead):
        monkeypatch.setattr(head, "store_kv", forward)
    expected = pools_after_prompts()
    assert sum(forwards) >= len(PROMPTS["long"]) - 1
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
