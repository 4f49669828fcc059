"""What was kept counts while the code is the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import fairlead
from fairlead.experiments.fingerprint import code_fingerprint, dependency_versions, files_digest

SWEEP = "schedulers: [las]\nover: {load: [8]}\njobs: 5\ncluster: 8xv100:4\n"
RUN = """
from pathlib import Path
from fairlead.experiments.sweep import read_sweep, run_sweep
swept = run_sweep(read_sweep(Path("sweep.yaml")), Path("out"), processes=1)
print(swept.ran, swept.kept)
"""


def test_a_sweep_is_run_again_when_the_code_of_a_policy_has_changed(tmp_path):
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    package = shutil.copytree(
        Path(fairlead.__file__).parent, tmp_path / "code" / "fairlead", ignore=shutil.ignore_patterns("__pycache__")
    )

    def ran_and_kept() -> str:
        command, paths = [sys.executable, "-c", RUN], {**os.environ, "PYTHONPATH": str(package.parent)}
        return subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True, check=True).stdout.strip()

    assert ran_and_kept() == "1 0"
    assert ran_and_kept() == "0 1"
    with open(package / "policies" / "fifo.py", "a") as file:
        file.write("\n# another\n")
    assert ran_and_kept() == "1 0"


def test_names_and_contents_count_and_what_python_makes_of_them_does_not(tmp_path):
    folder = tmp_path / "package"
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "a.py").write_text("1")
    seen = [files_digest([folder])]
    (folder / "part" / "a.py").write_text("2")
    seen.append(files_digest([folder]))
    (folder / "part" / "a.py").rename(folder / "part" / "b.py")
    seen.append(files_digest([folder]))
    (folder / "table.csv").write_text("")
    seen.append(files_digest([folder]))
    assert len(set(seen)) == 4
    (folder / "b.cpython.pyc").write_text("")
    assert files_digest([folder]) == seen[-1]


def test_the_version_is_told():
    assert code_fingerprint().startswith(f"{fairlead.__version__} ")


def test_the_solvers_version_counts():
    assert f"highspy={version('highspy')}" in dependency_versions()
    assert set(code_fingerprint().split()) > set(dependency_versions())
