"""Launches as jobs of a real Slurm cluster of 4 nodes with 4 GPUs each."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_at_work import ClusterAtWork, wait_for

from fairlead.runtime.drivers.base import EngineUnavailable, LaunchKey, LaunchNeeds, LaunchPart, TaskState
from fairlead.runtime.drivers.slurm_driver import SlurmDriver, run_slurm
from fairlead.testing.contracts.driver_contract import DriverContract
from slurm_bed import SlurmBed

pytestmark = pytest.mark.long

PATIENCE_S = 120.0  # of Slurm's programs, on a busy machine


def driver_of(slurm: SlurmBed, folder: Path, **keys: Any) -> SlurmDriver:
    given = {"partition": "gpu", "user_accounts": False, "log_folder": str(folder), "poll_s": 0.5, "timeout_s": PATIENCE_S}
    return SlurmDriver(**{**given, "conf": slurm.environment["SLURM_CONF"], **keys})


class TestSlurmDriver(DriverContract):
    patience_s = 120.0

    @pytest.fixture(autouse=True)
    def _bed(self, slurm: SlurmBed, tmp_path: Path) -> Iterator[None]:
        self.slurm, self.folder, self.made = slurm, tmp_path, list[SlurmDriver]()
        yield
        slurm.cancel_all()

    def make(self) -> SlurmDriver:
        self.made.append(driver_of(self.slurm, self.folder))
        return self.made[-1]

    @contextmanager
    def away(self) -> Iterator[None]:  # type: ignore[override]
        with self.slurm.away():
            for driver in self.made:
                driver.timeout_s = 1.0
            yield
            for driver in self.made:
                driver.timeout_s = PATIENCE_S


@contextmanager
def on_slurm(root: Path, slurm: SlurmBed, **about: Any) -> Iterator[ClusterAtWork]:
    keys = {
        "partition": "gpu",
        "user_accounts": "no",
        "log_folder": root / "logs",
        "setup": "export FAIRLEAD_ALLOW_ROOT_JOBS=1",
        "poll_s": 1,
        "timeout_s": 30,
        "conf": slurm.environment["SLURM_CONF"],
    }
    engine = "slurm:" + ",".join(f"{key}={value}" for key, value in keys.items())
    options = {"lease_s": 90.0, "grace_s": 8.0, "round_s": 0.5, **about}
    try:
        with ClusterAtWork(root, machines="", engine=engine, **options) as cluster:
            wait_for(lambda: [node["up"] for node in cluster.nodes().values()] == [True] * 4, "nodes", cluster._logs)
            yield cluster
    finally:
        slurm.cancel_all()


@pytest.mark.parametrize("policy", ["las", "max-min-fairness-perf"])
def test_the_dozen_ends_as_jobs_of_slurm(tmp_path: Path, slurm: SlurmBed, policy: str) -> None:
    with on_slurm(tmp_path, slurm, policy=policy, round_s=2.0) as cluster:
        cluster.run_the_dozen()


def test_jobs_gangs_and_failures_end_as_they_should(tmp_path: Path, slurm: SlurmBed) -> None:
    with on_slurm(tmp_path, slurm) as cluster:
        cluster.submit(cluster.job("one", steps=20), cluster.job("two", steps=20), cluster.job("gang", steps=20, workers=6))
        cluster.submit(cluster.job("fails", steps=5, fails_at=2, retries=0), ends="failed")
        cluster.submit(cluster.job("odd", steps=5, slurm={"partition": "other"}), ends="failed")
        cluster.submit(cluster.job("lacks", steps=5, slurm={"constraint": "nothing"}), ends="failed")
        jobs = cluster.until_all_ended()
        assert jobs["gang"]["starts"] == 1
        cluster.submit({"name": "says", "run": ["sh", "-c", "echo I am $RANK"], "workers": 6})
        cluster.until_all_ended()
        said = [f"I am {rank}\n" for rank in range(6)]
        wait_for(lambda: [_log_of(cluster, "says", rank) for rank in range(6)] == said, "logs are handed over", cluster._logs)
        assert "slurm.partition: a task file cannot set this option" in str(jobs["odd"])
        assert "Slurm refused the job: Batch job submission failed: Invalid feature specification" in str(jobs["lacks"])


def _log_of(cluster: ClusterAtWork, name: str, rank: int) -> str:
    with contextlib.suppress(AssertionError):  # its agent has ended, and its log is not stored yet
        return str(cluster.ask("GET", f"/v1/jobs/{name}/logs?rank={rank}")["text"])
    return ""


def test_a_controller_that_is_away_touches_no_running_job(tmp_path: Path, slurm: SlurmBed) -> None:
    with on_slurm(tmp_path, slurm, lease_s=14.0, grace_s=2.0) as cluster:
        cluster.submit(cluster.job("runs", steps=600, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["runs"]["steps_done"] > 2)
        with slurm.away():
            done = cluster.jobs()["runs"]["steps_done"]
            cluster.submit(cluster.job("waits", steps=5))
            cluster.until("longer than a lease and a grace", lambda jobs: jobs["runs"]["steps_done"] > done + 170)
            assert cluster.jobs()["waits"]["steps_done"] == 0
        cluster.until("the order is carried out", lambda jobs: jobs["waits"]["phase"] == "finished")
        cluster.hurry("runs")
        assert cluster.until_all_ended()["runs"]["starts"] == 1


def test_a_drained_node_is_left(tmp_path: Path, slurm: SlurmBed) -> None:
    with on_slurm(tmp_path, slurm) as cluster:
        cluster.submit(cluster.job("moves", steps=600, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["moves"]["steps_done"] > 2)
        here = next(name for name, node in cluster.nodes().items() if node["jobs"])
        slurm.run("scontrol", "update", f"nodename={here}", "state=drain", "reason=new fans")
        try:
            cluster.until("it has moved", lambda jobs: jobs["moves"]["starts"] == 2 and jobs["moves"]["steps_done"] > 2)
            assert "new fans" in str(cluster.nodes()[here])
        finally:
            slurm.run("scontrol", "update", f"nodename={here}", "state=resume")
        cluster.hurry("moves")
        cluster.until_all_ended()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other accounts can reach."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-native-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_job_runs_under_its_users_account_and_its_token_is_not_to_be_seen(shared: Path, slurm: SlurmBed) -> None:
    run = """bash -c 'id -un; id -gn; echo "$HOME ${#FAIRLEAD_TOKEN}"; exec sleep 600'"""
    driver = driver_of(slurm, shared / "logs", user_accounts=True, fairlead=run)
    key, secret = LaunchKey("accounts", 1, 1, "n3"), "fl_launch_secret"
    try:
        driver.start([LaunchPart(key, (0, 1), ("agent",), secret)], LaunchNeeds("one", "nobody", cpus=2, memory_gb=0.5))
        wait_for(lambda: (driver.log(key, 0, 1000) or b"").count(b"\n") == 3, "it prints")
        assert driver.log(key, 0, 1000) == b"nobody\nnogroup\n/nonexistent 16\n"
        assert (shared / "logs" / "nobody").stat().st_mode & 0o777 == 0o700
        (number,) = (job for job in slurm.alive())
        about = slurm.run("scontrol", "show", "job", "-dd", number)
        assert "UserId=nobody" in about
        assert "NumCPUs=4" in about
        assert "gpu:v100:2" in about
        script = slurm.run("scontrol", "write", "batch_script", number, "-")
        commands = b"\n".join(filter(None, map(_command_of, Path("/proc").glob("[0-9]*/cmdline"))))
        assert secret not in about + script + slurm.run("squeue", "--states=all", "-O", "jobid,comment:200,command:500")
        assert secret.encode() not in commands
    finally:
        slurm.run("scancel", "--user=nobody")
        slurm.until("it is gone", lambda: not slurm.alive())


def _command_of(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def test_a_submission_whose_answer_was_lost_is_found_before_the_next(tmp_path: Path, slurm: SlurmBed) -> None:
    lost = True

    def loses_an_answer(words: Sequence[str], *how: Any) -> tuple[int, str, str]:
        nonlocal lost
        found = run_slurm(words, *how)
        if words[0] == "sbatch" and lost:
            lost = False
            return 1, "", "Socket timed out on send/recv operation"
        return found

    driver = driver_of(slurm, tmp_path, fairlead="sleep", run=loses_an_answer)
    part = LaunchPart(LaunchKey("lost", 1, 1, "n2"), (0,), ("600",), "token")
    try:
        with pytest.raises(EngineUnavailable, match="timed out"):
            driver.start([part], LaunchNeeds("one"))
        for _ in range(2):
            driver.start([part], LaunchNeeds("one"))
        assert not lost
        assert len(slurm.alive()) == 1
        _, (task,) = driver.observe("lost")
        assert task.state in (TaskState.WAITING, TaskState.RUNNING)
    finally:
        slurm.cancel_all()


def test_running_launches_are_adopted_after_kill_9(tmp_path: Path, slurm: SlurmBed) -> None:
    with on_slurm(tmp_path, slurm) as cluster:
        cluster.submit(cluster.job("one", steps=400, step_s=0.1), cluster.job("gang", steps=400, step_s=0.1, workers=6))
        cluster.until("both run", lambda jobs: all(job["steps_done"] > 2 for job in jobs.values()))
        cluster.kill_plane()
        cluster.start_plane()
        for name in ("one", "gang"):
            cluster.hurry(name)
        jobs = cluster.until_all_ended()
        assert {name: job["starts"] for name, job in jobs.items()} == {"one": 1, "gang": 1}, cluster._logs()
