"""A job under a lease, as a real process: exactly once over preemptions, bounds, the page, and life without Fairlead."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_agent import EXAMPLES, Agent, lines, until

from fairlead.client.lease_page import Field, Stage

COUNT = EXAMPLES / "count.py"


def test_every_step_is_done_exactly_once_over_five_preemptions(agent: Agent, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = (COUNT, "--steps", "60", "--paced", "--log", log)
    done = 0
    for steps in (1, 7, 3, 12, 5):
        job = agent.launch(*command)
        job.pace(steps)
        job.reaches(done + steps)
        job.revoke()
        job.pace(1)  # the step under way
        assert job.ends() == 0
        done = job.page[Field.STEPS]
        assert (job.stage, job.page[Field.SAVED]) == (Stage.YIELDED, done)
        assert lines(log) == list(range(done))
    last = agent.launch(*command)
    last.pace(60)
    assert last.ends() == 0
    assert (last.stage, last.page[Field.STEPS], last.page[Field.SAVED]) == (Stage.FINISHED, 60, 60)
    assert lines(log) == list(range(60))
    assert last.printed.endswith(f"counted to 60\nthe sum of the numbers below 60 is {sum(range(60))}\n")
    assert [folder.name for folder in agent.checkpoints.iterdir()] == ["step-60"]


def test_sigterm_to_the_job_itself_lets_it_save_and_yield(agent: Agent, tmp_path: Path) -> None:
    """As Slurm sends it to every process."""
    log = tmp_path / "log"
    command = (COUNT, "--steps", "30", "--paced", "--log", log)
    job = agent.launch(*command)
    job.pace(5)
    job.reaches(5)
    job.process.send_signal(signal.SIGTERM)
    job.process.send_signal(signal.SIGTERM)
    until(lambda: job.page[Field.REVOKED], lambda: job.errors)
    job.pace(1)  # the step under way
    assert job.ends() == 0
    assert (job.stage, job.page[Field.SAVED]) == (Stage.YIELDED, 6)
    again = agent.launch(*command)
    again.pace(30)
    assert again.ends() == 0
    assert lines(log) == list(range(30))


def test_after_sigkill_only_the_steps_since_the_last_checkpoint_are_repeated(agent: Agent, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = (COUNT, "--steps", "40", "--paced", "--log", log, "--save-every", "10")
    job = agent.launch(*command)
    job.pace(27)
    job.reaches(27)
    assert job.page[Field.SAVED] == 20
    job.kill()
    again = agent.launch(*command)
    again.pace(40)
    assert again.ends() == 0
    assert lines(log) == [*range(27), *range(20, 40)]
    assert again.printed.endswith(f"is {sum(range(40))}\n")


def test_a_job_that_was_finished_does_nothing_when_launched_again(agent: Agent, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        job = agent.launch(COUNT, "--steps", "5", "--log", log)
        assert (job.ends(), job.stage) == (0, Stage.FINISHED)
    assert lines(log) == list(range(5))


def test_jobs_whose_turns_are_shorter_than_their_starts_get_further_all_the_same(agent: Agent, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    walk = "[print(batch) for batch in fairlead.lease(range(3), save=lambda folder: None)]"
    script.write_text(f"import sys; sys.stdin.read(1); import fairlead; {walk}")
    for step in range(3):
        job = agent.launch(script)
        job.revoke()
        job.pace(1)
        assert (job.ends(), job.printed) == (0, f"{step}\n"), "each launch does a step, though its lease was over before it"
        assert job.stage is Stage.YIELDED or step == 2


def test_a_bound_in_steps_ends_the_lease_and_more_is_asked_for_at_three_quarters(agent: Agent) -> None:
    job = agent.launch(COUNT, "--steps", "100", "--paced", bounds={Field.MAX_STEPS: 8})
    job.pace(5)
    job.reaches(5)
    assert job.page[Field.WANTS_MORE] == 0
    job.pace(1)
    until(lambda: job.page[Field.WANTS_MORE])
    assert job.page[Field.STEPS] == 6
    job.page[Field.MAX_STEPS] = 20
    job.page[Field.RENEWALS] += 1
    job.pace(3)
    until(lambda: job.page[Field.STEPS] == 9)
    until(lambda: not job.page[Field.WANTS_MORE])
    job.pace(30)
    assert job.ends() == 0
    assert (job.stage, job.page[Field.STEPS], job.page[Field.SAVED]) == (Stage.YIELDED, 20, 20)


def test_a_bound_in_time_ends_the_lease(agent: Agent) -> None:
    job = agent.launch(COUNT, "--steps", "1000000", "--step-s", "0.001", bounds={Field.MAX_MS: 1})
    assert (job.ends(), job.stage) == (0, Stage.YIELDED)
    assert 0 < job.page[Field.SAVED] == job.page[Field.STEPS] < 1_000_000


def test_under_central_renewal_nothing_is_done_beyond_a_bound_before_the_answer(agent: Agent) -> None:
    central = {"FAIRLEAD_RENEWAL": "central"}
    job = agent.launch(COUNT, "--steps", "100", "--paced", environment=central, bounds={Field.MAX_STEPS: 1})
    job.pace(100)
    for renewal in (1, 2):
        until(lambda: job.page[Field.WANTS_MORE] == renewal)  # noqa: B023 - it is called here
        assert job.page[Field.STEPS] == renewal
        job.page[Field.MAX_STEPS] = renewal + 1
        job.page[Field.RENEWALS] = renewal
    until(lambda: job.page[Field.WANTS_MORE] == 3)
    job.revoke()
    assert job.ends() == 0
    assert (job.stage, job.page[Field.STEPS], job.page[Field.SAVED]) == (Stage.YIELDED, 3, 3)


def test_the_page_tells_when_steps_were_done(agent: Agent) -> None:
    job = agent.launch(COUNT, "--steps", "100", "--paced")
    job.pace(1)
    until(lambda: job.page[Field.BEGAN_NS])
    assert (job.stage, job.page[Field.BEGAN_AT]) == (Stage.RUNNING, 1)
    job.pace(3)
    job.reaches(4)
    until(lambda: job.page[Field.LAST_NS] > job.page[Field.BEGAN_NS])


def test_a_stopped_lease_leaves_what_follows_the_loop_for_the_last_launch(agent: Agent) -> None:
    job = agent.launch(COUNT, "--steps", "9", "--paced")
    job.pace(2)
    job.reaches(2)
    job.revoke()
    job.pace(1)
    assert (job.ends(), job.printed) == (0, "")


def test_epochs_go_on_where_they_stopped_and_loaders_are_told_the_epoch(agent: Agent, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys, fairlead

class Lettered:
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        return iter([f"{self.epoch}{letter}" for letter in "abc"])

lease = fairlead.lease(Lettered(), save=lambda folder: None, epochs=3)
for batch in lease:
    sys.stdin.read(1)
    print(batch)
"""
    )
    printed = []
    for steps in (2, 3, 5):  # in an epoch, at its end, and longer than there is anything to do
        job = agent.launch(script, bounds={Field.MAX_STEPS: steps})
        job.pace(9)
        assert job.ends() == 0, job.errors
        printed.append(job.printed.split())
    assert printed == [["0a", "0b"], ["0c", "1a", "1b"], ["1c", "2a", "2b", "2c"]]
    assert job.stage == Stage.FINISHED


