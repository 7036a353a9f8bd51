"""Applies all rewritings to every part of a schema.

llguidance 1.9.1 lacks `oneOf` of branches that it cannot distinguish, `not`, `if`, `dependencies`
and others. A rewriting leaves a keyword as it is unless the result admits exactly the same values;
the tags of a `discriminator` alone admit fewer. What is left is refused by the library.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

from specdecode_engine.grammar.json_schema import JsonSchema, schema_parts
from specdecode_engine.grammar.schemas.conditions import (
    rewrite_dependencies,
    rewrite_if,
    rewrite_not,
)
from specdecode_engine.grammar.schemas.counts import rewrite_property_counts
from specdecode_engine.grammar.schemas.keys import rewrite_property_names
from specdecode_engine.grammar.schemas.numbers import narrowed
from specdecode_engine.grammar.schemas.one_of import rewrite_one_of
from specdecode_engine.grammar.schemas.overlaps import rewrite_overlaps
from specdecode_engine.grammar.schemas.parts import Document, Part
from specdecode_engine.grammar.schemas.references import rewrite_reference
from specdecode_engine.grammar.schemas.texts.formats import rewrite_format
from specdecode_engine.grammar.schemas.texts.patterns import ignore_patterns, rewrite_classes
from specdecode_engine.grammar.schemas.unevaluated import (
    rewrite_anchors,
    rewrite_contains,
    rewrite_unevaluated,
)
from specdecode_engine.grammar.schemas.values import (
    rewrite_limits,
    rewrite_unique_items,
)

Rewriting = Callable[[Part, Document], None]
_ALWAYS: tuple[Rewriting, ...] = (
    rewrite_limits,
    rewrite_property_counts,
    rewrite_format,
    rewrite_classes,
    rewrite_reference,
    rewrite_overlaps,
)
_STRICT = (
    *_ALWAYS,
    rewrite_unique_items,
    rewrite_property_names,
    rewrite_contains,
    rewrite_anchors,
    rewrite_one_of,
    rewrite_dependencies,
    rewrite_if,
    rewrite_not,
)
_LENIENT = (*_ALWAYS, ignore_patterns)
_BASES = ("$id", "id")


def expressible(schema: JsonSchema, is_strict: bool) -> Part:
    """Return a schema in keywords of the library, as far as that is possible.

    In one that is not strict, conditions stay: the library ignores them.
    """
    rewritten = narrowed(schema)
    if is_strict:  # first: what is evaluated depends on the keywords that the others replace
        apply_to_parts(rewritten, (rewrite_unevaluated,))
    apply_to_parts(rewritten, _STRICT if is_strict else _LENIENT)
    return rewritten


def apply_to_parts(schema: Part, rewritings: Sequence[Rewriting]) -> None:
    """Rewrite a schema and all its parts in place."""
    document = Document(
        schema,
        is_local=not _has_bases(schema),
        has_dynamic_references="$dynamicRef" in json.dumps(schema),
    )
    pending = [schema]
    while pending:
        part = pending.pop()
        for apply in rewritings:
            with suppress(RecursionError):  # of deep values; the keyword is left to the library
                apply(part, document)
        pending += document.added
        document.added.clear()
        pending += _parts(part)


def _has_bases(schema: Part) -> bool:
    """Whether a part below the root changes what references mean."""
    pending = _parts(schema)
    while pending:
        part = pending.pop()
        if any(isinstance(part.get(key), str) for key in _BASES):
            return True
        pending += _parts(part)
    return False


def _parts(schema: Part) -> list[Part]:
    return [part for _, part in schema_parts(schema, is_root=True) if isinstance(part, dict)]
