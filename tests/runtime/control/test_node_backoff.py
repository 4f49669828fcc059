"""Nodes that could not begin what they were given, and have rested."""

from __future__ import annotations

import pytest
from emulated_agents import Scene, unable

from fairlead.runtime.protocol.orders import Ended


def test_after_its_rest_a_node_rests_again_only_for_a_try_that_came_to_nothing():
    scene = Scene("v100:2")
    scene.join()
    scene.job("a", steps=100.0)
    for generation in (1, 2, 3):
        assert [order.generation for _, order in scene.at(10.0 * generation)] == [generation]
        scene.backend.report(0, [unable(generation)])
    scene.at(40.0)
    assert scene.loop.state.present.all(), "the node is there"
    assert not scene.loop.state.up.any()
    assert [*scene.loop.state.backoffs] == [0]
    assert not scene.loop.state.drained.any()
    scene.join()
    scene.backend.report(0, [unable(3)])  # it did not hear that this was heard
    assert [order.generation for _, order in scene.at(50.0)] == [4]
    assert scene.loop.state.up.all()
    scene.backend.report(0, [unable(4)])
    scene.at(60.0)
    assert not scene.loop.state.up.any()
    assert scene.loop.state.backoffs[0].until_s == 60.0 + 60.0
    assert scene.backend.node_backoff.of(0).until_s == 60.0 + 60.0
    scene.check()


@pytest.mark.parametrize("code", [1, 126, 127])
def test_what_is_the_jobs_own_fault_sends_no_node_to_rest(code: int):
    """Its directory that is not there is status 127, an order that cannot be carried out 126."""
    scene = Scene("v100:2")
    scene.join()
    scene.job("a", steps=100.0, retry_limit=9)
    for generation in range(1, 6):
        assert [order.generation for _, order in scene.at(10.0 * generation)] == [generation]
        scene.backend.report(0, [Ended(0, generation, code, False, 0, 0, "cannot run 'x' in /no/such/place")])
    scene.at(60.0)
    assert scene.loop.state.present.all()
    assert scene.backend.node_backoff.of(0) is None
    scene.check()


@pytest.mark.parametrize("heard_s", [41.0, 90.0])
def test_a_node_that_is_lost_in_its_back_off_is_lost(heard_s: float):
    """Also where the back-off has ended by the time the loop hears of the loss."""
    scene = Scene("v100:2")
    scene.join()
    scene.job("a", steps=100.0)
    for generation in (1, 2, 3):
        scene.at(10.0 * generation)
        scene.backend.report(0, [unable(generation)])
    scene.at(40.0)
    scene.backend.agent_lost(0)
    scene.at(heard_s)
    assert not scene.loop.state.present.any()
    assert not scene.loop.state.backoffs
    scene.check()
