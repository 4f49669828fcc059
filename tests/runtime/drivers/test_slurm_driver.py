"""The Slurm driver with programs that only print text and write down how they were called."""

from __future__ import annotations

import math
import os
import pwd
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.config.registry import Registry
from fairlead.core.errors import InputError
from fairlead.runtime.drivers.base import (
    EngineRefused,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    MachineState,
    TaskState,
    create_driver,
)
from fairlead.runtime.drivers.slurm_driver import SlurmDriver
from fairlead.runtime.drivers.slurm_jobs import listed_jobs, listed_nodes
from fairlead.runtime.host import Host
from foundry import PATIENCE_S

J = "journal-1"
NODES = "n0|gpu*|gpu:v100:4|idle|16|4000|none\nn1|gpu*|gpu:v100:4|mixed|16|4000|none\n"
OWN = pwd.getpwuid(os.geteuid()).pw_name


class Clock(Host):
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Slurm:
    """Programs that answer from memory; `fails` has the errors of a program."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.nodes, self.jobs, self.fails = NODES, dict[str, list[str]](), dict[str, str]()
        self.calls: list[list[str]] = []
        self.scripts: list[tuple[Mapping[str, str], str]] = []
        self.clock = Clock()
        given = {"partition": "gpu", "user_accounts": False, "log_folder": str(folder), "fairlead": "/opt/fairlead", **keys}
        self.driver = SlurmDriver(**given, host=self.clock, run=self)

    def __call__(self, words: Sequence[str], environment: Mapping[str, str], script: str, timeout_s: float):
        self.calls.append(list(words))
        if (errors := self.fails.get(words[0])) is not None:
            if errors == "late":
                raise subprocess.TimeoutExpired(words[0], timeout_s)
            return 1, "", errors
        if words[0] == "sinfo":
            return 0, self.nodes, ""
        if words[0] == "squeue":
            mark = next(word for word in words if word.startswith("--Format=")).partition("State:20")[2].partition(",")[0]
            return 0, "\n".join(mark.join(job) for job in self.jobs.values()), ""
        if words[0] == "sbatch":
            self.scripts.append((environment, script))
            return 0, f"{self.add(self.comment(words))}\n", ""
        for number in words[1:]:
            if number in self.jobs and "--batch" not in words:
                self.set(number, "CANCELLED", "15")
        return 0, "", ""

    def add(self, comment: str, state: str = "PENDING") -> str:
        number = str(len(self.jobs) + 1)
        self.jobs[number] = [number, state, "0", OWN, "Resources" if state == "PENDING" else "None", comment]
        return number

    def set(self, number: str, state: str, status: str = "0") -> None:
        self.jobs[number][1:3] = state, status

    @staticmethod
    def comment(words: Sequence[str]) -> str:
        return next(word.removeprefix("--comment=") for word in words if word.startswith("--comment="))

    def start(self, job: int = 1, machines: tuple[str, ...] = ("n0",), gpus: int = 1, **needs: Any) -> list[LaunchKey]:
        keys = [LaunchKey(J, job, 1, machine) for machine in machines]
        parts = [LaunchPart(key, tuple(range(gpus)), ("agent", "--node", key.machine), f"secret-{job}") for key in keys]
        self.driver.start(parts, LaunchNeeds("train", OWN, **needs))
        return keys

    def task(self, key: LaunchKey, later_s: float = 60.0) -> EngineTask | None:
        self.clock.now_s += later_s
        return {task.key: task for task in self.driver.observe(J)[1]}.get(key)

    def count(self, program: str) -> int:
        return sum(words[0] == program for words in self.calls)


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


@pytest.mark.parametrize(
    ("line", "type_", "count", "state", "reason"),
    [
        ("n0|gpu*|gpu:v100:4(S:0-1)|idle|16|4000|none", "v100", 4, MachineState.READY, ""),
        ("n0|gpu|gpu:4|allocated|16|1|none", "a100", 4, MachineState.READY, ""),
        ("n0|gpu|gpu:tesla:2,shard:8|mixed|16|4000|none", "t4", 2, MachineState.READY, ""),
        ("n0|gpu|gpu:H100_SXM:8(S:0,2),nic:1|idle@|16|4000|none", "h100_sxm", 8, MachineState.READY, ""),
        ("n0|gpu|gpu:1g.5gb:7|idle|16|4000|none", "gpu-1g.5gb", 7, MachineState.READY, ""),
        ("n0|gpu|gpu:v100:4|draining|16|4000|new fans | soon", "v100", 4, MachineState.CORDONED, "new fans | soon"),
        ("n0|gpu|gpu:v100:4|drained|16|4000|disk", "v100", 4, MachineState.CORDONED, "disk"),
        ("n0|gpu|gpu:v100:4|maint|16|4000|none", "v100", 4, MachineState.CORDONED, "maint"),
        ("n0|gpu|gpu:v100:4|down*|16|4000|Not responding", "v100", 4, MachineState.UNREACHABLE, "down*: Not responding"),
        ("n0|gpu|gpu:v100:4|idle*|16|4000|none", "v100", 4, MachineState.UNREACHABLE, "idle*"),
        ("n0|gpu|gpu:v100:4|idle~|16|4000|none", "v100", 4, MachineState.UNREACHABLE, "idle~"),
        ("n0|gpu|gpu:v100:4|drained*|16|4000|disk", "v100", 4, MachineState.UNREACHABLE, "drained*: disk"),
    ],
)
def test_nodes_are_read(line: str, type_: str, count: int, state: MachineState, reason: str) -> None:
    machine = listed_nodes(line, "gpu", {"": "a100", "tesla": "t4"})["n0"].machine
    assert (machine.type, machine.accelerators, machine.state, machine.reason) == (type_, count, state, reason)


def test_a_node_with_an_absurd_number_of_gpus_is_none() -> None:
    text = f"n0|gpu|gpu:{'9' * 5000}|idle|1|1|none\nn1|gpu|gpu:2|idle|1|1|none\nn2|gpu|gpu:-1|idle|1|1|none\n"
    assert list(listed_nodes(text, "gpu", {})) == ["n1"]


def test_nodes_without_gpus_or_of_other_partitions_are_none() -> None:
    text = (
        "n0|cpu|(null)|idle|1|1|none\nn1|gpu*|(null)|idle|1|1|none\nn2|gpu*|gpu:0|idle|1|1|none\nn3|cpu|gpu:2|idle|1|1|none\n"
    )
    assert listed_nodes(text, "gpu", {}) == {}
    assert list(listed_nodes(text + "n4|gpu*|gpu:2|idle|1|1|none", "", {})) == ["n4"]
    mixed = listed_nodes("n5|gpu|gpu:a30:2,gpu:T4:4|idle|1|1|none", "gpu", {})["n5"]
    assert (mixed.machine.type, mixed.machine.accelerators, mixed.gres) == ("t4", 4, "gpu:T4")


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [
        ("PENDING", "0", (TaskState.WAITING, 0, "Priority")),
        ("CONFIGURING", "0", (TaskState.WAITING, 0, "Priority")),
        ("RUNNING", "0", (TaskState.RUNNING, 0, "Priority")),
        ("COMPLETING", "0", (TaskState.RUNNING, 0, "Priority")),
        ("COMPLETED", "0", (TaskState.OVER, 0, "Priority")),
        ("FAILED", "768", (TaskState.OVER, 3, "FAILED: Priority")),
        ("FAILED", "3:0", (TaskState.OVER, 3, "FAILED: Priority")),
        ("CANCELLED", "15", (TaskState.OVER, 143, "CANCELLED: Priority")),
        ("NODE_FAIL", "0", (TaskState.UNKNOWN, 0, "NODE_FAIL: Priority")),
        ("BOOT_FAIL", "0", (TaskState.UNKNOWN, 0, "BOOT_FAIL: Priority")),
        ("REVOKED", "0", (TaskState.UNKNOWN, 0, "REVOKED: Priority")),
    ],
)
def test_states_of_jobs_are_read(state: str, status: str, expected: tuple[TaskState, int, str]) -> None:
    printed = f"7 |{state} |{status} |ann |Priority |{J}/1/2/n0   \n8|RUNNING|0|bob|None|a comment\nodd line"
    (job,) = listed_jobs(printed, "|")
    assert (job.state, job.code, job.reason) == expected
    assert (job.number, job.key) == ("7", LaunchKey(J, 1, 2, "n0"))


def test_a_submission_has_all_needs_and_no_secret(slurm: Slurm) -> None:
    slurm.driver.observe(J)
    options = {"constraint": "nvlink", "exclusive": True, "time": "2h", "nice": 5, "account": "lab"}
    (key,) = slurm.start(gpus=2, cpus=1.5, memory_gb=4, grace_s=20, options=options)
    words = next(words for words in slurm.calls if words[0] == "sbatch")
    assert {"--parsable", "--no-requeue", "--exclusive", "--gres=gpu:2", "--nodelist=n0", "--cpus-per-task=3"} <= set(words)
    assert {"--mem=8192M", "--time=0-02:00:00", "--signal=B:TERM@30", "--constraint=nvlink", "--nice=5"} <= set(words)
    assert {f"--job-name={key.label}", f"--comment={key.text}", "--open-mode=append", "--account=lab"} <= set(words)
    assert not any(word.startswith(("--uid", "--requeue")) for word in words)
    ((environment, script),) = slurm.scripts
    assert script == "#!/bin/bash\nexec /opt/fairlead agent --node n0\n"
    assert "secret" not in script + " ".join(words)
    assert environment["FAIRLEAD_TOKEN"] == "secret-1"
    assert not {"FAIRLEAD_URL", "SBATCH_PARTITION"} & set(environment)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partition": "other"}, "slurm.partition: a task file cannot set this option; it can set account, constraint"),
        ({"uid": 0}, "slurm.uid"),
        ({"nice": -5}, "slurm.nice: expected a whole number from 0, got '-5'"),
        ({"time": "soon"}, "slurm.time"),
        ({"qos": "a\nb"}, "slurm.qos"),
        ({"exclusive": "x"}, "slurm.exclusive: expected true or false"),
    ],
)
def test_other_options_of_users_are_refused(slurm: Slurm, options: dict[str, Any], why: str) -> None:
    with pytest.raises(EngineRefused, match=why):
        slurm.start(options=options)
    assert slurm.count("sbatch") == 0


def test_one_key_is_submitted_once_also_by_a_new_driver(slurm: Slurm, tmp_path: Path) -> None:
    slurm.start()
    slurm.start()
    again = SlurmDriver("gpu", user_accounts=False, log_folder=str(tmp_path), host=slurm.clock, run=slurm)
    again.start([LaunchPart(LaunchKey(J, 1, 1, "n0"), (0,))], LaunchNeeds("train", OWN))
    assert slurm.count("sbatch") == 1


@pytest.mark.parametrize("answer", ["late", "sbatch: error: Unable to contact slurm controller (connect failure)"])
def test_a_submission_without_an_answer_is_looked_up_first(slurm: Slurm, answer: str) -> None:
    slurm.driver.observe(J)
    slurm.fails["sbatch"] = answer
    with pytest.raises(EngineUnavailable):
        slurm.start()
    del slurm.fails["sbatch"]
    slurm.add(LaunchKey(J, 1, 1, "n0").text)  # it was accepted
    (key,) = slurm.start()
    assert slurm.count("sbatch") == 1
    found = slurm.task(key)
    assert found is not None
    assert (found.state, found.reason) == (TaskState.WAITING, "Resources")


def test_of_two_jobs_for_one_key_the_later_is_cancelled(slurm: Slurm) -> None:
    (key,) = slurm.start()
    slurm.set("1", "RUNNING")
    slurm.add(key.text)
    found = slurm.task(key)
    assert found is not None
    assert found.state is TaskState.RUNNING
    assert slurm.calls[-1] == ["scancel", "--quiet", "2"]


@pytest.mark.parametrize(
    ("errors", "problem"),
    [
        ("sbatch: error: Batch job submission failed: Invalid feature specification", EngineRefused),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", EngineUnavailable),
        ("sbatch: error: --uid only permitted by root user", EngineUnavailable),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", EngineUnavailable),
        ("sbatch: error: Batch job submission failed: User's group not permitted to use this partition", EngineRefused),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", EngineUnavailable),
    ],
)
def test_faults_are_the_jobs_or_the_operators(slurm: Slurm, errors: str, problem: type[Exception]) -> None:
    slurm.fails["sbatch"] = errors
    with pytest.raises(problem) as found:
        slurm.start()
    assert errors.rpartition("error: ")[2] in str(found.value)
    assert "\n" not in str(found.value)


def test_a_users_own_wrong_account_is_refused(slurm: Slurm) -> None:
    slurm.fails["sbatch"] = "sbatch: error: Invalid account or account/partition combination specified"
    with pytest.raises(EngineRefused, match="Invalid account"):
        slurm.start(options={"account": "none"})


def test_a_node_that_does_not_exist_any_more_fails_the_part_only(slurm: Slurm) -> None:
    slurm.fails["sbatch"] = "sbatch: error: Batch job submission failed: Invalid node name specified"
    (key,) = slurm.start()
    found = slurm.task(key)
    assert found is not None
    assert (found.state, found.code) == (TaskState.OVER, 1)
    assert "Invalid node name" in found.reason
    slurm.driver.forget(key)
    assert slurm.task(key) is None


def test_a_gang_is_refused_as_a_whole(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.driver.observe(J)
    real = slurm.add

    def add(comment: str, state: str = "PENDING") -> str:
        slurm.fails["sbatch"] = "sbatch: error: Batch job submission failed: Invalid feature specification"
        return real(comment, state)

    monkeypatch.setattr(slurm, "add", add)
    with pytest.raises(EngineRefused):
        slurm.start(machines=("n0", "n1"))
    assert slurm.jobs["1"][1] == "CANCELLED"


def test_a_stop_gives_a_grace_then_cancels_once(slurm: Slurm) -> None:
    (key,) = slurm.start()
    slurm.set("1", "RUNNING")
    slurm.task(key)
    slurm.driver.stop(key, 30.0)
    assert slurm.calls[-1] == ["scancel", "--quiet", "--batch", "--signal=TERM", "1"]
    slurm.driver.stop(key, 30.0)
    assert slurm.count("scancel") == 1
    slurm.task(key, 31.0)
    assert ["scancel", "--quiet", "1"] in slurm.calls
    slurm.driver.stop(key, 0.0)
    assert slurm.count("scancel") == 2
    found = slurm.task(key)
    assert found is not None
    assert (found.state, found.code) == (TaskState.OVER, 143)


def test_an_end_on_a_node_that_does_not_answer_is_not_certain(slurm: Slurm) -> None:
    (key,) = slurm.start()
    slurm.task(key)
    slurm.set("1", "CANCELLED")
    slurm.nodes = slurm.nodes.replace("n0|gpu*|gpu:v100:4|idle", "n0|gpu*|gpu:v100:4|down*")
    found = slurm.task(key, 11.0)
    assert found is not None
    assert found.state is TaskState.UNKNOWN
    del slurm.jobs["1"]
    found = slurm.task(key)
    assert found is not None
    assert (found.state, found.reason) == (TaskState.UNKNOWN, "Slurm does not list its job any more")
    slurm.driver.stop(key, 0.0)
    assert slurm.task(key) is None


def test_what_was_seen_to_end_is_dropped_when_slurm_drops_it(slurm: Slurm) -> None:
    (key,) = slurm.start()
    slurm.set("1", "COMPLETED")
    assert slurm.task(key) is not None
    del slurm.jobs["1"]
    assert slurm.task(key) is None


def test_nodes_are_as_they_were_until_they_answer_a_new_controller(slurm: Slurm) -> None:
    slurm.driver.observe(J)
    slurm.nodes = NODES.replace("idle", "unknown").replace("mixed", "unknown*")
    slurm.clock.now_s += 60
    assert {machine.state for machine in slurm.driver.observe(J)[0]} == {MachineState.READY}


def test_slurm_is_asked_seldom(slurm: Slurm) -> None:
    hours = 3
    for second in range(3600 * hours):
        slurm.clock.now_s = float(second)
        if second % 7 == 0:
            slurm.driver.start([], LaunchNeeds("none"))  # something is started all the time
        slurm.driver.observe(J)
    requests = 2 * (slurm.count("squeue") + slurm.count("sinfo"))
    assert requests / (3600 * hours) <= 0.31


def test_slurm_is_asked_sooner_after_a_start(slurm: Slurm) -> None:
    slurm.driver.observe(J)
    asked = slurm.count("squeue")
    slurm.task(LaunchKey(J, 9, 9, "n0"), 3.0)
    assert slurm.count("squeue") == asked
    (key,) = slurm.start()
    slurm.set("1", "RUNNING")
    found = slurm.task(key, 2.0)
    assert found is not None
    assert found.state is TaskState.RUNNING


@pytest.mark.parametrize(("program", "errors"), [("squeue", "late"), ("sinfo", "slurm_load_partitions: Zero Bytes")])
def test_a_controller_that_is_away_is_unavailable(slurm: Slurm, program: str, errors: str) -> None:
    slurm.fails[program] = errors
    with pytest.raises(EngineUnavailable, match=program):
        slurm.driver.observe(J)


def test_a_missing_partition_and_missing_programs_are_unavailable(slurm: Slurm, tmp_path: Path, monkeypatch) -> None:
    slurm.nodes = ""
    with pytest.raises(EngineUnavailable, match="partition 'gpu' of Slurm does not exist, or has no node with GPUs"):
        slurm.driver.observe(J)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="no 'squeue' on this machine"):
        SlurmDriver(user_accounts=False, log_folder=str(tmp_path)).observe(J)


def test_programs_on_the_path_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("sinfo", f"printf '{NODES}'"), ("squeue", "true"), ("sbatch", f"cat > {tmp_path}/script; echo 7")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    driver = SlurmDriver("gpu", user_accounts=False, log_folder=str(tmp_path / "logs"), timeout_s=PATIENCE_S)
    machines, tasks = driver.observe(J)
    assert ([machine.name for machine in machines], tasks) == (["n0", "n1"], [])
    driver.start([LaunchPart(LaunchKey(J, 1, 1, "n0"), (0,), ("agent",))], LaunchNeeds("one"))
    assert driver.observe(J)[1][0].state is TaskState.WAITING
    assert (tmp_path / "script").read_text().endswith("agent\n")


def test_logs_are_read_but_no_links_and_no_files_of_others(slurm: Slurm, tmp_path: Path) -> None:
    (key,) = slurm.start()
    assert slurm.driver.log(key, 0, 100) is None
    path = tmp_path / OWN / f"{key.label}.log"
    path.write_text("some output")
    assert slurm.driver.log(key, 5, 3) == b"out"
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert slurm.driver.log(key, 0, 100) is None


def test_a_log_folder_that_is_none_fails_only_the_jobs_of_its_account(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / OWN).write_text("a file")
    with pytest.raises(EngineRefused, match="is no folder that"):
        slurm.start()
    (tmp_path / OWN).unlink()
    assert slurm.start(job=2)


def test_old_logs_are_removed(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, keep_logs_s=100.0)
    (key,) = slurm.start()
    path = tmp_path / OWN / f"{key.label}.log"
    path.write_text("text")
    os.utime(path, (0, 0))
    slurm.task(key, 4000.0)
    assert not path.exists()


def account(monkeypatch: pytest.MonkeyPatch, uid: int) -> Callable[[str], pwd.struct_passwd]:
    found = pwd.struct_passwd(("ann", "x", uid, 77, "", "/home/ann", "/bin/sh"))

    def getpwnam(name: str) -> pwd.struct_passwd:
        if name != "ann":
            raise KeyError(name)
        return found

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    return getpwnam


def test_jobs_run_under_the_accounts_of_their_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account(monkeypatch, os.geteuid() or 4242)
    slurm = Slurm(tmp_path / "logs", user_accounts=True)
    part = LaunchPart(LaunchKey(J, 1, 1, "n0"), (0,), ("agent",), "token")
    if os.geteuid() == 0:
        slurm.driver.start([part], LaunchNeeds("one", "ann"))
        assert {"--uid=4242", "--gid=77"} <= set(slurm.calls[-1])
        assert slurm.scripts[0][0]["HOME"] == "/home/ann"
        assert (tmp_path / "logs" / "ann").stat().st_uid == 4242
    for user in ("", "bob"):
        with pytest.raises(EngineRefused, match="has no Unix account"):
            slurm.driver.start([LaunchPart(LaunchKey(J, 2, 1, "n0"), (0,))], LaunchNeeds("two", user))
    for uid in (0, 64):
        account(monkeypatch, uid)
        with pytest.raises(EngineRefused, match="cannot run as ann, a system account"):
            slurm.driver.start([LaunchPart(LaunchKey(J, 3, 1, "n0"), (0,))], LaunchNeeds("three", "ann"))


def test_a_job_with_the_comment_of_anothers_launch_is_not_its_part(slurm: Slurm, tmp_path: Path) -> None:
    key = LaunchKey(J, 1, 1, "n0")
    forged = slurm.add(key.text, "RUNNING")
    slurm.jobs[forged][3] = "mallory"
    slurm.driver.observe(J)
    assert slurm.start() == [key]
    assert slurm.count("sbatch") == 1, "the launch is submitted nevertheless"
    slurm.set("2", "RUNNING")
    slurm.set(forged, "COMPLETED")
    assert slurm.task(key).state is TaskState.RUNNING
    again = SlurmDriver("gpu", user_accounts=False, log_folder=str(tmp_path), host=slurm.clock, run=slurm)
    (task,) = again.observe(J)[1]
    assert task.state is TaskState.RUNNING, "after a restart too, when the account of a part is not known"
    slurm.set(forged, "RUNNING")
    slurm.clock.now_s += 60.0
    again.observe(J)
    assert slurm.count("scancel") == 0, "none is taken for a second submission of the other"


def test_a_comment_with_line_breaks_is_no_other_job(slurm: Slurm) -> None:
    (key,) = slurm.start()
    slurm.set("1", "RUNNING")
    slurm.add("x\n" + "|".join(("77", "RUNNING", "0", OWN, "None", key.text)), "RUNNING")
    assert slurm.task(key).state is TaskState.RUNNING
    assert slurm.count("scancel") == 0, "job 77 is of another user"


def test_a_part_that_is_over_and_does_not_end_is_cancelled(slurm: Slurm) -> None:
    (key,) = slurm.start()
    slurm.set("1", "RUNNING")
    slurm.task(key)
    slurm.driver.forget(key)
    assert slurm.task(key, 10.0) is None
    assert slurm.count("scancel") == 0, "its agent is about to end"
    slurm.task(key, 30.0)
    assert slurm.jobs["1"][1] == "CANCELLED"


def test_wrong_keys_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="log_folder"):
        SlurmDriver(user_accounts=True)
    with pytest.raises(InputError, match="time_limit"):
        SlurmDriver(user_accounts=False, time_limit="soon")
    with pytest.raises(InputError, match="poll_s"):
        SlurmDriver(user_accounts=False, poll_s=math.nan)
    registry = Registry.installed()
    if "slurm" in registry.entries["driver"]:
        driver = create_driver("slurm:partition=gpu,user-accounts=no,poll_s=30", registry)
        assert isinstance(driver, SlurmDriver)
        assert (driver.partition, driver.user_accounts, driver.poll_s) == ("gpu", False, 30.0)
