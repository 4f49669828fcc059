"""The placement, the admission and the trace format that docs/plugins.md prints: taken from the page as they stand, announced
by its entry points, held to its contracts and run by its commands. What a plug-in leans on is not renamed unnoticed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


def blocks(language: str, *words: str) -> list[str]:
    """The page's blocks of a language that have one of these words."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return [block for block in found if any(word in block for word in words)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What an author has who typed the page in: `my_parts.py`, its tests, its entry points, and the trace with a mistake."""
    folder = tmp_path_factory.mktemp("guide")
    parts = blocks("python", "class LastFree", "class PerUser", "class JsonLines")
    tests = blocks("python", "class TestLastFree", "class TestPerUser")
    announced = blocks("toml", '"my_parts:')
    assert (len(parts), len(tests), len(announced)) == (3, 2, 3)
    (folder / "my_parts.py").write_text("\n\n".join(parts), encoding="utf-8")
    (folder / "test_parts.py").write_text("\n\n".join(tests), encoding="utf-8")
    groups = tomllib.loads("\n".join(announced))["project"]["entry-points"]
    info = folder / "my_parts-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 0.1.0\n", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {where}" for name, where in named.items()) for group, named in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    (rows,) = re.findall(r"\$ cat jobs\.jsonl\n(.*?)\$ ", PAGE, re.DOTALL)
    (folder / "jobs.jsonl").write_text(rows, encoding="utf-8")
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    env = {**kept, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT / "src")))}
    words = [sys.executable, "-m", *command]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_parts_of_the_guide_keep_their_contracts(folder):
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"^(\d+ passed)", done.stdout, re.MULTILINE)
    assert f"\n{passed} in " in PAGE


def test_the_commands_of_the_guide_say_what_it_prints(folder):
    checked = run(folder, "fairlead.cli.main", "trace", "check", "jobs.jsonl")
    said = checked.stdout + checked.stderr
    assert all(line in said.splitlines() for line in re.findall(r"^jobs\.jsonl.*$", PAGE, re.MULTILINE))
    (line,) = re.findall(r"^\$ fairlead (simulate .*--placement last-free .*)$", PAGE, re.MULTILINE)
    done = run(folder, "fairlead.cli.main", *line.split())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    printed = f'"scheduler":"{found["scheduler"]}","trace":"jobs","cluster":"8 × v100","jobs":2,"finished":{found["finished"]},'
    assert printed in PAGE
    assert f'"average_jct_s":{found["average_jct_s"]},' in PAGE
    assert f'"skipped_lines":{found["skipped_lines"]}' in PAGE
