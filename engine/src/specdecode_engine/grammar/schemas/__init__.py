"""JSON Schema rewritten to keywords that the grammar library has, with the same meaning."""

from specdecode_engine.grammar.schemas.rewrite import expressible
from specdecode_engine.grammar.schemas.texts.formats import KNOWN_FORMATS

__all__ = ["KNOWN_FORMATS", "expressible"]
