"""How many lines of code each part and each preset is, counted as Blox counts in its Table 3: what comes on top of FIFO. A line
counts if there is code on it; blank lines, comments and docstrings do not."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairlead.config.registry import GROUPS, Preset, Registry, presets
from fairlead.config.schedulers import SchedulerConfig

STAGES = ("admission", "estimators", "policies", "placement", "termination")
"""The folders of parts. What stands elsewhere (state, loop) serves all schedulers, as Blox' toolkit does; so does ranking."""

TOOLKIT = frozenset({"fairlead.policies.ranking.base"})

ELSEWHERE = frozenset(f"fairlead.models.{name}" for name in ("convergence", "goodput", "sensitivity", "speed_curves"))
"""What stands elsewhere and serves the schedulers alone that build upon it."""

WORKLOADS = {
    "pollux": ("applications",),
}
"""Modules of workloads that were made for a scheduler: Blox counts the generation of workloads with it."""

PARTS = tuple(what for what in GROUPS if what not in ("format", "driver"))
BASELINE = "fifo"

BLOX = {"las": 12, "tiresias": 295, "optimus": 246, "gavel": 539, "pollux": 1157, "themis": 745, "synergy": 1137}
"""Lines of code that each scheduler adds to FIFO in Blox (Agarwal et al., EuroSys'24, Table 3)."""

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class PartLines:
    """Of one part: its class, the module in which that stands, and this with all that it builds upon in the stages' folders."""

    what: str
    name: str
    own: int
    module: int
    whole: int


@dataclass(frozen=True)
class PresetLines:
    """Of one preset: its YAML, and the code that its parts and its workload need and FIFO's do not; Blox' figure where it has
    one."""

    name: str
    yaml: int
    code: int
    modules: tuple[str, ...]
    blox: int | None


def part_lines(registry: Registry | None = None) -> list[PartLines]:
    """Every part of this package, by kind and name."""
    known = registry or Registry.installed()
    found = []
    for part in (part for what in PARTS for part in known.of(what)):
        made = part.load()
        if made.__module__.startswith("fairlead."):
            whole = sum(map(_module_lines, _closure(made.__module__)))
            found.append(PartLines(part.what, part.name, _class_lines(made), _module_lines(made.__module__), whole))
    return found


def preset_lines(registry: Registry | None = None) -> list[PresetLines]:
    registry = registry or Registry.installed()
    baseline = _modules(presets()[BASELINE], registry)
    lines = []
    for name, preset in presets().items():
        added = sorted(_modules(preset, registry) - baseline)
        text = sum(bool(line.partition("#")[0].strip()) for line in preset.text.splitlines())
        lines.append(PresetLines(name, text, sum(map(_module_lines, added)), tuple(added), BLOX.get(name)))
    return lines


def code_lines(source: str) -> set[int]:
    """The numbers of the lines with code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - set(_docstrings(ast.parse(source)))


def _docstrings(tree: ast.AST) -> Iterator[int]:
    """Texts that stand alone: they say something, and do nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _modules(preset: Preset, registry: Registry) -> set[str]:
    """The modules that a preset's parts need. A mechanism is needed by policies of shares only."""
    config = SchedulerConfig.preset(preset.name)
    shares = hasattr(registry.load("policy", config.policy.name), "allocate")
    data = config.to_data()
    names = [(what, name) for what in PARTS for name in _names(data[what]) if what != "mechanism" or shares]
    made_for = {f"fairlead.workloads.{name}" for name in WORKLOADS.get(preset.name, ())}
    return made_for | {module for what, name in names for module in _closure(registry.load(what, name).__module__)}


def _names(part: Any) -> Iterable[str]:
    if isinstance(part, list):
        return [name for one in part for name in _names(one)]
    return [part["name"] if isinstance(part, dict) else part]


@cache
def _source(module: str) -> str:
    spec = find_spec(module)
    return Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""


@cache
def _code_of(module: str) -> set[int]:
    return code_lines(_source(module))


def _module_lines(module: str) -> int:
    return len(_code_of(module))


def _class_lines(made: type[Any]) -> int:
    tree = ast.parse(_source(made.__module__))
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == made.__name__)
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return len(_code_of(made.__module__) & set(range(first, (node.end_lineno or first) + 1)))


@cache
def _imports(module: str) -> frozenset[str]:
    """The modules of the stages that a module imports, and those that count though they stand elsewhere."""
    nodes = [node for node in ast.walk(ast.parse(_source(module))) if isinstance(node, ast.ImportFrom) and node.module]
    whole, parts = {str(node.module) for node in nodes}, {f"{node.module}.{one.name}" for node in nodes for one in node.names}
    stages = tuple(f"fairlead.{stage}." for stage in STAGES)
    found = frozenset(name for name in whole if name.startswith(stages)) | ((whole | parts) & ELSEWHERE)
    return found - TOOLKIT


def _closure(module: str) -> set[str]:
    """The module and all that it imports, directly or not."""
    found, open_ = {module}, [module]
    while open_:
        new = _imports(open_.pop()) - found
        found |= new
        open_ += new
    return found
