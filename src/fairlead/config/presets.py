"""Schedulers that ship with the package, each a scheduler file with a line that says what it is and the paper it is from. Here
they are found by name; what such a file means is for `scheduler.py` to say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from fairlead.config.source import Value, parse_yaml
from fairlead.core.errors import UnknownName
from fairlead.registry import Registry

_SUFFIX = ".yaml"


@dataclass(frozen=True)
class Preset:
    """A scheduler file of the package: `text` is the file, comments and all."""

    name: str
    text: str

    @property
    def value(self) -> Value:
        return parse_yaml(self.text, f"preset '{self.name}'")

    @property
    def about(self) -> str:
        return self.value.mapping()["about"].text("one line that says what it is")

    @property
    def paper(self) -> str:
        return self.value.mapping()["paper"].text("where it comes from")


@lru_cache(maxsize=1)
def presets() -> dict[str, Preset]:
    """All there are, by name."""
    found = (file for file in files("fairlead").joinpath("presets").iterdir() if file.name.endswith(_SUFFIX))
    texts = {file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8") for file in found}
    return {name: Preset(name, texts[name]) for name in sorted(texts)}


def preset_named(name: str, place: str = "") -> Preset:
    known = presets()
    if name not in known:
        policies = {entry.name for entry in Registry.installed().of("policy")}
        raise UnknownName("preset", name, known, place, f"a policy is called so: --policy {name}" if name in policies else "")
    return known[name]
