"""The short golden cases in this process, and some under each perturbation; `make golden` checks all of them in full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import golden_cases
import pytest

WRITTEN = golden_cases.written()


def test_every_policy_and_preset_has_digests_of_enough_decisions():
    known = {(one.case.kind, one.case.name, one.case.workload) for one in WRITTEN}
    assert known == {(case.kind, case.name, case.workload) for case in golden_cases.all_cases()}
    assert all(one.decisions >= golden_cases.DECISIONS for one in WRITTEN)


@pytest.mark.parametrize("one", WRITTEN, ids=lambda one: one.case.key)
def test_the_event_log_is_the_same_on_every_machine(one):
    assert not golden_cases.check(one, short=True)


@pytest.mark.long
@pytest.mark.parametrize("perturbation", ["sums", "rates", "solver", "path"])
def test_logs_do_not_depend_on_how_a_machine_rounds(perturbation):
    program = Path(golden_cases.__file__)
    only = ["policy finish-time-fairness", "policy min-", "policy gandiva-fair", "policy max-min"]
    only += ["policy fifo"] if perturbation != "path" else []  # its program has several optima (README.md)
    command = [sys.executable, program, "--short", "--perturb", perturbation, "--only", *only]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
