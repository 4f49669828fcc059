"""What a worker of an elastic job knows of its part, and what it tells of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from fake_agent import EXAMPLES, Agent

from fairlead.client import metric_reports as reports
from fairlead.client.batch_arithmetic import GradientNoise
from fairlead.client.elastic import WARM_UP, BatchLimits, Elastic, elastic
from fairlead.client.launch_context import BATCH_SIZE, NODES, REPORTS
from fairlead.client.lease_page import Field, Stage
from fairlead.models.goodput import LARGEST, LEAST_LOCAL, MOST_LOCAL, REPORTED, SMALLEST, TWICE_ABOVE, Goodputs, StepModel


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What was reported last, by name."""
    path = tmp_path / "reports"
    monkeypatch.setenv(REPORTS, str(path))
    monkeypatch.setattr(reports, "_writer", None)

    def read() -> dict[str, float]:
        reports.flush_reports()
        return {name: value for line in path.read_text().splitlines() for name, value in json.loads(line).items()}

    return read


def launched(monkeypatch: pytest.MonkeyPatch, workers: int, rank: int = 0, batch_size: object = "", nodes: int = 1) -> None:
    for name, value in (("WORLD_SIZE", workers), ("RANK", rank), (BATCH_SIZE, batch_size), (NODES, nodes)):
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_all_parts_of_a_batch_are_the_batch(monkeypatch, workers):
    for length in (40, 37, 5):
        seen = []
        for rank in range(workers):
            launched(monkeypatch, workers, rank)
            work = elastic(40, max_local=4)
            parts = list(work.parts(range(100, 100 + length)))
            assert len(parts) == work.accumulation_steps
            assert all(len(part) <= work.local_batch <= 4 for part in parts)
            seen += [sample for part in parts for sample in part]
        assert seen == list(range(100, 100 + length))


def test_who_is_alone_goes_twice_to_see_how_noisy_gradients_are(monkeypatch):
    launched(monkeypatch, 1)
    assert (elastic(32).accumulation_steps, elastic(32).local_batch) == (2, 16)
    assert elastic(32, min_local=32).accumulation_steps == 1
    launched(monkeypatch, 2)
    assert elastic(32).accumulation_steps == 1


def test_the_batch_size_is_the_plans_or_the_jobs_and_gives_everybody_a_part(monkeypatch):
    for given, size, tunes in (("", 32, False), ("64", 64, False), ("4096", 256, False), ("tuned", 32, True)):
        launched(monkeypatch, 2, batch_size=given)
        work = elastic(32, smallest=16, largest=256)
        assert (work.batch_size, work.may_tune) == (size, tunes)
    launched(monkeypatch, 16)
    assert elastic(32, smallest=16, largest=256, min_local=8).batch_size == 128
    launched(monkeypatch, 64)
    with pytest.raises(ValueError, match="too small for 64 workers"):
        elastic(32)
    launched(monkeypatch, 1)
    with pytest.raises(ValueError, match=r"batch_size = 300: expected 16 to 256"):
        elastic(32, smallest=16, largest=256).batch_size = 300
    with pytest.raises(ValueError, match="expected 1 ≤ smallest ≤ largest"):
        elastic(32, smallest=64, largest=32)
    with pytest.raises(ValueError, match="expected 1 ≤ min_local ≤ max_local"):
        elastic(32, min_local=8, max_local=4)


def run_steps(work: Elastic, clock: Clock, steps: int, grad: tuple[float, float], exchange_s: float) -> None:
    draw = random.Random(1)
    for _ in range(steps):
        for _ in range(work.accumulation_steps):
            with work.computing():
                clock.now += grad[0] + grad[1] * work.local_batch
        clock.now += exchange_s
        count = work.accumulation_steps * work.world_size
        size = work.batch_size / count
        work.stepped(1.0 + 400.0 / size + draw.gauss(0, 0.01), 1.0 + 400.0 / work.batch_size)


def test_it_tells_all_that_a_scheduler_makes_its_model_of(monkeypatch, told):
    launched(monkeypatch, 4, nodes=2)
    clock = Clock()
    work = Elastic(128, BatchLimits(64, 1024, 8, 16), clock)
    run_steps(work, clock, WARM_UP + 1, (0.1, 0.01), 0.5)
    assert "step.s" not in told(), "the first steps of a launch say little"
    run_steps(work, clock, 20, (0.1, 0.01), 0.5)
    clock.now += 100.0  # it saves
    run_steps(work, clock, 1, (0.1, 0.01), 0.5)
    said = told()
    assert set(said) == set(REPORTED)
    assert said["step.compute_s"] == pytest.approx(0.26)
    assert said["step.s"] == pytest.approx(0.76)
    assert (said["step.workers"], said["step.nodes"], said["step.local_batch"]) == (4, 2, 16)
    assert said["grad_sqr"] == pytest.approx(1.0, abs=0.05)
    assert said["grad_var"] == pytest.approx(400.0 / 64, rel=0.05)


def test_others_than_the_first_worker_and_steps_without_times_tell_nothing(monkeypatch, told):
    launched(monkeypatch, 2)
    quiet = elastic(32)
    for _ in range(10):
        quiet.stepped()
    assert {name.partition(".")[0] for name in told()} == {"batch"}
    launched(monkeypatch, 2, rank=1)
    clock = Clock()
    run_steps(Elastic(32, BatchLimits(32, 32), clock), clock, 10, (0.1, 0.01), 0.1)
    assert {name.partition(".")[0] for name in told()} == {"batch"}


