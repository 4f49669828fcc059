"""A policy as a file on the command line: `--policy mine.py:MyPolicy`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import answer, fairlead

from fairlead.config.policy_files import PolicyFile
from fairlead.core.errors import FairleadError

FILE = """
from __future__ import annotations

from dataclasses import dataclass

from beside import SIGN
from fairlead.plugin import Memo, Selection, Snapshot, in_order


@dataclass(frozen=True)
class Newest:
    '''Run the most recent job first.'''

    sign: float = -1.0

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return in_order(view, SIGN * self.sign * view.jobs.submitted_s), memo


@dataclass(frozen=True)
class NoDefault:
    sign: float

    def select(self, view, memo):
        return in_order(view, view.jobs.number), memo


class Misspelt:
    def select(self, view, memo):
        return in_order(view, view.jobs.submited_s), memo


class NoPair:
    def select(self, view, memo):
        return in_order(view, view.jobs.number)


class TooFew:
    def select(self, view):
        return in_order(view, view.jobs.number), None


class NotAPolicy:
    pass
"""
COMMON = ("--jobs", 20, "--cluster", "8xv100:4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("policies")
    (place / "mine.py").write_text(FILE)
    (place / "beside.py").write_text("SIGN = 1.0\n")
    (place / "broken.py").write_text("\ndef select(:\n")
    (place / "needs.py").write_text("import no_such_package\n")
    (place / "other.py").write_text("from mine import Newest as Old\n\n\nclass Newest(Old):\n    pass\n")
    return place


def test_a_policy_of_a_file_runs_under_the_name_of_its_class(folder: Path) -> None:
    found = answer("simulate", "--policy", "mine.py:Newest", *COMMON, cwd=folder)
    assert (found["scheduler"], found["finished"]) == ("Newest", 20)
    oldest = answer("simulate", "--policy", folder / "mine.py:Newest:sign=1", *COMMON)
    assert oldest["scheduler"] == "Newest(sign=1)"
    assert oldest["average_jct_s"] != found["average_jct_s"]


def test_a_policy_of_a_file_is_compared_in_worker_processes(folder: Path) -> None:
    names = "fifo,mine.py:Newest,mine.py:Newest:sign=1"
    compare = ("compare", "--policies", names, *COMMON, "--seeds", "2x")
    found = answer(*compare, "--processes", 2, "--baseline", "Newest", cwd=folder)
    assert {row["scheduler"] for row in found["cases"]} == {"fifo", "Newest", "Newest(sign=1)"}
    jct = {(row["scheduler"], row["seed"]): row["average_jct_s"] for row in found["cases"]}
    alone = answer("simulate", "--policy", "mine.py:Newest", *COMMON, "--seed", 1, cwd=folder)
    assert jct["Newest", 1] == alone["average_jct_s"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("none.py:Newest", "no file none.py in "),
        ("mine.py", "mine.py: expected a class of the file, as in mine.py:Newest"),
        ("mine.py:sign=1", "mine.py: expected a class of the file, as in mine.py:Newest"),
        ("mine.py:Newst", "mine.py: unknown class 'Newst'; did you mean 'Newest'?"),
        ("mine.py:NotAPolicy", "mine.py: NotAPolicy: expected a class with a method select(self, view, memo)"),
        ("mine.py:TooFew", "mine.py: TooFew.select: expected the arguments (self, view, memo)"),
        ("mine.py:NoPair", "mine.py: NoPair.select: expected to return (Selection, memo), not a value of type"),
        ("mine.py:NoDefault", "policy 'NoDefault': expected other parameters ("),
        ("mine.py:Newest:sgn=1", "policy 'Newest': field 'sgn': expected a known parameter (did you mean 'sign'?)"),
        ("mine.py:Misspelt", "mine.py:30: AttributeError: view.jobs has no column 'submited_s' (did you mean 'submitted_s'"),
        ("broken.py:X", "broken.py: SyntaxError: invalid syntax (broken.py, line 2)"),
        ("needs.py:X", "needs.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(folder: Path, policy: str, message: str) -> None:
    done = fairlead("simulate", "--policy", policy, *COMMON, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert message in done.stderr


def test_errors_of_worker_processes_and_of_two_files_name_the_file(folder: Path) -> None:
    done = fairlead("compare", "--policies", "fifo,mine.py:Misspelt", "--processes", 2, *COMMON, cwd=folder)
    assert (done.returncode, "mine.py:30: AttributeError" in done.stderr) == (2, True)
    done = fairlead("compare", "--policies", "mine.py:Newest,other.py:Newest", *COMMON, cwd=folder)
    assert (done.returncode, "policy 'Newest' already exists, from " in done.stderr) == (2, True)


def test_a_scheduler_file_cannot_name_a_file(folder: Path) -> None:
    (folder / "scheduler.yaml").write_text("policy: 'mine.py:Newest'\n")
    done = fairlead("simulate", "--config", "scheduler.yaml", *COMMON, cwd=folder)
    assert (done.returncode, "unknown policy 'mine.py:Newest'" in done.stderr) == (2, True)


def test_a_file_that_failed_can_be_mended_and_loaded_in_the_same_process(tmp_path: Path) -> None:
    path, before = tmp_path / "mended.py", list(sys.path)
    path.write_text("raise ValueError('not yet')\n")
    for _ in range(2):
        with pytest.raises(FairleadError, match=r"mended\.py:1: ValueError: not yet"):
            PolicyFile(path, "Mine").load()
    assert sys.path == before
    path.write_text("class Mine:\n    def select(self, view, memo):\n        return None, memo\n")
    assert PolicyFile(path, "Mine").load().__name__ == "Mine"
    sys.path.remove(str(tmp_path))
