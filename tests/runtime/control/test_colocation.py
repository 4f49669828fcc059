"""Horus on a real cluster whose agents the test plays: limits that are held against speeds that were seen, and jobs that fall
over beside others."""

from __future__ import annotations

from emulated_agents import Scene

from fairlead.core.job import Phase
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import decode, encode
from fairlead.runtime.control.job_metrics import MIN_HEARTBEATS
from fairlead.runtime.control.views import why
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.orders import Ended, Progress
from fairlead.testing.invariants import check_state

USES = {"small": (30.0, 4.0), "other": (30.0, 4.0)}


def scene_of(**policy: float) -> Scene:
    scene = Scene("v100:1", policy={"name": "horus", **policy}, estimator={"name": "monitored", "usage": USES})
    scene.join()
    return scene


def goes_on(scene: Scene, seconds: int, busy: float = 0.3, **rates: float) -> None:
    """For so many seconds those who run make steps, by name."""
    state = scene.loop.state
    for _ in range(seconds):
        scene.backend.heartbeat(0, Heartbeat((busy,), (4.0,)))
        for number, job in list(state.job_of.items()):
            if scene.phase(number) is Phase.RUNNING and (rate := rates.get(job.name)):
                launch = scene.backend.launches.latest(number)
                steps = int(rate * (scene.second + 1))
                scene.backend.report(0, [Progress(number, launch.generation, steps, 0, rate)])
        scene.at(scene.second + 1)


def leaves(scene: Scene, number: int, code: int = 0, yielded: bool = True) -> None:
    """The first launch of a job ends."""
    scene.backend.report(0, [Ended(number, 1, code, yielded, 1, 1)])


def running(scene: Scene) -> set[str]:
    return {job.name for number, job in scene.loop.state.job_of.items() if scene.phase(number) is Phase.RUNNING}


def sound(scene: Scene) -> None:
    check_state(scene.loop.state, residents=2)
    kept = [decode(encode(event)) for event in scene.journal]
    assert replay_events(kept).digest() == scene.loop.state.digest()


def test_a_limit_waits_for_speeds_alone_and_is_then_held_against_them():
    scene = scene_of(slo=1.5)
    scene.job("a", steps=1e6, kind="small")
    scene.at(0.0)
    scene.job("b", steps=1e6, kind="other")
    goes_on(scene, 30, a=0.1, b=0.1)
    assert running(scene) == {"a"}, "nobody knows how fast the other one is alone"
    assert "its exclusive rate is not known yet" in why(scene.loop, 1, scene.second)["text"]
    scene.backend.cancel(0)
    goes_on(scene, 30, b=0.1)
    assert running(scene) == {"b"}
    assert scene.loop.state.observations["measured 1 × other on v100"] == 0.1
    scene.job("c", steps=1e6, kind="small")
    goes_on(scene, 20, b=0.1, c=0.1)
    assert running(scene) == {"b", "c"}, "both are known"
    goes_on(scene, 11, b=0.05, c=0.1)
    assert running(scene) == {"b"}, "twice as slow: the last to come leaves"
    leaves(scene, 2)
    goes_on(scene, 40, b=0.1)
    assert running(scene) == {"b"}, "and does not come back"
    sound(scene)


def test_without_a_limit_slow_jobs_are_not_parted_by_a_guess():
    scene = scene_of()
    for name, kind in (("a", "small"), ("b", "other")):
        scene.job(name, steps=1e6, kind=kind)
    goes_on(scene, 30, a=0.01, b=0.01)
    assert running(scene) == {"a", "b"}
    scene.job("strict", steps=1e6, kind="small", max_slowdown=1.2)
    goes_on(scene, 20, a=0.01, b=0.01)
    assert running(scene) == {"a", "b"}
    sound(scene)


def test_who_falls_over_beside_another_comes_back_when_it_is_alone():
    """Of these accelerators nobody knows how much memory they have: what was too little there is too little beside anybody."""
    scene = scene_of()
    scene.job("a", steps=1e6, kind="small")
    scene.job("b", steps=1e6, kind="other")
    scene.at(0.0)
    assert running(scene) == {"a", "b"}
    leaves(scene, 1, code=1, yielded=False)
    goes_on(scene, 2 * MIN_HEARTBEATS, a=0.1)
    assert running(scene) == {"a"}
    assert int(scene.loop.state.columns["failures"][1]) == 1
    sound(scene)
    scene.backend.cancel(0)
    goes_on(scene, 20, b=0.1)
    assert running(scene) == {"b"}
    sound(scene)


def test_what_agents_see_makes_those_part_who_together_are_too_busy():
    scene = scene_of(max_utilization=100.0)
    scene.job("a", steps=1e6, kind="small")
    scene.at(0.0)
    goes_on(scene, 2 * MIN_HEARTBEATS, busy=0.3, a=2.0)
    scene.job("b", steps=1e6, kind="other")
    goes_on(scene, 20, busy=0.9, a=2.0, b=2.0)
    assert running(scene) == {"a", "b"}, "what is seen of both is nobody's"
    scene.backend.cancel(0)
    scene.at(scene.second)
    leaves(scene, 0, code=-9)
    goes_on(scene, 3 * MIN_HEARTBEATS, busy=0.9, b=2.0)
    scene.job("c", steps=1e6, kind="small")
    goes_on(scene, 20, busy=0.9, b=2.0)
    assert running(scene) == {"b"}, "it was believed to take 30 percent, and takes 90"
    sound(scene)
