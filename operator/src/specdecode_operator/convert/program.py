"""The program of a command line: its environment, and the words after `vllm serve`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.convert.secrets import shown

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SERVER_MODULE: Final = "vllm.entrypoints.openai.api_server"
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_EXPECTED: Final = f"write vllm serve MODEL …, or python -m {_SERVER_MODULE} …"
_WRAPPERS: Final = ("docker", "podman", "kubectl", "uv", "uvx", "nohup", "sudo", "bash", "sh")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A command that starts vLLM's server."""

    words: tuple[str, ...]
    """After `vllm serve`, or after the module."""
    takes_model: bool
    """Whether a word that belongs to no flag is the model."""
    environment: Mapping[str, str] = field(default_factory=dict)


def server_command(words: Sequence[str]) -> ServerCommand:
    """Find the program; the arguments of an image without one are those of `vllm serve`.

    Raises:
        ConvertError: it is another program.
    """
    environment, rest = _environment(words)
    if not rest:
        raise ConvertError(f"the command line is empty: {_EXPECTED}")
    program = rest[0].rpartition("/")[2]
    if rest[0].startswith("-"):
        # As in the arguments of a container: the entry point of vLLM's image is `vllm serve`.
        return ServerCommand(tuple(rest), True, environment)
    if program == "vllm":
        if rest[1:2] != ["serve"]:
            raise ConvertError(f"vllm without serve starts no server: {_EXPECTED}")
        return ServerCommand(tuple(rest[2:]), True, environment)
    if _PYTHON.fullmatch(program):
        return ServerCommand(tuple(_after_module(rest[1:])), False, environment)
    raise _unknown_program(program, rest)


def _environment(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Take what stands before the program: variables, `env` and `exec`."""
    found, rest = dict[str, str](), list(words)
    while rest:
        if (variable := _ASSIGNMENT.fullmatch(rest[0])) is not None:
            found[variable[1]] = variable[2]
        elif rest[0] not in ("env", "exec", "/usr/bin/env"):
            break
        rest = rest[1:]
    return found, rest


def _after_module(words: Sequence[str]) -> Sequence[str]:
    rest = words[1:] if words[:1] == ["-u"] else words
    if list(rest[:2]) == ["-m", _SERVER_MODULE]:
        return rest[2:]
    raise _unknown_program("python", words)


def _unknown_program(program: str, words: Sequence[str]) -> ConvertError:
    if program == "sglang" or any(word.startswith("sglang.") for word in words):
        return ConvertError(f"command lines of SGLang are not converted: {_EXPECTED}")
    if program in _WRAPPERS:
        return ConvertError(f"{program} begins the command line: leave it out, and {_EXPECTED}")
    return ConvertError(f"{shown([program])} is not a server of vLLM: {_EXPECTED}")
