"""Where a config.json states rotary parameters, and which of them count.

Older files have `rope_scaling` and `rope_theta`, newer ones `rope_parameters`. Next to each other
they are read as AutoConfig of transformers 5 does: a `rope_scaling` that is not empty replaces
`rope_parameters` as a whole, and the parameters of the section in use precede those at the top. A
value that this would drop is refused, since models with and without it answer differently.
"""

from collections.abc import Iterator, Mapping

from specdecode_engine.model.checkpoint.config_file import ConfigError, ConfigFile

NEWER, OLDER = "rope_parameters", "rope_scaling"
KIND, OLD_KIND, THETA = "rope_type", "type", "rope_theta"
FRACTION = "partial_rotary_factor"
ORIGINAL = "original_max_position_embeddings"
WITH_ORIGINAL = ("llama3", "yarn", "longrope")
"""Kinds that have `ORIGINAL` among their parameters."""
MROPE = "mrope"
"""Each position is three, of time, height and width, which are equal for text."""
ONE_PLACE = f"write all rotary parameters under {NEWER}, without {OLDER}"


def section_in_use(config: ConfigFile) -> ConfigFile | None:
    """Return the section that counts, None where there is none."""
    newer, older = config.section(NEWER), config.section(OLDER)
    return older if older is not None and older.keys else newer


def merge_sections(config: ConfigFile, part: ConfigFile, older: ConfigFile | None) -> ConfigFile:
    """Return the parameters of a layer type over which `rope_scaling` is laid, as in Gemma 3.

    Args:
        part: of `rope_parameters`.
    """
    if older is None or not older.keys:
        return part
    merged = ConfigFile(config.file, {**part.keys, **older.keys}, part.prefix)
    _refuse_dropped_keys(part, merged.keys)
    return merged


def kind_key(section: ConfigFile) -> str:
    """Return the key under which a section has its kind; refuse two kinds in one section."""
    kind, old = section.get(KIND), section.get(OLD_KIND)
    if kind is None:
        return OLD_KIND
    if old not in (None, kind) and (kind, old) != ("default", MROPE):
        raise section.error(OLD_KIND, f"{section.prefix}{KIND} is {kind!r}; remove one of them")
    return KIND


def refuse_dropped(config: ConfigFile, effective: Mapping[str, object]) -> None:
    """Raise for a rotary parameter of `config` that is not among those in effect.

    Args:
        effective: by name, or by layer type and name.
    """
    newer, older = config.section(NEWER), config.section(OLDER)
    if newer is not None and older is not None and older.keys:
        for name, part in _parts(newer):
            found = effective if name is None else effective.get(name)
            _refuse_dropped_keys(part, found if isinstance(found, dict) else effective)
    if any(isinstance(value, dict) for value in effective.values()):
        return
    keys = (THETA, FRACTION, *([ORIGINAL] if effective.get(KIND) in WITH_ORIGINAL else ()))
    for place in filter(None, (config, section_in_use(config))):
        for key in keys:
            refuse_other(place, key, effective.get(key))


def refuse_other(place: ConfigFile, key: str, effective: object) -> None:
    """Raise if `key` states another number than the one in effect."""
    value = place.get(key)
    if isinstance(value, int | float) and effective is not None and value != effective:
        raise _dropped(place, key, effective)


def _parts(section: ConfigFile) -> Iterator[tuple[str | None, ConfigFile]]:
    """Return the parameters of each layer type, or all of them if they are not by type."""
    names = [name for name, value in section.keys.items() if isinstance(value, dict)]
    rest = {name: value for name, value in section.keys.items() if name not in names}
    yield None, ConfigFile(section.file, rest, section.prefix)
    for name in names:
        part = section.section(name)
        assert part is not None
        yield name, part


def _refuse_dropped_keys(part: ConfigFile, effective: Mapping[str, object]) -> None:
    for key, value in part.keys.items():
        name = KIND if key == OLD_KIND else key
        is_plain = name == KIND and value in ("default", MROPE)
        if value is not None and not is_plain and effective.get(name) != value:
            raise _dropped(part, key, effective.get(name))


def _dropped(place: ConfigFile, key: str, effective: object) -> ConfigError:
    used = "would be left out" if effective is None else f"would be {effective!r}"
    return place.error(
        key, f"by the other rotary parameters of this file, in transformers too, it {used}; "
        f"{ONE_PLACE}"
    )  # fmt: skip
