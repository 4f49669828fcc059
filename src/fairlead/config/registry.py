"""Names become classes here. A registry is a value: built-in and third-party stages come into it the same way, by entry points,
and a name that two of them claim is an error when it is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

from fairlead.config.policy_files import PolicyFile
from fairlead.config.yaml_source import Value, parse_yaml
from fairlead.core.errors import DuplicateName, FairleadError, UnknownName

GROUPS = {
    "policy": "fairlead.policies",
    "mechanism": "fairlead.mechanisms",
    "placement": "fairlead.placements",
    "admission": "fairlead.admissions",
    "estimator": "fairlead.estimators",
    "termination": "fairlead.terminations",
    "format": "fairlead.formats",
    "driver": "fairlead.drivers",
}
"""The plug-in types, each with its entry-point group."""

FORMER_KINDS = {"estimation": "estimator"}
FORMER_GROUPS = {"estimator": "fairlead.estimations"}
FORMER_NAMES: Mapping[str, Mapping[str, str]] = {"mechanism": {"turns": "gavel-rounds"}, "estimator": {"watched": "monitored"}}
"""Names of earlier versions that scheduler files, journals and plug-ins may have; parameters' are in `parameters.py`."""


def current_name(what: str, name: str) -> str:
    """Return today's name of a part."""
    return FORMER_NAMES.get(what, {}).get(name, name)


@dataclass(frozen=True)
class Registered:
    """A name, and where its class comes from; the class is imported when it is first asked for."""

    what: str
    name: str
    origin: str  # the package that announced it
    source: EntryPoint | PolicyFile | type[Any]  # or a function that is called like the class

    def load(self) -> type[Any]:
        if isinstance(self.source, PolicyFile):
            return self.source.load()
        if not isinstance(self.source, EntryPoint):
            return self.source
        try:
            found = self.source.load()
        except Exception as error:  # a plug-in may fail in any way while it is imported
            raise FairleadError(f"{self.what} '{self.name}' of {self.origin} cannot be loaded: {error}") from error
        if not isinstance(found, type):
            raise FairleadError(f"{self.what} '{self.name}' of {self.origin}: expected a class, found {found!r}")
        return found

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return (inspect.getdoc(self.load()) or "").split("\n")[0]

    @property
    def paper(self) -> str:
        return str(getattr(self.load(), "paper", ""))


@dataclass(frozen=True)
class Registry:
    """The plug-ins by type and name."""

    entries: Mapping[str, Mapping[str, tuple[Registered, ...]]] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=1)
    def installed(cls) -> Registry:
        """Return the plug-ins of this Python environment, read once."""
        return cls.from_entry_points()

    @classmethod
    def from_entry_points(cls) -> Registry:
        """Read the plug-ins of this Python environment."""
        entries: dict[str, dict[str, tuple[Registered, ...]]] = {what: {} for what in GROUPS}
        for what, group in (*GROUPS.items(), *FORMER_GROUPS.items()):
            for point in entry_points(group=group):
                origin = point.dist.name if point.dist is not None else point.module
                claims = entries[what].get(point.name, ())
                if any(isinstance(c.source, EntryPoint) and c.source.value == point.value for c in claims):
                    continue  # the same package is on the path twice
                entries[what][point.name] = (*claims, Registered(what, point.name, origin, point))
        return cls(entries)

    def find(self, what: str, name: str) -> Registered:
        """Return the part of a name, of which earlier names are known too."""
        known = self.entries.get(what, {})
        if name not in known:
            name = current_name(what, name)
        if name not in known and name.replace("_", "-") in known:  # the papers' programs write max_min_fairness
            name = name.replace("_", "-")
        if name not in known:
            raise UnknownName(what, name, known)
        claims = known[name]
        if len(claims) > 1:
            raise DuplicateName(f"{what} '{name}' is defined by {' and by '.join(c.origin for c in claims)}; remove one")
        return claims[0]

    def load(self, what: str, name: str) -> type[Any]:
        return self.find(what, name).load()

    def of(self, what: str) -> Iterator[Registered]:
        """All plug-ins of a type, by name."""
        for name in sorted(self.entries.get(what, {})):
            yield self.find(what, name)

    def modules(self) -> set[str]:
        """The modules of all plug-ins."""
        sources = (claim.source for names in self.entries.values() for claims in names.values() for claim in claims)
        return {source.module if isinstance(source, EntryPoint) else source.__module__ for source in sources}

    def plus(self, what: str, name: str, found: Any) -> Registry:
        """This registry with one more; for stages that are not in a package of their own."""
        if what not in GROUPS:
            raise UnknownName("kind of plug-in", what, GROUPS)
        if name in self.entries.get(what, {}):
            raise DuplicateName(f"{what} '{name}' already exists, from {self.entries[what][name][0].origin}")
        origin = str(found.path) if isinstance(found, PolicyFile) else found.__module__
        mine = {**self.entries.get(what, {}), name: (Registered(what, name, origin, found),)}
        return Registry({**self.entries, what: mine})


# Presets: schedulers that ship with the package, each a scheduler file with a description and its paper. Here they are found by
# name; `schedulers.py` reads them.

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
        return self.value.mapping()["about"].text("a one-line description")

    @property
    def paper(self) -> str:
        return self.value.mapping()["paper"].text("the source, such as a paper")


@lru_cache(maxsize=1)
def presets() -> dict[str, Preset]:
    """All presets, by name."""
    found = (file for file in files("fairlead.config").joinpath("presets").iterdir() if file.name.endswith(_SUFFIX))
    texts = {file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8") for file in found}
    return {name: Preset(name, texts[name]) for name in sorted(texts)}


def preset_named(name: str, place: str = "") -> Preset:
    """Return a preset; `place` is the location of the name, for errors."""
    known = presets()
    if name not in known:
        policies = {entry.name for entry in Registry.installed().of("policy")}
        raise UnknownName("preset", name, known, place, f"it is a policy: use --policy {name}" if name in policies else "")
    return known[name]
