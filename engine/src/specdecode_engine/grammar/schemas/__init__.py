"""JSON Schema rewritten to keywords that the grammar library has, with the same meaning."""

from specdecode_engine.grammar.schemas.formats import KNOWN_FORMATS
from specdecode_engine.grammar.schemas.rewrite import expressible

__all__ = ["KNOWN_FORMATS", "expressible"]
