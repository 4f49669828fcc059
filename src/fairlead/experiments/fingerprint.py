"""The fingerprint of the code: it changes with any file of Fairlead or of a package that plugs a part into it, and with the
version of a package that Fairlead needs, such as its solver."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from fairlead.config.registry import Registry
from fairlead.core import VERSION


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """Of the files as they are at the first call."""
    plugged = {module.partition(".")[0] for module in Registry.installed().modules()}
    places = [place for package in sorted({"fairlead", *plugged}) for place in _places(package)]
    return f"{VERSION} {files_digest(places)} {' '.join(dependency_versions())}"


def dependency_versions() -> Iterator[str]:
    """The installed versions of the packages that Fairlead always needs."""
    try:
        needed = requires("fairlead") or ()
    except PackageNotFoundError:  # run from its files
        return
    for name in sorted(re.split(r"[^\w.-]", one)[0] for one in needed if "extra ==" not in one):
        yield f"{name}={version(name)}"


def _places(package: str) -> list[Path]:
    """The folder or the file of a package, found without importing it."""
    spec = find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [] if spec.origin is None else [Path(spec.origin)]


def files_digest(places: Iterable[Path]) -> str:
    """Of all files there but compiled ones, by name and content."""
    digest = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and file.suffix != ".pyc":
                name = file.relative_to(place.parent).as_posix()
                digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
