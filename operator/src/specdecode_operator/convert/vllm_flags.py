"""Flags of a command line for runtime VLLM: fields where there are, else `engine.extraArgs`."""

import re
from collections.abc import Mapping
from typing import Final

from specdecode_api.peer_flags import Takes, Treatment
from specdecode_api.peer_values import read_integer
from specdecode_api.v1alpha1.engine import SchedulerSpec
from specdecode_api.v1alpha1.runtimes import OPERATORS_ARGUMENTS, OWNED_ARGUMENTS
from specdecode_operator.convert.fields import (
    ON_SEVERAL_GPUS,
    RESOURCE_FIELDS,
    boot_value,
    integer,
    is_number,
)
from specdecode_operator.convert.options import Option, ReadOptions
from specdecode_operator.convert.result import ResourceDraft, as_written

MAX_ARGUMENTS: Final = 64
MAX_ARGUMENT_LENGTH: Final = 1024

_FIELD_OF_ARGUMENT: Final = {
    flag: field for field, flags in OWNED_ARGUMENTS.items() for flag in flags
}
_TLS: Final = "routers, probes and the operator speak plain HTTP: end TLS before the routers"
_ONE_POD: Final = "an engine runs in one pod with one port"
_BREAKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"),
        _TLS,
    ),
    "--enable-ssl-refresh": _TLS,
    "--grpc": "routers speak HTTP",
    "--grpc-port": "routers speak HTTP",
    **dict.fromkeys(
        (
            *("--data-parallel-external-lb", "--data-parallel-hybrid-lb"),
            *("--data-parallel-multi-port-external-lb", "--data-parallel-rank"),
            *("--data-parallel-start-rank", "--data-parallel-address", "--data-parallel-rpc-port"),
            *("--data-parallel-supervisor-port", "--data-parallel-size-local"),
            *("--master-addr", "--master-port"),
        ),
        _ONE_POD,
    ),
}
"""Flags with which the operator cannot run vLLM."""
_PARSERS: Final = {
    "--tool-call-parser": "serving.toolParser",
    "--reasoning-parser": "serving.reasoningParser",
}
_QUEUED: Final = "engine.scheduler.maxQueuedRequests"
_RUNNING: Final = "engine.scheduler.maxRunningRequests"
_TOOL_CHOICE: Final = "--enable-auto-tool-choice"


def add_flags(draft: ResourceDraft, options: ReadOptions) -> None:
    """Set fields and `engine.extraArgs` from the flags."""
    draft.set("engine.runtime", "VLLM")
    draft.set("router", {})
    draft.set("rollout.mode", "Manual")
    extra = list[str]()
    for option in options.options:
        if not _set_field(draft, option):
            extra += _extra(draft, option)
    if len(extra) > MAX_ARGUMENTS:
        draft.errors.append(
            f"engine.extraArgs would have {len(extra)} words, more than {MAX_ARGUMENTS}: remove "
            "flags that are not needed"
        )
    if extra:
        draft.set("engine.extraArgs", extra, "flags without a field")
    _subtract_running(draft)


def _subtract_running(draft: ResourceDraft) -> None:
    """Let a limit of all requests be one of those that wait, as the resource has it."""
    total = draft.get(_QUEUED)
    if total is None:
        return
    default = SchedulerSpec.model_fields["max_running_requests"].default
    running = draft.get("parallelism.data", 1) * draft.get(_RUNNING, default)
    origin = draft.origins[_QUEUED]
    if total < running:
        draft.errors.append(
            f"{origin}: it also counts running requests, up to {running} here: raise it, or lower "
            "--max-num-seqs"
        )
    draft.set(_QUEUED, total - running, origin)


def _set_field(draft: ResourceDraft, option: Option) -> bool:
    """Set the field of a flag; returns whether there is one that takes the value."""
    if option.key:
        return False
    try:
        return _set_own(draft, option) or _set_shared(draft, option)
    except ValueError as error:
        if is_number(option):
            draft.errors.append(f"{option.given}: {error}")
        elif _owner(option) is not None:
            draft.drop(option.given, str(error))
        else:
            return False
        return True