def test_noise_is_that_of_the_gradients():
    """Against gradients that are drawn with a known mean and spread."""
    rng = np.random.default_rng(3)
    true, spread, size, count = rng.normal(size=50), 2.0, 8, 4
    noise = GradientNoise(16)
    for _ in range(3000):
        parts = true + spread * rng.normal(size=(count, 50)) / np.sqrt(size)
        noise.update(float((parts**2).sum(axis=1).mean()), float((parts.mean(axis=0) ** 2).sum()), count, size * count)
    sqr, var = noise.estimate
    assert sqr == pytest.approx(float((true**2).sum()), rel=0.05)
    assert var == pytest.approx(50 * spread**2 / 16, rel=0.05)
    assert noise.gain(16) == 1.0 < noise.gain(32) < noise.gain(64) < 4.0


def test_with_one_part_nothing_is_known_of_noise():
    noise = GradientNoise(16)
    noise.update(3.0, 3.0, 1, 16)
    assert noise.estimate is None
    assert noise.gain(64) == 1.0


@pytest.mark.parametrize("var", [0.5, 20.0, 4000.0])
def test_its_own_batch_size_is_as_good_as_what_the_scheduler_reckons_with(monkeypatch, var):
    """The same formula stands in the core, with numpy."""
    launched(monkeypatch, 4, batch_size="tuned")
    clock, grad, exchange = Clock(), (0.02, 0.001), 0.03
    work = Elastic(128, BatchLimits(64, 2048, 8, 128), clock)
    work.noise.steps, work.noise.sqr, work.noise.var = 1000, 1.0, var
    for size in (128, 256):
        work.batch_size = size
        for _ in range(WARM_UP + 5):
            for _ in range(work.accumulation_steps):
                with work.computing():
                    clock.now += grad[0] + grad[1] * work.local_batch
            clock.now += exchange
            work.stepped()
    best = work.best_batch_size()
    model = StepModel(grad, (exchange, 0.0), (exchange, 0.0), 1.0)
    limits = np.array([[64.0, 2048.0, 8.0, 128.0]])
    goodputs = Goodputs(np.array([model.to_data()]), np.array([[1.0, var]]), limits, np.array([4]))
    reached = float(goodputs.at_batch(np.array([float(best)]), [4], 4)[0, 0])
    assert reached >= 0.99 * float(goodputs.best([4], [False])[0, 0])


@pytest.mark.parametrize(("workers", "max_local"), [(1, 0), (1, 16), (3, 16), (4, 0)])
def test_the_scheduler_reckons_with_the_passes_that_workers_make(monkeypatch, told, workers, max_local):
    """A worker that is alone goes over its smallest batch twice too, and says so."""
    launched(monkeypatch, workers)
    limits = BatchLimits(12, 96, 4, max_local)
    Elastic(12, limits)
    columns = {name: np.array([value]) for name, value in told().items()}
    twice = columns[TWICE_ABOVE]
    for size in range(12, 97, 3):
        told_limits = np.array([[columns[name][0] for name in (SMALLEST, LARGEST, LEAST_LOCAL, MOST_LOCAL)]])
        goodputs = Goodputs(np.ones((1, 7)), np.ones((1, 2)), told_limits, np.array([1]), twice)
        _, passes = goodputs._split(np.array([[[float(size)]]]), np.array([[[float(workers)]]]))
        assert passes.item() == limits.accumulation_steps(size, workers)
    assert limits.accumulation_steps(12, 1) == 2
    assert limits.accumulation_steps(7, 1) == 1


def test_a_size_that_a_plan_gave_is_not_tuned(monkeypatch):
    launched(monkeypatch, 1, batch_size="64")
    clock = Clock()
    work = Elastic(32, BatchLimits(16, 256), clock)
    run_steps(work, clock, 20, (0.1, 0.0), 0.0)
    assert work.best_batch_size() == 64


def test_the_example_does_every_sample_once_with_any_number_of_workers(agent: Agent, tmp_path: Path):
    log, ends = tmp_path / "log", []
    for workers, steps in ((1, 4), (3, 5), (2, 100_000)):
        command = (EXAMPLES / "elastic.py", "--samples", "1500", "--sample-s", "0", "--log", log)
        generation = {"FAIRLEAD_GENERATION": str(len(ends))}
        gang = agent.launch_gang(workers, *command, environment=generation, bounds={Field.MAX_STEPS: steps})
        for worker in gang:
            assert worker.ends() == 0, worker.errors
        ends.append(gang[0].stage)
    assert ends == [Stage.YIELDED, Stage.YIELDED, Stage.FINISHED]
    done = [[int(number) for number in line.split()] for line in log.read_text().splitlines()]
    by_launch = [sorted({tuple(row[:2]) for row in done if row[4] == launch}) for launch in range(3)]
    spans = sorted(span for spans in by_launch for span in spans)
    assert [sample for is_leader, last in spans for sample in range(is_leader, last)] == list(range(1500))
    assert len(done) == 1 * len(by_launch[0]) + 3 * len(by_launch[1]) + 2 * len(by_launch[2])


def test_former_names_still_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    work = elastic(32, least_local=8, most_local=16)
    assert (work.limits.min_local, work.limits.max_local) == (8, 16)
    assert work.passes == work.accumulation_steps == 2
