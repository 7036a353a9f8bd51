"""Flags are read from sources of vLLM's and SGLang's kinds, and compared with the rows."""

from dataclasses import replace

import pytest

from checks.peer_flags.__main__ import compare, compare_keys, speculative_keys
from checks.peer_flags.declarations import DeclaredFlag, UnreadableSource
from checks.peer_flags.sglang_flags import read_flags as read_sglang
from checks.peer_flags.vllm_flags import read_flags as read_vllm
from specdecode_api.peer_flags import Peer, Takes, read_peer_flags

CONFIG = """
Names = Literal["a", "b"]
Sizes: TypeAlias = int | list[int]

@config
class Base:
    seed: int = 0

@config
class Engine(Base):
    name: Names | None = None
    sizes: list[int] | None = None
    joined: Sizes = 1
    eager: bool | None = None
    token: bool | str | None = None
    nested: "Base | None" = None
    backend: SkipValidation[str] = ""
"""
ENGINE = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        kwargs = get_kwargs(Engine)
        group = parser.add_argument_group()
        group.add_argument("--name", "-n", **kwargs["name"])
        group.add_argument("--seed", **{**kwargs["seed"], "default": None})
        group.add_argument("--sizes", **kwargs["sizes"])
        group.add_argument("--joined", **kwargs["joined"])
        group.add_argument("--eager", **kwargs["eager"])
        group.add_argument("--token", **kwargs["token"])
        group.add_argument("--nested", **get_kwargs(Engine)["nested"])
        backend_kwargs = kwargs["backend"]
        group.add_argument("--backend", **backend_kwargs)
        parser.add_argument("--quiet", action="store_true")

class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--log", action=argparse.BooleanOptionalAction)
"""
FRONTEND = """
@config
class BaseFrontendArgs:
    chat_template: str | None = None

@config
class FrontendArgs(BaseFrontendArgs):
    origins: list[str] = field()
    keys: list[str] | None = None

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        del frontend_kwargs["origins"]["nargs"]

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--config")
"""
VLLM = {
    "vllm/config/engine.py": CONFIG,
    "vllm/engine/arg_utils.py": ENGINE,
    "vllm/entrypoints/common/cli_args.py": FRONTEND,
}
SGLANG = {
    "sglang/srt/server_args.py": """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--old", action=DeprecatedStoreTrueAction, new_flag="--new")
        parser.add_argument("--config", type=str)
""",
    "sglang/srt/arg_groups/fields/model.py": """
class Model(msgspec.Struct):
    path: A[str, Arg(help="…", aliases=["--model"])]
    tp_size: A[int, Arg(cli_name="--tensor", aliases=["--tp"])] = 1
    names: A[Optional[List[str]], "…"] = None
    rows: A[Optional[List[int]], Arg(type_parser=json_list_type)] = None
    trust: A[bool, "…"] = False
    fused: A[Optional[bool], Arg(action=argparse.BooleanOptionalAction)] = None
    check: A[Optional[str], Arg(nargs="?", const="")] = None
    hidden: A[bool, Arg(no_cli=True)] = False
    derived: A[int, Derived(fn="…")] = 0
    plain: int = 0
""",
}


def shapes(flags: list[DeclaredFlag]) -> dict[tuple[str, ...], str]:
    return {flag.names: flag.takes.value for flag in flags}


def test_flags_of_vllm_are_derived_from_fields_of_its_classes() -> None:
    assert shapes(read_vllm(VLLM)) == {
        ("--name", "-n"): "value",
        ("--seed",): "value",
        ("--sizes",): "values",
        ("--joined",): "values",
        ("--eager",): "boolean",
        ("--token",): "optional",
        ("--nested",): "value",
        ("--backend",): "value",
        ("--quiet",): "switch",
        ("--log",): "boolean",
        ("--config",): "value",
        ("--chat-template",): "value",
        ("--origins",): "value",
        ("--keys",): "values",
    }


def test_flags_of_sglang_are_its_annotated_fields() -> None:
    assert shapes(read_sglang(SGLANG)) == {
        ("--old",): "switch",
        ("--config",): "value",
        ("--path", "--model"): "value",
        ("--tensor", "--tp"): "value",
        ("--names",): "values",
        ("--rows",): "value",
        ("--trust",): "switch",
        ("--fused",): "boolean",
        ("--check",): "optional",
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [("**kwargs[", "**other()["), ('action="store_true"', 'action="count"'), ("EngineArgs", "X")],
)
def test_a_declaration_of_another_kind_is_not_passed_over(old: str, new: str) -> None:
    engine = {"vllm/engine/arg_utils.py": ENGINE.replace(old, new)}
    with pytest.raises((UnreadableSource, KeyError)):
        read_vllm(VLLM | engine)


def test_flags_without_rows_and_rows_without_flags_are_named() -> None:
    table = read_peer_flags()
    few = {name: table.flags[name] for name in ("--max-num-seqs", "--host")}
    host, seqs = (DeclaredFlag((name,), Takes.VALUE) for name in ("--host", "--max-num-seqs"))
    table = replace(table, flags=few)
    assert list(compare(table, {Peer.VLLM: [host, seqs], Peer.SGLANG: [host]})) == []
    named = DeclaredFlag(("--host", "-h"), Takes.SWITCH)
    new = DeclaredFlag(("--new",), Takes.VALUE)
    assert list(compare(table, {Peer.VLLM: [named, new], Peer.SGLANG: [seqs]})) == [
        "--host: the row lacks the alias -h of vllm",
        "--host: whether a value follows differs from vllm, which has switch",
        "--new of vllm has no row",
        "--max-num-seqs: sglang defines it too",
        f"--max-num-seqs has a row, but vllm {table.versions[Peer.VLLM]} does not define it",
        f"--host has a row, but sglang {table.versions[Peer.SGLANG]} does not define it",
    ]


def test_keys_of_speculative_config_are_compared() -> None:
    table = read_peer_flags()
    keys = set(table.speculative_config)
    assert list(compare_keys(table, keys)) == []
    assert list(compare_keys(table, keys - {"model"} | {"new"})) == [
        "key new of --speculative-config has no row",
        "--speculative-config has no key model",
    ]
    source = "class SpeculativeConfig:\n    method: str\n    model: str = ''\n    x = 1\n"
    assert speculative_keys(source) == {"method", "model"}
