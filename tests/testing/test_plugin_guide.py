"""The stages of examples/custom_stages: registered by their entry points, held to their contracts, and run by the commands of
docs/guides/write-a-plugin.md. What a plug-in imports is not renamed unnoticed."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "custom_stages"
PAGE = (ROOT / "docs" / "guides" / "write-a-plugin.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A copy of the example, with its entry points as an installation registers them."""
    folder = tmp_path_factory.mktemp("guide")
    for path in EXAMPLE.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    groups = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    info = folder / "my_stages-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-stages\nVersion: 0.1.0\n", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {where}" for name, where in named.items()) for group, named in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    env = {**kept, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT / "src")))}
    words = [sys.executable, "-m", *command]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_stages_of_the_example_keep_their_contracts(folder):
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"^(\d+ passed)", done.stdout, re.MULTILINE)
    assert f"\n{passed} in " in PAGE


def test_the_commands_of_the_guide_print_what_it_shows(folder):
    checked = run(folder, "fairlead.cli.main", "trace", "check", "jobs.jsonl")
    printed = checked.stdout + checked.stderr
    assert all(line in printed.splitlines() for line in re.findall(r"^jobs\.jsonl.*$", PAGE, re.MULTILINE))
    (line,) = re.findall(r"^\$ fairlead (simulate .*--placement last-free .*)$", PAGE, re.MULTILINE)
    done = run(folder, "fairlead.cli.main", *line.split())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shown = f'"scheduler":"{found["scheduler"]}","trace":"jobs","cluster":"8 × v100","jobs":2,"finished":{found["finished"]},'
    assert shown in PAGE
    assert f'"average_jct_s":{found["average_jct_s"]},' in PAGE
    assert f'"skipped_lines":{found["skipped_lines"]}' in PAGE


def test_the_guide_shows_the_admission_of_the_example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import my_stages

    assert inspect.getsource(my_stages.PerUser) in PAGE
