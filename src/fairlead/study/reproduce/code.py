"""Which code answers: a mark that changes when any file of Fairlead, or of a package that plugs something into it, does, or
the version of one that Fairlead needs, such as its solver. More changes it than need be, such as a comment; nothing that
matters leaves it as it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import fairlead
from fairlead.registry import Registry


@lru_cache(maxsize=1)
def code_mark() -> str:
    """Of the files as they are when it is first asked for."""
    plugged = {module.partition(".")[0] for module in Registry.installed().modules()}
    places = [place for package in sorted({"fairlead", *plugged}) for place in _places(package)]
    return f"{fairlead.__version__} {digest_of(places)} {' '.join(versions())}"


def versions() -> Iterator[str]:
    """Of the packages that Fairlead needs wherever it runs, as they are installed."""
    try:
        needed = requires("fairlead") or ()
    except PackageNotFoundError:  # run from its files
        return
    for name in sorted(re.split(r"[^\w.-]", one)[0] for one in needed if "extra ==" not in one):
        yield f"{name}={version(name)}"


def _places(package: str) -> list[Path]:
    """Its folder, or the one file that it is; nothing of it is run."""
    spec = find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [] if spec.origin is None else [Path(spec.origin)]


def digest_of(places: Iterable[Path]) -> str:
    """Of all files there, by name and content, except for what Python makes of them."""
    digest = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and file.suffix != ".pyc":
                name = file.relative_to(place.parent).as_posix()
                digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
