"""Anything in any order: jobs come and are cancelled, agents start, finish, fail, are cut off, come back with late answers or
are given up, and the control plane dies and is started again. What must hold is looked at after every step; at the end nobody
is stuck. Agents are played, with the rules of the true ones (`agent/session.py`, `agent/supervisor.py`)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from emulated_agents import Scene

from fairlead.core.job import ENDED, Job, Phase
from fairlead.engine.apply import replay_events
from fairlead.runtime.protocol.orders import Ended, Extend, Kill, Launch, Metric, Order, Progress
from fairlead.testing import check_events
from fairlead.testing.invariants import check_state

MACHINES = "v100:2,v100:2,v100:1"
NEVER_CAME = 126

Key = tuple[int, int]


@dataclass
class Work:
    """A launch on one node, as its processes are."""

    launch: Launch
    asked: bool = False
    steps: int = 0
    saved: int = 0


@dataclass
class PlayedAgent:
    node: int
    connected: bool = False
    pipe: list[Order] = field(default_factory=list)  # orders on their way; a cut loses them
    alive: dict[Key, Work] = field(default_factory=dict)
    unheard: dict[Key, Ended] = field(default_factory=dict)
    over: dict[Key, Ended] = field(default_factory=dict)  # heard of

    def cut(self) -> None:
        self.connected, self.pipe = False, []

    def found(self) -> list[Key]:
        return sorted({*self.alive, *self.unheard})

    def end(self, key: Key, code: int, yielded: bool, why: str = "") -> None:
        work = self.alive.pop(key)
        if yielded:
            work.saved = work.steps
        self.unheard[key] = Ended(*key, code, yielded, work.steps, work.saved, why)


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scene = Scene(MACHINES)
        self.agents = [PlayedAgent(node) for node in range(len(self.scene.cluster.nodes))]
        self.second = 0.0
        self.ended: dict[int, Phase] = {}
        self._connect_wire()

    def _connect_wire(self) -> None:
        self.scene.backend.transport = self
        self.backend = self.scene.backend

    # The wire.

    def send(self, node: int, order: Order) -> None:
        if self.agents[node].connected:
            self.agents[node].pipe.append(order)

    def address_of(self, node: int) -> str:
        return f"node-{node}"

    def silent_s(self, node: int) -> float:
        return 0.0 if self.agents[node].connected else 1.0

    # What can happen.

    def submit(self) -> None:
        workers = self.chance.choice((1, 1, 1, 2, 3))
        limits = {"retry_limit": self.chance.randrange(3), "min_run_s": self.chance.choice((0.0, 0.0, 15.0))}
        self.backend.submit_jobs([Job("", workers=workers, steps=1000.0, **limits)], lambda events: None)

    def cancel(self) -> None:
        if self.scene.loop.state.next_number:
            self.backend.cancel(self.chance.randrange(self.scene.loop.state.next_number))

    def drain(self) -> None:
        self.backend.drain(self.chance.randrange(len(self.agents)), self.chance.random() < 0.7)

    def hear(self) -> None:
        """An agent carries some of its orders out."""
        agent = self.chance.choice(self.agents)
        for _ in range(self.chance.randint(1, 4)):
            if agent.pipe:
                self.carry_out(agent, agent.pipe.pop(0))

    def carry_out(self, agent: PlayedAgent, order: Order) -> None:
        key = (order.job, order.generation)
        if isinstance(order, Extend):
            return
        if isinstance(order, Launch):
            if key in agent.alive or key in agent.unheard:
                return
            if key in agent.over:
                self.tell(agent, agent.over[key])
                return
            self.may_begin(agent, order)
            agent.alive[key] = Work(order)
        elif key in agent.alive:
            agent.alive[key].asked = True
            if isinstance(order, Kill):
                agent.end(key, -9, False, "killed")
                self.tell(agent, agent.unheard[key])
        elif key not in agent.unheard:
            self.tell(agent, Ended(*key, NEVER_CAME, False, 0, 0, "the launch did not reach this node"))

    def may_begin(self, agent: PlayedAgent, order: Launch) -> None:
        """Nobody runs twice at once, and nobody begins beside another."""
        for other in self.agents:
            for (job, generation), work in other.alive.items():
                assert job != order.job or generation == order.generation, f"job {job} runs already, as {generation}"
                beside = other is agent and set(work.launch.accelerators) & set(order.accelerators)
                assert not beside, f"job {order.job} would begin beside job {job}"

    def work(self) -> None:
        """A launch does steps, and perhaps ends."""
        agent = self.chance.choice(self.agents)
        if not agent.alive:
            return
        key = self.chance.choice(sorted(agent.alive))
        work, fate = agent.alive[key], self.chance.random()
        work.steps += self.chance.randrange(20)
        if self.chance.random() < 0.5:
            work.saved = work.steps
        if work.asked and fate < 0.6:
            agent.end(key, 0, True)
        elif fate < 0.15 and work.launch.world_size == 1:  # of a gang, all or none finish
            agent.end(key, 0, False)
        elif fate < 0.22:
            agent.end(key, 1, False, "a mistake of its own")
        else:
            self.tell(agent, Progress(*key, work.steps, work.saved, 1.0), Metric(*key, "loss", fate))
            return
        self.tell(agent, agent.unheard[key])

    def finish_gang(self) -> None:
        """All workers of a gang are done at about the same time."""
        gangs = sorted({key for one in self.agents for key, work in one.alive.items() if work.launch.world_size > 1})
        if not gangs:
            return
        key = self.chance.choice(gangs)
        here = [agent for agent in self.agents if key in agent.alive]
        if sum(len(agent.alive[key].launch.ranks) for agent in here) == here[0].alive[key].launch.world_size:
            for agent in here:
                agent.end(key, 0, False)
                self.tell(agent, agent.unheard[key])

    def cut(self) -> None:
        self.chance.choice(self.agents).cut()

    def come_back(self) -> None:
        self.connect(self.chance.choice(self.agents))

    def connect(self, agent: PlayedAgent) -> None:
        agent.cut()
        agent.connected = True
        self.backend.agent_joined(agent.node, agent.found())
        for ended in list(agent.unheard.values()):
            self.tell(agent, ended)

    def give_up(self) -> None:
        """An agent is away for longer than its lease: all that ran there has saved and stopped."""
        agent = self.chance.choice(self.agents)
        if not agent.connected:
            self.expire(agent)
            self.backend.agent_lost(agent.node)

    def expire(self, agent: PlayedAgent) -> None:
        for key in list(agent.alive):
            agent.end(key, 0, True)

    def say_again(self) -> None:
        """An old word comes late, or for the second time."""
        agent = self.chance.choice(self.agents)
        if agent.over and agent.connected:
            self.backend.report(agent.node, [self.chance.choice(list(agent.over.values()))])

    def tell(self, agent: PlayedAgent, *words: Progress | Metric | Ended) -> None:
        if not agent.connected:
            return

        def answered() -> None:
            for word in words:
                if isinstance(word, Ended):
                    agent.over[word.job, word.generation] = word
                    agent.unheard.pop((word.job, word.generation), None)

        self.backend.report(agent.node, words, answered)

    def restart(self) -> None:
        """The control plane dies, with all that was not in the journal; agents come back, or are given up."""
        journal = self.scene.journal
        self.scene = Scene(MACHINES, state=replay_events(journal), journal=journal)
        self.scene.second = self.second
        self._connect_wire()
        for agent in self.agents:
            agent.cut()
            if self.chance.random() < 0.85:
                self.connect(agent)
            else:
                self.expire(agent)
                self.backend.agent_lost(agent.node)
        loop = self.scene.loop
        for event in self.backend.reconcile(loop.state.snapshot(max(loop.state.time, self.second))):
            loop.record(event)

    def pass_time(self) -> None:
        self.second += self.chance.choice((0.1, 0.5, 3.0, 10.0))

    # What must hold.

    def step(self) -> None:
        what, weights = zip(*STEPS.items())
        getattr(self, self.chance.choices(what, weights)[0])()
        self.go_on()

    def go_on(self) -> None:
        self.scene.at(self.second)
        state = self.scene.loop.state
        check_state(state)
        for agent in self.agents:
            known = {run.key for run in self.backend.launches.all() if agent.node in {seat.node for seat in run.assignment}}
            strangers = sorted(agent.alive.keys() - known)
            assert not strangers, f"nobody knows of {strangers} on node {agent.node}"
        for number in range(state.next_number):
            phase = self.scene.phase(number)
            assert self.ended.get(number, phase) is phase, "who has ended stays so"
            if phase in ENDED:
                self.ended[number] = phase

    def settle(self) -> None:
        """All is well again: everybody is there, and every job does its work when it may."""
        for node in range(len(self.agents)):
            self.backend.drain(node, True)
        for agent in self.agents:
            self.connect(agent)
        for _ in range(400):
            self.second += 5.0
            self.go_on()
            for agent in self.agents:
                while agent.pipe:
                    self.carry_out(agent, agent.pipe.pop(0))
            for agent in self.agents:
                for key, work in list(agent.alive.items()):
                    there = [other.alive[key] for other in self.agents if key in other.alive]
                    whole = sum(len(one.launch.ranks) for one in there) == work.launch.world_size
                    if work.asked or whole:
                        for other in self.agents:
                            if key in other.alive:
                                other.end(key, 0, work.asked)
                                self.tell(other, other.unheard[key])
            if not self.scene.loop.state.busy and not self.backend.launches.all():
                return
        left = [(number, self.scene.phase(number)) for number in range(self.scene.loop.state.next_number)]
        runs = [(run.key, run.sent, run.waits_for, run.ended, run.lost) for run in self.backend.launches.all()]
        pytest.fail(f"somebody is stuck: {[one for one in left if one[1] not in ENDED]}, {runs}")


STEPS = {
    "submit": 8,
    "cancel": 2,
    "drain": 1,
    "hear": 30,
    "work": 25,
    "finish_gang": 4,
    "cut": 3,
    "come_back": 6,
    "give_up": 3,
    "say_again": 3,
    "restart": 2,
    "pass_time": 25,
}


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_nobody_runs_twice_and_nobody_is_stuck(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(250):
        walk.step()
    walk.settle()
    assert any(phase is Phase.FINISHED for phase in walk.ended.values())
    replayed = check_events(list(walk.scene.journal), real=True)
    assert replayed.digest() == walk.scene.loop.state.digest()
