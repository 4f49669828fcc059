"""What is learned of a job's speed alone when its company has left: agents tell a mean, which follows later."""

from __future__ import annotations

from emulated_agents import Scene
from test_colocation import USES, goes_on, leaves, running, scene_of, sound


def test_a_speed_beside_another_is_not_taken_for_the_one_alone_when_that_has_left():
    scene = scene_of()
    scene.job("a", steps=1e6, kind="small")
    goes_on(scene, 30, a=2.0)
    learned = "measured 1 × small on v100"
    assert scene.loop.state.observations[learned] == 2.0
    scene.job("b", steps=1e6, kind="other")
    goes_on(scene, 10, a=2.0)
    goes_on(scene, 30, a=1.0, b=1.0)
    assert running(scene) == {"a", "b"}
    scene.backend.cancel(1)
    scene.at(scene.second)
    leaves(scene, 1, code=-9)
    goes_on(scene, 15, a=1.0)  # as its agent tells it still
    assert running(scene) == {"a"}
    assert scene.loop.state.observations[learned] == 2.0
    goes_on(scene, 40, a=3.0)
    assert scene.loop.state.observations[learned] == 3.0, "once it shows, it counts"
    scene.backend.cancel(0)
    scene.at(scene.second + 20)
    assert not [name for name in scene.loop.state.observations if name.startswith("colocation of")], "it has ended"
    sound(scene)


def test_a_newcomer_is_not_blamed_for_what_its_forerunner_did():
    scene = Scene("v100:1", policy="horus", estimator={"name": "monitored", "usage": {**USES, "third": (30.0, 4.0)}})
    scene.join()
    scene.job("a", steps=1e6, kind="small", max_slowdown=1.5)
    goes_on(scene, 30, a=2.0)
    scene.job("b", steps=1e6, kind="other")
    goes_on(scene, 10, a=2.0)
    assert running(scene) == {"a", "b"}
    goes_on(scene, 19, a=1.0, b=1.0)
    assert running(scene) == {"a"}, "it made the other one twice as slow"
    scene.backend.cancel(1)
    leaves(scene, 1, code=-9)
    scene.job("c", steps=1e6, kind="third")
    goes_on(scene, 15, a=1.1, c=1.0)  # as its agent tells it still
    assert running(scene) == {"a", "c"}
    goes_on(scene, 30, a=2.0, c=1.0)
    assert running(scene) == {"a", "c"}
    goes_on(scene, 11, a=1.0, c=1.0)
    assert running(scene) == {"a"}, "what shows when that is long ago is its own doing"
    sound(scene)
