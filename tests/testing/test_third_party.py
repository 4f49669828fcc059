"""A policy in a package of its own: installed into a folder, found by its entry point, run by the command, and held to the
shipped contract by its own tests; and the policies of the examples, one of shares and one that puts jobs together, held to the
same contract."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing import Harness, PolicyContract, job
from fairlead.workloads.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "third_party_policy"
sys.path.insert(0, str(ROOT / "examples"))

from custom_allocation import EqualUsers  # noqa: E402
from custom_colocation import CoLocate  # noqa: E402

pytestmark = pytest.mark.long


def run(*command: object, paths: tuple[Path, ...] = (), cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    env = {**kept, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT / "src"))), "PIP_NO_INPUT": "1"}
    return subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The folder into which the package was installed, as pip does it; built from a copy, so that nothing is left behind."""
    folder = tmp_path_factory.mktemp("third-party")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    how = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-index")
    done = run(sys.executable, "-m", "pip", "install", *how, "--target", folder / "site", folder / "source")
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_the_package_announces_its_policy_by_an_entry_point(installed):
    (info,) = installed.glob("fairlead_newest-*.dist-info")
    assert "[fairlead.policies]\nnewest = fairlead_newest:" in (info / "entry_points.txt").read_text()


def test_the_command_knows_the_policy_and_runs_it(installed, tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\nold,0,1000\nnew,100,50\n")
    how = ("--trace", tmp_path / "jobs.csv", "--cluster", "1xv100:1", "--event-driven", "--json")
    done = run(sys.executable, "-m", "fairlead.cli.main", "simulate", "--policy", "newest", *how, paths=(installed,))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["scheduler"], found["finished"], found["preemptions"]) == ("newest", 2, 1)
    assert found["average_jct_s"] == (1050.0 + 50.0) / 2
    listed = run(sys.executable, "-m", "fairlead.cli.main", "policies", "--json", paths=(installed,))
    (mine,) = (part for part in json.loads(listed.stdout)["parts"] if part["name"] == "newest")
    assert mine["origin"] == "fairlead-newest"


def test_without_the_package_the_policy_is_unknown():
    done = run(sys.executable, "-m", "fairlead.cli.main", "simulate", "--policy", "newest", "--jobs", "2")
    assert done.returncode == 2
    assert done.stderr.startswith("fairlead: error: unknown policy 'newest'")


def test_its_own_tests_hold_it_to_the_shipped_contract(installed, tmp_path):
    tests = shutil.copy(PACKAGE / "test_newest.py", tmp_path)
    done = run(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", tests, paths=(installed,), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    contract = [line for line in done.stdout.splitlines() if "::TestNewest" in line and "PASSED" in line]
    assert len(contract) >= 6, done.stdout


def lines_of_code(path: Path) -> int:
    """Lines with code on them: no blank lines, comments or docstrings."""
    tree = ast.parse(path.read_text())
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            lines |= {node.lineno, node.end_lineno} if isinstance(node, ast.expr) else {node.lineno}
    return len(lines)


def test_it_takes_under_thirty_lines_with_its_tests():
    counted = {path.name: lines_of_code(path) for path in PACKAGE.glob("*.py")}
    assert set(counted) == {"fairlead_newest.py", "test_newest.py"}
    assert 0 < counted["fairlead_newest.py"] < 30
    assert 0 < sum(counted.values()) < 30


# An allocation policy: examples/custom_allocation.py.


class TestEqualUsers(PolicyContract):
    make = staticmethod(lambda: Allocated(EqualUsers(), RoundMechanism()))


def test_users_have_equal_parts_however_many_jobs_they_have():
    found = []

    class Watched:
        def allocate(self, view, memo):
            allocation, memo = EqualUsers().allocate(view, memo)
            found.append(allocation.matrix(view.jobs.number, 1)[:, 0])
            return allocation, memo

    harness = Harness().cluster("v100:2").policy(Allocated(Watched(), RoundMechanism()))
    harness.submit(*(job(f"ann-{n}").with_(user="ann") for n in range(4)), job("bob").with_(user="bob"))
    harness.round()
    assert np.allclose(found[0], [0.25, 0.25, 0.25, 0.25, 1.0])
    harness.run()


def test_an_allocation_policy_takes_twenty_lines():
    assert inspect.getsource(EqualUsers).count("\n") <= 20


def test_the_guide_shows_what_the_examples_print():
    page = (ROOT / "docs" / "guides" / "write-a-plugin.md").read_text(encoding="utf-8")
    for name in ("custom_allocation", "custom_colocation"):
        done = run(sys.executable, ROOT / "examples" / f"{name}.py")
        assert done.returncode == 0, done.stderr
        assert f"python examples/{name}.py\n{done.stdout}```" in page


# A policy that co-locates jobs: examples/custom_colocation.py.


class TestCoLocate(PolicyContract):
    make = CoLocate
    residents = 2


def company(*jobs: Job, slowest: float = 1.6) -> Harness:
    return Harness(table=catalogue(), residents=2).cluster("v100:1").policy(CoLocate(slowest)).submit(*jobs)


def test_two_share_who_get_on_and_a_third_waits():
    light = [Job(f"light-{n}", steps=60_000.0, kind="A3C") for n in range(3)]
    together = company(*light).round()
    assert together.running == {"light-0", "light-1"}
    assert company(*light, slowest=1.0).round().running == {"light-0"}
    shy = [replace(light[0], max_slowdown=1.0), *light[1:]]
    assert company(*shy).round().running == {"light-0"}, "a job may want no company"
    company(*light).run()


def test_a_policy_that_co_locates_jobs_takes_some_twenty_lines():
    assert inspect.getsource(CoLocate).count("\n") <= 25
