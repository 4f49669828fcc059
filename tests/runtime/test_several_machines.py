"""A control plane and two nodes as machines of their own: TLS, tokens, code sent along, no folder that two of them see, and a
link that is cut for longer than a lease. Runs as root, where the kernel allows network namespaces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_at_work import wait_for
from machines import SOURCE, CannotHave, Machines

from certificates import certificates
from fairlead.runtime.http_client import ControlPlaneClient, Unreachable
from fairlead.runtime.protocol.code_archive import pack_code

pytestmark = pytest.mark.long

PLANE, ONE, TWO = "plane", "one", "two"
GANG = """
import os, sys, time
import fairlead

for step in fairlead.lease(range(int(sys.argv[1]))):
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_ADDR"], "step", step, flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    try:
        with Machines(tmp_path, [PLANE, ONE, TWO]) as made:
            yield made
    except CannotHave as why:
        pytest.skip(str(why))


def start(machines: Machines) -> ControlPlaneClient:
    """The control plane on one machine and agents on the others; each gets the files that an admin would bring there."""
    home, address = machines.own(PLANE), machines.address(PLANE)
    ca, certificate, key = certificates(home, address)
    listen = ["--http", f"{address}:7420", "--agents", f"{address}:7421", "--tls-cert", certificate, "--tls-key", key]
    lease = ["--lease", "14", "--grace", "2", "--policy", "fifo", "--round", "1"]
    machines.run(PLANE, "serve", "--cluster", "2xv100:1", "--root", home / "root", *listen, *lease)
    wait_for((home / "root" / "agent.token").exists, "tokens are made", machines.log)
    for node, name in enumerate((ONE, TWO)):
        own = machines.own(name)
        (own / "ca.pem").write_bytes(ca.read_bytes())
        (own / "token").write_bytes((home / "root" / "agent.token").read_bytes())
        words = ["--control", f"{address}:7421", "--tls-ca", own / "ca.pem", "--token-file", own / "token", "--end-jobs"]
        machines.run(name, "agent", "--node", f"v100-{node}", "--accelerators", "v100:1", "--root", own / "root", *words)
    return ControlPlaneClient(f"https://{address}:7420", (home / "root" / "admin.token").read_text(), authority=str(ca))


def test_a_gang_over_two_machines_that_share_nothing_outlives_a_cut_link(machines: Machines, tmp_path: Path) -> None:
    plane = start(machines)

    def asked(what: str, *words: Any) -> Any:
        return machines.on(PLANE, lambda: getattr(plane, what)(*words))

    def up() -> list[bool]:
        try:
            return [bool(node["up"]) for node in asked("nodes")]
        except Unreachable:  # not yet
            return []

    wait_for(lambda: up() == [True, True], "both nodes come", machines.log)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "gang.py").write_text(GANG)
    code = asked("send_code", pack_code(tmp_path / "code"))

    def gang(name: str, steps: int) -> dict[str, Any]:
        run = [sys.executable, "gang.py", str(steps)]
        return {"name": name, "run": run, "code": code, "workers": 2, "env": {"PYTHONPATH": SOURCE}}

    def reaches(name: str, told: dict[str, Any]) -> dict[str, Any]:
        wait_for(lambda: told.items() <= asked("job", name).items(), f"{name} comes to {told}", machines.log)
        return dict(asked("job", name))

    asked("submit", [gang("short", 3), gang("long", 100_000)])
    assert reaches("short", {"phase": "finished"})["starts"] == 1
    for rank in (0, 1):
        said = machines.on(PLANE, lambda rank=rank: "".join(piece["text"] for piece in plane.logs("short", rank=rank)))
        expected = [f"rank {rank} of 2 at {machines.address(ONE)} step {step}" for step in range(3)]
        assert said.splitlines() == expected
    wait_for(lambda: asked("job", "long")["steps_done"] > 3, "the other gang works", machines.log)
    assert [len(machines.processes(name, "gang.py")) > 0 for name in (ONE, TWO)] == [True, True]

    before = asked("job", "long")["starts"]
    machines.cut(TWO)
    wait_for(lambda: up() == [True, False], "the node behind the cut is given up", machines.log)
    assert machines.processes(TWO, "gang.py") == [], "it ended by itself, before that"
    reaches("long", {"phase": "waiting", "failures": 0})
    wait_for(lambda: asked("job", "long")["reason"]["code"] == "nodes-down", "it waits for the node", machines.log)
    machines.mend(TWO)
    wait_for(lambda: up() == [True, True], "the node is back", machines.log)
    wait_for(lambda: asked("job", "long")["starts"] > before, "it is launched again", machines.log)
    both = lambda: all(machines.processes(name, "gang.py") for name in (ONE, TWO))  # noqa: E731
    wait_for(lambda: asked("job", "long")["steps_done"] > 0 and both(), "both work again", machines.log)
    asked("cancel", "long")
    wait_for(lambda: not machines.processes(ONE, "gang.py") + machines.processes(TWO, "gang.py"), "both end", machines.log)
    assert not (machines.own(ONE) / "root" / "jobs" / "0" / "1" / "1").exists(), "the second worker was on the other machine"
    assert sorted(path.name for path in machines.own(TWO).iterdir()) == ["ca.pem", "log", "root", "token"]
