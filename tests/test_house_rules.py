"""Rules of the code base that no linter checks: one name for one thing, a docstring for every public name, small files."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fairlead"
MAX_LINES, MAX_FILES, MAX_FILE_LINES = 83_260, 438, 450  # only a new capability may raise the first
PRIVATE_WORDS = ("whoever", "nobody", "everybody", "somebody")


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def public(tree: ast.Module, kinds: tuple[type, ...]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_"))


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_two_modules_share_a_name():
    places = defaultdict(list)
    for path, _ in modules():
        places[path.stem].append(str(path))
    shared = {name: found for name, found in places.items() if len(found) > 1 and name not in {"__init__", "base"}}
    assert not shared


def test_no_two_public_classes_or_functions_share_a_name():
    places = defaultdict(set)
    for path, tree in modules():
        for node in public(tree, (ast.ClassDef, *FUNCTIONS)):
            if node.name != "main":  # of a module that runs as a program
                places[node.name].add(str(path))
    assert not {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_every_public_class_and_function_has_a_docstring():
    lacking = [
        f"{path}: {node.name}"
        for path, tree in modules()
        for node in public(tree, (ast.ClassDef, *FUNCTIONS))
        if not ast.get_docstring(node)
    ]
    assert not lacking


def test_every_module_opens_with_what_it_is_for():
    assert not [str(path) for path, tree in modules() if tree.body and not ast.get_docstring(tree)]


def test_the_package_stays_small():
    sizes = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8").count("\n") for path in PACKAGE.rglob("*.py")}
    assert sum(sizes.values()) <= MAX_LINES
    assert len(sizes) <= MAX_FILES
    assert not {path: lines for path, lines in sizes.items() if lines > MAX_FILE_LINES}


def prose(path: Path) -> str:
    """The text without lines about former names, which are still read."""
    lines = (PACKAGE / path).read_text(encoding="utf-8").lower().splitlines()
    return "\n".join(line for line in lines if "former" not in line and '"after-nobody"' not in line)


def test_jobs_and_modules_are_not_persons():
    found = [f"{path}: {word}" for path, _ in modules() for word in PRIVATE_WORDS if word in prose(path)]
    assert not found


def test_only_core_and_engine_write_columns():
    """Backends, experiments and the CLI read `state.columns`."""
    others = [path for path, _ in modules() if path.parts[0] not in {"core", "engine"}]
    assert not [str(path) for path in others if "store.arrays" in (PACKAGE / path).read_text(encoding="utf-8")]


def test_test_files_have_names_of_their_own():
    # pytest imports them by name: of two with one name, only the first is run.
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert not [name for name in set(names) if names.count(name) > 1]
