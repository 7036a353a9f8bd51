"""Unknown fields of requests: counted, and each name logged once, without its value."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice

from pydantic import BaseModel

from specdecode_engine.serve.openai.refused_fields import IGNORED

log = logging.getLogger(__name__)

OTHER = "other"
"""Label of names that no engine knows: clients may invent any number, and each is a series."""
MAX_LOGGED_NAMES = 256
MAX_NAME_CHARS = 80
MAX_COUNTED = 1000
"""Fields of one body that are counted: a body may have 100,000, and other requests wait."""

_OBJECTS = (
    "output_config", "reasoning", "response_format", "stream_options", "structured_outputs", "text",
    "thinking", "tools",
)  # fmt: skip


class IgnoredFields:
    """Counts and logs the unknown fields of bodies.

    Args:
        count: called with the label of a field and how often it occurred.
        unused: fields that are read only by engines that were started for them.
    """

    def __init__(
        self, count: Callable[[str, int], None], unused: frozenset[str] = frozenset()
    ) -> None:
        self._count = count
        self._unused = unused
        self._logged: set[str] = set()

    def note(self, body: BaseModel) -> None:
        """Count the fields of a body that is accepted."""
        left_out = (*getattr(body, "ignored_names", ()), *(self._unused & body.model_fields_set))
        names = list(islice(chain(left_out, _unknown(body, _OBJECTS)), MAX_COUNTED))
        labels = Counter(name if name in IGNORED else OTHER for name in names)
        for label, number in labels.items():
            self._count(label, number)
        for name in names:
            self._log(name[:MAX_NAME_CHARS])

    def _log(self, name: str) -> None:
        if name not in self._logged and len(self._logged) < MAX_LOGGED_NAMES:
            self._logged.add(name)
            log.info("ignored the field %r of a request; this is logged once", name)


def _unknown(body: BaseModel, objects: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of unknown fields of a body, and of the objects in its fields `objects`."""
    yield from body.model_extra or ()
    for name in objects:
        found = getattr(body, name, None)
        for each in found if isinstance(found, list) else (found,):
            if isinstance(each, BaseModel):
                yield from _unknown(each, tuple(type(each).model_fields))
