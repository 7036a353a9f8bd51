"""Every format of the zoo: each module of this package has a tuple `FORMATS`."""

import pkgutil
from importlib import import_module

from checks.drafts_zoo.format import DraftFormat
from checks.drafts_zoo.ngram import NgramFormat


def all_formats() -> dict[str, DraftFormat | NgramFormat]:
    """Return every format by its name."""
    modules = [import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    formats: list[DraftFormat | NgramFormat] = [
        form for module in modules for form in module.FORMATS
    ]
    by_name = {form.name: form for form in formats}
    assert len(by_name) == len(formats), "two formats have one name"
    return by_name
