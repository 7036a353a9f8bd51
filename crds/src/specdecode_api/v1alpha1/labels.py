"""Labels and annotations as a user may write them, those of the operator left alone."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, StringConstraints

from specdecode_api import names
from specdecode_api.base import without_nulls
from specdecode_api.rules import Checked, Rule
from specdecode_api.v1alpha1.scalars import matches

MAX_KEY_LENGTH: Final = 316

_KEY: Final = "([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY_MESSAGE: Final = (
    "a key is NAME or DOMAIN/NAME, and NAME has at most 63 letters, digits and -_., such as "
    "kubernetes.io/hostname"
)

LabelValue = Annotated[
    str,
    StringConstraints(max_length=63),
    matches(
        "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
        "a value has letters, digits and -_. and begins and ends with a letter or digit; "
        "quote numbers and truth values",
    ),
]

_KEYS: Final[Rule[dict[str, str]]] = Rule(
    cel=f"self.all(k, k.size() <= {MAX_KEY_LENGTH} && k.matches('^{_KEY}$'))",
    holds=lambda it: all(len(k) <= MAX_KEY_LENGTH and re.fullmatch(_KEY, k) for k in it),
    message=_KEY_MESSAGE,
)

OPERATORS_LABELS: Final = (
    names.LABEL_NAME,
    names.LABEL_INSTANCE,
    names.LABEL_COMPONENT,
    names.LABEL_PART_OF,
    names.LABEL_MANAGED_BY,
    "pod-template-hash",
)
_DOMAIN: Final = f"{names.GROUP}/"

_NOT_THE_OPERATORS: Final[Rule[dict[str, str]]] = Rule(
    cel=f"self.all(k, !k.startsWith('{_DOMAIN}') && !(k in {list(OPERATORS_LABELS)}))",
    holds=lambda it: not any(k.startswith(_DOMAIN) or k in OPERATORS_LABELS for k in it),
    message=f"labels under {_DOMAIN}, pod-template-hash and app.kubernetes.io/name, instance, "
    "component, part-of and managed-by are how pods are found: choose another key",
)

_NOT_OUR_DOMAIN: Final[Rule[dict[str, str]]] = Rule(
    cel=f"self.all(k, !k.startsWith('{_DOMAIN}'))",
    holds=lambda it: not any(k.startswith(_DOMAIN) for k in it),
    message=f"annotations under {_DOMAIN} are the operator's: choose another key",
)

OwnLabels = Annotated[
    dict[str, LabelValue], Checked(_KEYS, _NOT_THE_OPERATORS), BeforeValidator(without_nulls)
]

Annotations = Annotated[
    dict[str, Annotated[str, StringConstraints(max_length=4096)]],
    Checked(_KEYS, _NOT_OUR_DOMAIN),
    BeforeValidator(without_nulls),
]
