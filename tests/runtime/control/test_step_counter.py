"""Steps of jobs whose batch size grows, as the control plane hears them and as they were declared."""

from __future__ import annotations

import pytest
from emulated_agents import Scene, restarted

from fairlead.core.events import MetricsReported, ProgressReported
from fairlead.core.job import ELASTIC, Phase, Regime
from fairlead.runtime.control.job_tracker import SETTLED, BatchSizeFilter, StepCounter
from fairlead.runtime.control.views import job_record
from fairlead.runtime.protocol.orders import Ended, Metric, Progress
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS


def test_a_step_of_twice_the_size_is_two_of_those_declared_and_the_way_back_is_the_same() -> None:
    counted = StepCounter()
    assert (counted.declared(7), counted.weight) == (7, 1.0)
    for made, size in ((0, 32), (50, 32), (100, 64), (150, 256)):
        counted.record(made, size)
    assert [counted.declared(made) for made in (40, 100, 120, 150, 160)] == [40, 100, 140, 200, 280]
    assert [counted.own(declared) for declared in (40, 100, 140, 200, 280)] == [40, 100, 120, 150, 160]
    assert counted.weight == 8.0
    again = StepCounter([Regime(32, 0.0), Regime(64, 100.0), Regime(256, 200.0)])
    assert [again.declared(made) for made in (40, 120, 160)] == [40, 140, 280]


def test_what_is_lost_is_forgotten() -> None:
    counted = StepCounter()
    for made, size in ((0, 32), (100, 64), (60, 32), (200, 64)):
        counted.record(made, size)
    assert counted.declared(210) == 220


def growing(steps: float = 100.0, mode: str = "gns") -> Scene:
    scene = Scene("v100:1")
    scene.join()
    scene.job("grows", steps=steps, mode=mode)
    scene.at(0.0)
    for second, made, rate, size in ((1.0, 10, 10.0, 32), (2.0, 20, 10.0, 32), (3.0, 28, 0.0, 64), (4.0, 30, 5.0, 64)):
        tell(scene, second, made, rate, size)
    return scene


def tell(scene: Scene, second: float, made: int, rate: float, size: int) -> None:
    scene.backend.report(0, [Progress(0, 1, made, made, rate, size)])
    scene.at(second)
    scene.at(second + 0.5)


def test_progress_is_of_declared_steps_and_another_size_counts_once_its_speed_is_known() -> None:
    scene = growing()
    state = scene.loop.state
    assert [regime.batch_size for regime in state.adaptations.regimes[0]] == [32, 64]
    assert state.columns["rate"][0] == 10.0, "five steps a second of two each"
    tell(scene, 8.0, 50, 5.0, 64)
    assert state.snapshot(8.5).jobs.steps_done[0] == pytest.approx(75.0)
    assert job_record(scene.loop, 0, 8.5)["regimes"][1]["batch_size"] == 64
    scene.check()


def test_another_size_and_its_rate_are_told_together_whatever_else_was_told_just_now() -> None:
    scene = growing()
    scene.backend.report(0, [Metric(0, 1, "loss", 0.1)])
    scene.at(6.0)
    scene.backend.report(0, [Progress(0, 1, 42, 40, 3.0, 128)])
    scene.at(6.3)
    scene.at(9.0)
    told = [event for event in scene.journal if event.time == pytest.approx(6.3)]
    assert [type(event) for event in told][:2] == [ProgressReported, MetricsReported]
    begins, known = scene.loop.state.adaptations.regimes[0][-1], scene.loop.state.columns["base_steps"][0]
    assert (begins.batch_size, begins.from_steps) == (128, known)
    scene.check()


def test_elastic_jobs_count_for_themselves() -> None:
    scene = growing(mode=ELASTIC)
    assert scene.loop.state.columns["rate"][0] == 5.0
    assert not scene.loop.state.adaptations


def test_after_a_restart_steps_are_counted_as_before() -> None:
    before = growing()
    scene = restarted(before, "v100:1", 5.0)
    scene.backend.agent_joined(0, [(0, 1)])
    for event in scene.backend.reconcile(scene.loop.state.snapshot(5.0)):
        scene.loop.record(event)
    tell(scene, 8.0, 50, 5.0, 64)
    assert scene.loop.state.snapshot(8.5).jobs.steps_done[0] == pytest.approx(75.0, abs=1e-6)
    scene.backend.report(0, [Ended(0, 1, 1, False, 55, 50)])  # it fails, and falls back to its checkpoint
    scene.at(10.0)
    assert scene.loop.state.columns["base_steps"][0] == pytest.approx(70.0, abs=1e-6)
    scene.check()


@pytest.mark.parametrize(("steps", "flags"), [(40.0, ["did more steps than it declared"]), (UNKNOWN_STEPS, None)])
def test_who_does_more_than_it_declared_says_so_though_it_is_as_fast_as_before(steps: float, flags: list[str] | None) -> None:
    scene = Scene("v100:1")
    scene.join()
    scene.job("long", steps=steps)
    scene.at(0.0)
    for second in range(1, 8):
        tell(scene, float(second), 10 * second, 10.0, 0)
    assert job_record(scene.loop, 0, 7.5).get("flags") == flags
    assert scene.phase(0) is Phase.RUNNING
    scene.backend.report(0, [Ended(0, 1, 0, False, 70, 70)])
    scene.at(9.0)
    assert (scene.phase(0), job_record(scene.loop, 0, 9.0).get("flags")) == (Phase.FINISHED, flags)
    scene.check()


def test_a_size_that_is_another_at_every_look_counts_as_the_mean_until_one_settles() -> None:
    sizes = BatchSizeFilter()
    grows = [sizes.observe(size) for size in (32, 32, 64, 64, 128)]
    assert grows == [32, 32, 64, 64, 128]
    assert [sizes.observe(128) for _ in range(SETTLED)] == [128] * SETTLED
    swings = [sizes.observe((16, 256)[look % 2]) for look in range(1000)]
    assert swings[-1] == pytest.approx(136, rel=0.1)
    assert len(set(swings[20:])) == 1, "it is not told from look to look"
    assert [sizes.observe(256) for _ in range(SETTLED)][-1] == 256


def test_a_job_whose_size_is_another_at_every_step_gets_on_by_the_mean() -> None:
    scene = Scene("v100:1")
    scene.join()
    scene.job("swings", steps=1e6)
    scene.at(0.0)
    for look in range(1, 200):
        tell(scene, float(look), 10 * look, 10.0, (16, 256)[look % 3 > 0])
    state, mean = scene.loop.state, (16 + 2 * 256) / 3 / 256
    assert state.columns["rate"][0] == pytest.approx(10.0 * mean, rel=0.12)
    assert state.snapshot(199.5).jobs.steps_done[0] == pytest.approx(1990 * mean, rel=0.12)
    assert len(state.adaptations.regimes[0]) < 20
    assert job_record(scene.loop, 0, 199.5)["flags"]
    scene.check()
