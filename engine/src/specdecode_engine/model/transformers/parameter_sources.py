"""Which stored tensors the parameters of a network of transformers are made of.

Published checkpoints store some parameters under other names, or in parts: one tensor for each
expert of what the network keeps as one. transformers converts them while it loads, accepts any
number of parts, and names a faulty parameter, not the stored tensor. The conversions reversed name
what must be stored, before a byte of weights is read.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specdecode_engine.model.checkpoint.checkpoint import Shape, Shapes


@dataclass(frozen=True, slots=True)
class _Use:
    """What transformers makes of a stored tensor."""

    parameters: tuple[str, ...]  # several where one tensor is split
    part: str | None  # name among the parts of the parameters; None: the tensor is the parameter


def expected_tensors(network: Any, stored: Mapping[str, Shape]) -> tuple[Shapes, Shapes]:
    """Return the shapes of the tensors that must be stored, and of those that may be.

    A parameter may be stored as a whole or as the published checkpoints of its type store it; what
    is missing is required under its published name.

    Args:
        network: transformers' model; on the meta device its weights take no memory.
        stored: shapes of the stored tensors.
    """
    parameters = {name: tuple(one.shape) for name, one in network.state_dict().items()}
    published = _published_shapes(network)
    published_uses = _uses(network, published, parameters)
    names_of_parts = {use: name for name, use in published_uses.items() if use.part is not None}
    required: Shapes = {}
    whole: set[str] = set()
    uses = _uses(network, stored, parameters)
    for name, use in uses.items():
        if use.part is None and use.parameters[0] not in whole:
            required[name] = parameters[use.parameters[0]]
            whole.add(use.parameters[0])
    for name, use in uses.items():
        if use in names_of_parts and not whole.issuperset(use.parameters):
            required[name] = published[names_of_parts.pop(use)]
    optional = _without_effect(network, stored.keys() - required.keys())
    missing = _missing(network, published_uses, whole, set(names_of_parts.values()))
    required |= {name: published[name] for name in missing}
    return required, {name: stored[name] for name in optional}


def used_parameters(network: Any, stored: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Return the parameter that each stored tensor is used for, and whether it is all of it.

    Tensors that are used for none are left out; of several parameters the first counts.
    """
    uses = _uses(network, stored, network.state_dict().keys())
    return {name: (use.parameters[0], use.part is None) for name, use in uses.items()}


def _published_shapes(network: Any) -> Shapes:
    """Shapes of what the published checkpoints of a network's type store."""
    from transformers.core_model_loading import revert_weight_conversion

    with torch.no_grad():
        tensors = revert_weight_conversion(network, network.state_dict())
    return {name: tuple(one.shape) for name, one in tensors.items()}


def _uses(network: Any, names: Iterable[str], parameters: Collection[str]) -> dict[str, _Use]:
    """Return what stored tensors are used for, as transformers decides it; others are left out."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        apply_converters,
        apply_renamings,
        dot_natural_key,
        rename_source_key,
    )

    conversions = get_model_conversion_mapping(network)
    converters = [one for one in conversions if isinstance(one, WeightConverter)]
    renamings = [one for one in conversions if isinstance(one, WeightRenaming)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    of_network = dict.fromkeys(parameters, True)

    def with_prefix(name: str) -> str:
        """Add or remove the name of the model without its head."""
        prefix = network.base_model_prefix
        renamed: str = rename_source_key(name, [], [], prefix, of_network)[0]
        return renamed

    uses: dict[str, _Use] = {}
    for name in sorted(names, key=dot_natural_key):  # some renamings depend on those before
        part = apply_renamings(name, renamings)
        first, pattern = apply_converters(part, converters)
        if with_prefix(first) not in of_network and with_prefix(name) in of_network:
            first, pattern = name, None
        parameter = with_prefix(first)
        if pattern is None:
            if parameter in of_network:
                uses[name] = _Use((parameter,), None)
            continue
        targets = by_pattern[pattern].target_patterns
        made = tuple(parameter.replace(targets[0], target) for target in targets)
        if of_network.keys() >= set(made):
            uses[name] = _Use(made, with_prefix(first).removesuffix(first) + part)
    return uses


def _missing(
    network: Any, uses: Mapping[str, _Use], whole: set[str], missing_parts: set[str]
) -> set[str]:
    """Return published names of what no stored tensor, and no tensor that is tied to it, gives."""
    missing = {
        name
        for name, use in uses.items()
        if not whole.issuperset(use.parameters) and (use.part is None or name in missing_parts)
    }
    of_parameters = {use.parameters[0]: name for name, use in uses.items() if use.part is None}
    for tied, source in network.all_tied_weights_keys.items():
        pair = {of_parameters[tied], of_parameters[source]}
        missing -= {of_parameters[tied]} if pair <= missing else pair
    unneeded = network._keys_to_ignore_on_load_missing or ()
    return {name for name in missing if not _matches(unneeded, uses[name].parameters)}


def _without_effect(network: Any, names: Collection[str]) -> set[str]:
    """Return which unused tensors older exports and other versions of a model store."""
    patterns = {r"(^|\.)position_ids$", *(network._keys_to_ignore_on_load_unexpected or ())}
    return {name for name in names if _matches(patterns, (name,))}


def _matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns for name in names)