def _set_own(draft: ResourceDraft, option: Option) -> bool:
    """Flags that Specdecode does not take, or reads in another way."""
    flag = option.flag
    if flag in ON_SEVERAL_GPUS:
        draft.take(option, ON_SEVERAL_GPUS[flag], integer(option))
    elif flag == "--enable-expert-parallel":
        draft.take(option, "parallelism.expert", option.words[0] == "true")
    elif flag == "--max-num-queued-reqs":
        draft.take(option, _QUEUED, integer(option))
    elif flag == "--cudagraph-capture-sizes":
        sizes = [read_integer(word) for word in option.words]
        draft.take(option, "engine.graphs.batchSizes", sizes)
    elif flag in _PARSERS:
        draft.take(option, _PARSERS[flag], option.words[0] or "None")
    elif flag == "--attention-backend":
        backend = {"FLASHINFER": "FlashInfer", "TRITON_ATTN": "Triton"}.get(option.words[0].upper())
        if backend is None:
            return False
        draft.take(option, "engine.attentionBackend", backend)
    elif flag == "--shutdown-timeout" and option.words[0] == "0":
        draft.drop(option.given, "running requests would be lost: the operator sets drainTimeout")
    else:
        return flag == _TOOL_CHOICE
    return True


def _set_shared(draft: ResourceDraft, option: Option) -> bool:
    """Flags that both runtimes take."""
    row = option.row
    if row.treatment is not Treatment.TAKEN or row.field is None:
        return False
    if row.field not in RESOURCE_FIELDS:
        return False
    value = boot_value(option)
    if value is None:
        if option.words[0] != "false":
            draft.drop(option.given, "without a number the model's own counts")
        return True
    field = RESOURCE_FIELDS[row.field]
    draft.take(option, field.path, field.written(value))
    return True


def _owner(option: Option) -> str | None:
    """The field that the operator writes a flag from; empty if no field does."""
    for flag in (option.flag, *option.row.aliases):
        if flag in _FIELD_OF_ARGUMENT:
            return _FIELD_OF_ARGUMENT[flag]
        if flag in OPERATORS_ARGUMENTS:
            return ""
    return None


def _extra(draft: ResourceDraft, option: Option) -> list[str]:
    """The words of a flag in `engine.extraArgs`; none if it was listed or refused instead."""
    owner = _owner(option)
    if option.flag in _BREAKS:
        draft.drop(option.given, _BREAKS[option.flag])
    elif owner is not None:
        draft.drop(option.given, f"use {owner}" if owner else "the operator sets it")
    elif any(len(word) > MAX_ARGUMENT_LENGTH for word in option.words):
        draft.drop(option.given, f"an argument has at most {MAX_ARGUMENT_LENGTH} characters")
    else:
        if any(re.match(r"(\.{0,2}|~)/", word) for word in option.words):
            draft.notes.append(f"{option.given} names a file: add it to the pods by template")
        return _words(option)
    return []


def _words(option: Option) -> list[str]:
    """The flag by its own name, with its values."""
    row, key = option.row, f".{option.key}" if option.key else ""
    values = [as_written(word) for word in option.words]
    if row.is_switch:
        is_on = option.words[0] == "true"
        if not is_on and row.takes is Takes.SWITCH:
            return []
        return [row.flag if is_on else f"--no-{row.flag.removeprefix('--')}"]
    if len(values) == 1 and (not values[0] or values[0].startswith("-")):
        return [f"{row.flag}{key}={values[0]}"]
    return [f"{row.flag}{key}", *values]


def check_tools(draft: ResourceDraft, options: ReadOptions) -> None:
    """List a switch that nothing needs, and one that a resource with a parser always has."""
    choice = options.of(_TOOL_CHOICE)
    is_on = choice is not None and choice.words[0] == "true"
    has_parser = draft.get("serving.toolParser") is not None
    if is_on and not has_parser and choice is not None:
        draft.drop(choice.given, "it needs --tool-call-parser")
    elif has_parser and not is_on:
        draft.notes.append(f"serving.toolParser also sets {_TOOL_CHOICE}")
