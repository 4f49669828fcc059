"""Runs on Ray, without Ray: a pool on a fake of the few calls that it makes. `make test-ray` has a real cluster."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from fake_ray import FakeRay, fake_ray

import fairlead
from fairlead.core.errors import FairleadError, InputError, NotInstalled
from fairlead.experiments import fingerprint, ray_pool
from fairlead.experiments.cases import run_in_processes
from fairlead.experiments.ray_pool import RayPool, ray_address

__all__ = ["fake_ray"]
KEYS = ("decide_s", "wall_s", "peak_rss_mb")


def times(case: int, inputs: int) -> int:
    return case * inputs


def read(_: int, inputs: list[Path]) -> list[str]:
    return [path.read_text() for path in inputs]


@pytest.mark.parametrize(
    ("on", "address"),
    [
        ("ray:auto", "auto"),
        ("ray:local", "local"),
        ("ray:10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray://head:10001", "ray://head:10001"),
    ],
)
def test_an_address_is_read(on: str, address: str):
    assert ray_address(on) == address


@pytest.mark.parametrize("on", ["", "ray", "ray:", "slurm:x", "auto"])
def test_another_place_is_refused(on: str):
    with pytest.raises(InputError, match="'ray:auto', 'ray:local', or 'ray:HOST:PORT'"):
        run_in_processes(times, [], 1, None, lambda *_: None, on)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NotInstalled, match=r"this needs Ray, which is not installed: run pip install 'fairlead\[ray\]'"):
        run_in_processes(times, [1], 1, None, lambda *_: None, "ray:auto")


def test_every_case_runs_once_with_the_inputs(fake_ray: FakeRay):
    found: dict[int, int] = {}
    run_in_processes(times, [1, 2, 3], 10, None, found.__setitem__, "ray:auto")
    assert found == {0: 10, 1: 20, 2: 30}
    assert not fake_ray.connected


def test_a_connection_of_the_caller_stays(fake_ray: FakeRay):
    fake_ray.connected = True
    run_in_processes(times, [1], 10, None, lambda *_: None, "ray:auto")
    assert fake_ray.connected


def test_what_ray_prints_is_not_among_the_results(fake_ray: FakeRay, capsys: pytest.CaptureFixture[str]):
    with RayPool("ray:auto", 1):
        print("(raylet) a node has been marked dead")
    print("result")
    assert capsys.readouterr() == ("result\n", "(raylet) a node has been marked dead\n")


def test_no_more_runs_at_a_time_than_asked_for(fake_ray: FakeRay):
    found: dict[int, int] = {}
    run_in_processes(times, range(20), 1, 1, found.__setitem__, "ray:auto")
    assert len(found) == 20
    assert fake_ray.most == 1


def test_a_comparison_has_the_figures_of_a_local_one(fake_ray: FakeRay):
    jobs = fairlead.Generator(jobs=6, jobs_per_hour=30.0, durations=(600.0, 3600.0))
    here, there = (fairlead.compare(jobs, "4xv100:4", ["fifo", "las"], processes=1, on=on).rows for on in (None, "ray:auto"))
    assert [{key: row[key] for key in row if key not in KEYS} for row in here] == [
        {key: row[key] for key in row if key not in KEYS} for row in there
    ]


def test_an_error_of_a_run_ends_all(fake_ray: FakeRay):
    with pytest.raises(ZeroDivisionError):
        run_in_processes(divmod, [1, 2], 0, None, lambda *_: None, "ray:auto")
    assert not fake_ray.connected


def test_a_lost_run_is_one_line(fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch):
    def lost(*_: object) -> bytes:
        raise OSError("the worker died\nunexpectedly")

    monkeypatch.setattr(ray_pool, "answer", lost)
    with pytest.raises(FairleadError, match=r"^a run on Ray was lost: the worker died unexpectedly$"):
        run_in_processes(times, [1], 1, None, lambda *_: None, "ray:auto")


def test_a_worker_without_a_module_is_named(fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch):
    def lacking(_: int, __: int) -> None:
        raise ModuleNotFoundError("No module named 'mine'", name="mine")

    monkeypatch.setattr(ray_pool, "_dumps", lambda value, **_: Whole(value))
    monkeypatch.setattr(ray_pool.pickle, "loads", lambda value: value.value)
    with pytest.raises(FairleadError, match="a Ray worker lacks the module 'mine': install it on every node"):
        run_in_processes(lacking, [1], 1, None, lambda *_: None, "ray:auto")


class Whole:
    def __init__(self, value: object) -> None:
        self.value = value


def other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers, which are other threads here, have other code than the caller."""
    here = threading.get_ident()
    monkeypatch.setattr(fingerprint, "code_fingerprint", lambda: "ours" if threading.get_ident() == here else "theirs")


def test_workers_with_another_version_are_refused(fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.core.VERSION", "9.9")
    other_code(monkeypatch)
    with pytest.raises(
        FairleadError, match=r"^Ray node 10\.0\.0\.7 has Fairlead 9\.9 on Python 3.*; this command has Fairlead "
    ):
        run_in_processes(times, [1], 1, None, lambda *_: None, "ray:auto")


def test_workers_with_other_code_of_the_same_version_are_refused(fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch):
    other_code(monkeypatch)
    with pytest.raises(
        FairleadError, match=r"has other code, plug-ins or package versions; this command has .*: install the same"
    ):
        run_in_processes(times, [1], 1, None, lambda *_: None, "ray:auto")


def test_no_cluster_is_one_line(fake_ray: FakeRay):
    fake_ray.fail = ConnectionError("Could not find any\nrunning Ray instance")
    with pytest.raises(
        FairleadError, match=r"^no Ray cluster at 'auto': run 'ray start --head', or give the address of a running one$"
    ):
        RayPool("ray:auto", 1)


def test_a_cluster_of_another_version_of_ray_or_python_is_one_line(fake_ray: FakeRay):
    fake_ray.fail = RuntimeError("Version mismatch:\n    Python: 3.12.1")
    with pytest.raises(FairleadError, match=r"^cannot use the Ray cluster at 'auto': Version mismatch: Python: 3.12.1$"):
        RayPool("ray:auto", 1)


def test_a_cluster_without_cpus_is_refused(fake_ray: FakeRay):
    fake_ray.cpus = 0
    with pytest.raises(FairleadError, match="has no CPU for runs"):
        RayPool("ray:auto", 1)
    assert not fake_ray.connected


def test_an_interrupt_cancels_what_runs(fake_ray: FakeRay):
    gate = threading.Event()
    fake_ray.threads.submit(gate.wait)
    fake_ray.threads.submit(gate.wait)  # no thread is free: the call cannot begin
    fake_ray.connected = True  # so that the pool does not disconnect, which waits for the threads
    pool = RayPool("ray:auto", 1)
    pool.submit(times, 1)
    pool.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    gate.set()
    assert len(fake_ray.cancelled) == 1


def test_files_travel_with_the_inputs(fake_ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "there"))
    (tmp_path / "jobs.csv").write_text("content")
    inputs = ray_pool._dumps([tmp_path / "jobs.csv"], with_files=True)
    (tmp_path / "jobs.csv").write_text("another")  # as on a node with an older copy
    assert [path.read_text() for path in ray_pool.pickle.loads(inputs)] == ["content"]
    (tmp_path / "jobs.csv").write_text("content")
    assert ray_pool.pickle.loads(inputs) == [tmp_path / "jobs.csv"]
    found: dict[int, list[str]] = {}
    run_in_processes(read, [0], [tmp_path / "jobs.csv"], None, found.__setitem__, "ray:auto")
    assert found == {0: ["content"]}
