"""Comparisons, sweeps and reproductions on a real Ray cluster of three nodes. Losses come last: they take nodes away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import add_node, fairlead_command, ray_cluster

import fairlead
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.errors import FairleadError
from fairlead.experiments.cases import run_in_processes
from fairlead.experiments.compare import Comparison, Workload, run_comparison
from fairlead.experiments.ray_pool import RayPool
from fairlead.plugin import in_order

TIMES = ("decide_s", "wall_s", "peak_rss_mb")
SMALL = ("--jobs", "12", "--cluster", "8xv100:4", "--policies", "fifo,las", "--seeds", "3x")
RUNS = 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes with one CPU each."""
    with ray_cluster(3) as found:
        yield found


def run(*words: str, folder: Path) -> Any:
    done = subprocess.run(fairlead_command(*words), cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def without_times(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: without_times(value) for key, value in found.items() if key not in TIMES}
    return [without_times(one) for one in found] if isinstance(found, list) else found


def wait(condition: Callable[[], object]) -> None:
    while not condition():  # the test's own timeout ends it
        time.sleep(0.2)


def test_a_comparison_equals_a_local_one(cluster: Any, tmp_path: Path):
    local = run("compare", *SMALL, "--processes", "1", "--json", folder=tmp_path)
    there = run("compare", *SMALL, "--on", f"ray:{cluster.address}", "--json", folder=tmp_path)
    assert json.dumps(without_times(there)) == json.dumps(without_times(local))


def test_a_sweep_equals_a_local_one_with_its_files(cluster: Any, tmp_path: Path):
    trace = [f"job-{n},{60 * n},{600 + 60 * n},{1 + n % 2}" for n in range(8)]
    (tmp_path / "jobs.csv").write_text("\n".join(["name,submitted_s,duration_s,workers", *trace]) + "\n")
    (tmp_path / "sweep.yaml").write_text(
        "schedulers: [las, fifo]\nover: {load: [10, 20]}\nseeds: 2\ncluster: 4xv100:4\ntrace: jobs.csv\n"
    )
    local = run("compare", "--sweep", "sweep.yaml", "--processes", "1", "--out", "a", "--json", folder=tmp_path)
    there = run("compare", "--sweep", "sweep.yaml", "--on", f"ray:{cluster.address}", "--out", "b", "--json", folder=tmp_path)
    assert (there["ran"], there["reused"]) == (8, 0)
    assert json.dumps(without_times(there)) == json.dumps(without_times(local))
    assert sorted(one.name for one in (tmp_path / "a/cases").iterdir()) == sorted(
        one.name for one in (tmp_path / "b/cases").iterdir()
    )


def test_a_reproduction_equals_a_local_one(cluster: Any, tmp_path: Path):
    given = ("reproduce", "horus", "--scale", "tiny", "--only", "queues", "--json")
    local = run(*given, "--processes", "1", "--out", "a", folder=tmp_path)
    there = run(*given, "--on", f"ray:{cluster.address}", "--out", "b", folder=tmp_path)
    assert without_times(there)["rows"] == without_times(local)["rows"]


def test_a_policy_of_a_script_runs_there(cluster: Any):
    class Backwards:
        """Rank the last job first."""

        def select(self, view: Any, memo: Any) -> Any:
            return in_order(view, -view.jobs.submitted_s), memo

    jobs = fairlead.Generator(jobs=6, jobs_per_hour=60.0, durations=(600.0, 3600.0))
    here, there = (
        fairlead.compare(jobs, "4xv100:4", ["fifo", Backwards()], on=on).rows for on in (None, f"ray:{cluster.address}")
    )
    assert without_times(there) == without_times(here)


def test_a_run_costs_this_process_less_than_five_milliseconds(cluster: Any):
    """CPU time, which other work on the machine hardly changes; `benchmarks/ray_overhead.py` has wall times."""
    with RayPool(f"ray:{cluster.address}", 1) as pool:
        futures.wait([pool.submit(pow, number) for number in range(40)])  # starts the workers
        before = time.process_time()
        futures.wait([pool.submit(pow, number) for number in range(RUNS)])
        assert (time.process_time() - before) / RUNS < 0.005


def test_an_interrupt_cancels_the_runs(cluster: Any, tmp_path: Path):
    import ray

    long = fairlead_command(
        "compare", "--jobs", "3000", "--policies", "fifo,las", "--seeds", "20x", "--on", f"ray:{cluster.address}"
    )
    running = subprocess.Popen(long, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        wait(lambda: ray.available_resources().get("CPU", 0) < 3 or running.poll() is not None)
        running.send_signal(signal.SIGINT)
        _, problem = running.communicate(timeout=300)
        assert running.returncode == 130
        assert problem.strip().endswith("interrupted")
        wait(lambda: ray.available_resources().get("CPU", 0) == 3)
    finally:
        ray.shutdown()


def test_a_killed_worker_loses_nothing(cluster: Any, tmp_path: Path):
    def once_killed(case: int, inputs: str) -> int:
        mark = os.path.join(inputs, str(case))
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return case * case

    found: dict[int, int] = {}
    run_in_processes(once_killed, range(3), str(tmp_path), None, found.__setitem__, f"ray:{cluster.address}")
    assert found == {0: 0, 1: 1, 2: 4}


def test_a_run_that_always_kills_its_worker_ends_with_an_error(cluster: Any):
    def always(_: int, __: None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(FairleadError, match=r"^a run on Ray was lost: "):
        run_in_processes(always, [0], None, None, lambda *_: None, f"ray:{cluster.address}")


def test_a_killed_node_loses_nothing(cluster: Any):
    jobs = fairlead.Generator(jobs=10, jobs_per_hour=30.0, durations=(600.0, 3600.0))
    given = Comparison(
        Workload(jobs),
        fairlead.Cluster.parse("4xv100:4"),
        [SchedulerConfig.preset("las")],
        seeds=range(RUNS),
    )
    done = 0

    def count(_: object) -> None:
        nonlocal done
        done += 1
        if done == RUNS // 10:
            victim = next(iter(cluster.worker_nodes))
            cluster.remove_node(victim, allow_graceful=False)

    there = run_comparison(given, on=f"ray:{cluster.address}", on_done=count)
    here = run_comparison(given, processes=2)
    assert [without_times(one.row(given)) for one in there] == [without_times(one.row(given)) for one in here]
    assert done == RUNS


def test_a_node_with_another_version_is_refused(cluster: Any, tmp_path: Path):
    """A fresh node has a copy of the package that says another version; the others have no CPU left for the run."""
    import ray

    class Idle:
        def here(self) -> bool:
            return True

    package = Path(fairlead.__file__).parent
    shutil.copytree(package, tmp_path / "fairlead", ignore=shutil.ignore_patterns("__pycache__"))
    core = tmp_path / "fairlead" / "core" / "__init__.py"
    assert fairlead.__version__ in core.read_text()
    core.write_text(core.read_text().replace(fairlead.__version__, "9.9"))
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    add_node(cluster, "127.0.0.9", env_vars={"PYTHONPATH": path})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        taken = ray.remote(num_cpus=1)(Idle)
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        holder = taken.options(scheduling_strategy=affinity).remote()
        ray.get(holder.here.remote())
        with pytest.raises(
            FairleadError, match=r"^Ray node 127\.0\.0\.9 has Fairlead 9\.9 on Python 3\.\d+; this command has "
        ):
            run_in_processes(divmod, [7], 2, None, lambda *_: None, f"ray:{cluster.address}")
    finally:
        ray.shutdown()
