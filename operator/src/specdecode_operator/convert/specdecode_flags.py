"""Flags of a command line for runtime Specdecode: fields, `engine.config`, or listed as dropped."""

from typing import Final

from specdecode_api.peer_flags import Treatment
from specdecode_operator.convert.fields import (
    ON_SEVERAL_GPUS,
    RESOURCE_FIELDS,
    boot_value,
    integer,
    is_number,
)
from specdecode_operator.convert.options import Option, ReadOptions
from specdecode_operator.convert.result import ResourceDraft

_ADAPTERS: Final = "a resource has no field for LoRA adapters"
_LISTENS: Final = "the operator sets it"
_WITHOUT_FIELD: Final = {
    "adapters.modules": _ADAPTERS,
    "adapters.max_rank": _ADAPTERS,
    "server.host": _LISTENS,
    "server.port": _LISTENS,
}
_QUANTIZATIONS: Final = {"int8": "Int8", "int4": "Int4", "none": "None", "auto": "Auto"}
_CONFIG: Final = frozenset(
    {
        "memory.device_fraction",
        "model.implementation",
        "model.return_routed_experts",
        "scheduling.priority",
        "server.prompt_tokens_details",
    }
)
"""Fields of the boot file that only `engine.config` sets."""


def add_flags(draft: ResourceDraft, options: ReadOptions) -> None:
    """Set fields from the flags, and list all others."""
    for option in options.options:
        try:
            _read(draft, option, options.model)
        except ValueError as error:
            if is_number(option):
                draft.errors.append(f"{option.given}: {error}")
            else:
                draft.drop(option.given, str(error))


def _read(draft: ResourceDraft, option: Option, model: str) -> None:
    row, field = option.row, option.row.field
    if row.treatment is not Treatment.TAKEN or option.key:
        is_model = option.flag == "--tokenizer" and option.words[0] == model
        if not is_model and not row.asks_for_nothing(option.words):
            draft.drop(option.given, row.remedy or "a resource has no field for a part of it")
    elif option.flag == "--tensor-parallel-size":
        draft.take(option, ON_SEVERAL_GPUS[option.flag], integer(option))
    elif field in _WITHOUT_FIELD:
        draft.drop(option.given, _WITHOUT_FIELD[field])
    elif option.flag == "--quantization":
        _read_quantization(draft, option)
    elif field is not None:
        _set(draft, option, field)


def _set(draft: ResourceDraft, option: Option, field: str) -> None:
    value = boot_value(option)
    if value is None:
        if option.words[0] != "false":
            draft.drop(option.given, "without a number the model's own counts")
        return
    if field in _CONFIG:
        draft.take(option, f"engine.config.{field}", value)
    else:
        found = RESOURCE_FIELDS[field]
        draft.take(option, found.path, found.written(value))
    if option.row.note is not None:
        # The rest of the note about memory is about the engine's log.
        note = option.row.note.partition(";")[0] if field in _CONFIG else option.row.note
        draft.notes.append(f"{option.given}: {note}")


def _read_quantization(draft: ResourceDraft, option: Option) -> None:
    name = option.words[0].lower()
    if name in _QUANTIZATIONS:
        draft.take(option, "model.quantization", _QUANTIZATIONS[name])
    else:
        draft.drop(option.given, "weights are computed with as the checkpoint stores them")