def test_a_loader_that_can_be_walked_once_is_refused_a_second_epoch(agent: Agent, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import fairlead\nfor _ in fairlead.lease(iter('abc'), steps=5): pass")
    job = agent.launch(script)
    assert job.ends() == 1
    assert "the loader returned no batch in epoch 1, after 3 steps" in job.errors


def test_the_batch_size_is_the_loaders_until_the_script_says_otherwise(agent: Agent) -> None:
    job = agent.launch(EXAMPLES / "growing_batch.py", "--samples", "4000", "--step-s", "0")
    assert job.ends() == 0, job.errors
    assert (job.stage, job.page[Field.BATCH_SIZE]) == (Stage.FINISHED, 128)


def test_a_batch_size_that_has_grown_outlives_a_preemption(agent: Agent, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for steps in (25, 1000):
        command = (EXAMPLES / "growing_batch.py", "--samples", "3000", "--step-s", "0", "--log", log)
        job = agent.launch(*command, bounds={Field.MAX_STEPS: steps})
        assert job.ends() == 0, job.errors
    assert job.stage == Stage.FINISHED
    spans = [[int(number) for number in line.split()] for line in log.read_text().splitlines()]
    assert [sample for is_leader, last in spans for sample in range(is_leader, last + 1)] == list(range(3000))


SIZES_AT_STEPS = {
    "another at every step: a rate together": (
        "[16, 256][step % 2] if step < 150 else 64",
        ((50, 1), (120, 101), (170, 101)),
    ),
    "one that comes early: a rate of its own": (
        "16 if step < 5 else 64 if step < 40 else 128 if step < 43 else 256",
        ((4, 1), (7, 5), (42, 40), (60, 43)),
    ),
}


@pytest.mark.parametrize("sizes", SIZES_AT_STEPS)
def test_a_rate_begins_with_its_batch_size(agent: Agent, tmp_path: Path, sizes: str) -> None:
    size, looks = SIZES_AT_STEPS[sizes]
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, fairlead\n"
        "lease = fairlead.lease(range(1000), save=lambda folder: None)\n"
        "for step in lease:\n"
        f"    lease.batch_size = {size}\n"
        "    sys.stdin.read(1)\n"
    )
    job = agent.launch(script)
    for steps, began in looks:
        job.pace(steps - job.page[Field.STEPS])
        job.reaches(steps)
        until(lambda began=began: job.page[Field.BEGAN_AT] == began)
    job.revoke()
    job.pace(1)
    assert job.ends() == 0


def test_a_plain_script_saves_on_sigterm_and_goes_on(agent: Agent, tmp_path: Path) -> None:
    log = tmp_path / "log"
    agent.checkpoints.mkdir()
    job = agent.launch(EXAMPLES / "plain.py", "--steps", "100000", "--step-s", "0.005", "--log", log)
    until(lambda: log.exists() and len(lines(log)) > 2)
    job.process.terminate()
    assert job.ends() == 143
    steps = len(lines(log)) + 5
    again = agent.launch(EXAMPLES / "plain.py", "--steps", str(steps), "--step-s", "0", "--log", log)
    assert (again.ends(), lines(log)) == (0, list(range(steps)))


def test_outside_fairlead_the_same_script_runs_to_its_end(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    command = [sys.executable, str(COUNT), "--steps", "5", "--log", str(tmp_path / "log")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("the sum of the numbers below 5 is 10\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_outside_fairlead_checkpoints_go_to_the_directory_that_is_given(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    directory = tmp_path / "mine"
    for steps in (5, 8):
        command = [
            sys.executable,
            str(COUNT),
            "--steps",
            str(steps),
            "--log",
            str(tmp_path / "log"),
            "--directory",
            str(directory),
        ]
        subprocess.run(command, env=environment, capture_output=True, check=True)
    assert lines(tmp_path / "log") == list(range(8))
    assert json.loads((directory / "step-8" / "fairlead.json").read_text())["steps"] == 8


def test_the_client_imports_nothing_but_the_standard_library() -> None:
    code = "import fairlead, sys; fairlead.lease; print(*({m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names))"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=_bare(), capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"fairlead", "__main__"}


def test_importing_fairlead_does_not_import_the_client() -> None:
    code = "import fairlead, sys; print('fairlead.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=_bare(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
def test_a_look_at_the_lease_makes_no_system_call(agent: Agent, tmp_path: Path) -> None:
    """As many system calls in 200,000 steps as in 1,000, give or take what the interpreter does now and then."""
    script = tmp_path / "script.py"
    script.write_text("import sys, fairlead\nfor _ in fairlead.lease(range(int(sys.argv[1]))): pass")
    counts = []
    for steps in (1_000, 200_000):
        job = agent.launch(
            "-c", "import os, sys; os.execvp('strace', sys.argv[1:])", "strace", "-f", "-c", "-o", tmp_path / "calls",
            sys.executable, script, str(steps),
        )  # fmt: skip
        if job.ends() and "ptrace" in job.errors:
            pytest.skip("strace may not trace here")
        assert job.page[Field.STEPS] == steps, job.errors
        total = (tmp_path / "calls").read_text().splitlines()[-1].split()
        counts.append(int(total[3] if total[0].startswith("100") else total[2]))
    assert counts[1] - counts[0] < 200


def _bare() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src"), "PATH": os.environ["PATH"]}
