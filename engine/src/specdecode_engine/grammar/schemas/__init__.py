"""JSON Schema rewritten to keywords that the grammar library has, with the same meaning."""

from specdecode_engine.grammar.schemas.rewrite import expressible
from specdecode_engine.grammar.schemas.values import ENFORCED_FORMATS

__all__ = ["ENFORCED_FORMATS", "expressible"]
