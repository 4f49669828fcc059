"""Control planes whose journal is in a real PostgreSQL server, with everything running: the plane is killed, the server goes
away and comes back. What must hold afterwards is said in `cluster_at_work`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster_at_work import ClusterAtWork, gone_is_fine, wait_for

from postgres_server import PostgresServer

pytestmark = pytest.mark.long

ONE = {"machines": "2xv100:2", "policy": "fifo"}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that only these tests kill."""
    if (missing := PostgresServer.missing()) is not None:
        pytest.skip(missing)
    with PostgresServer() as server:
        yield server


def test_an_embedded_cluster_outlives_its_plane_and_waits_for_its_database(tmp_path: Path, server: PostgresServer) -> None:
    with ClusterAtWork(tmp_path, **ONE, embedded=True, journal=server.database()) as cluster:
        cluster.submit(cluster.job("long", steps=3000, save_every=1000), cluster.job("short", steps=3))
        cluster.until("both have run", lambda jobs: jobs["long"]["steps_done"] > 5 and jobs["short"]["phase"] == "finished")
        cluster.kill_plane()
        wait_for(lambda: not agents_of(cluster), "its agents end with it")
        assert cluster.steps_of("long")[-1] > 5
        cluster.start_plane()
        cluster.submit(cluster.job("second", steps=3))
        cluster.until("it goes on", lambda jobs: jobs["long"]["starts"] == 2 and jobs["second"]["phase"] == "finished")

        server.kill()
        waits = threading.Thread(target=lambda: cluster.submit(cluster.job("third", steps=3)))
        waits.start()
        wait_for(partial(said, cluster, "journal unreachable"), "it notices")
        done = len(cluster.steps_of("long"))
        wait_for(lambda: len(cluster.steps_of("long")) > done + 20, "jobs go on")
        assert waits.is_alive(), "nobody is answered before it is kept"
        told = cluster.metrics()
        assert told["fairlead_journal_unreachable_seconds"] > 0
        assert told["fairlead_agents_connected"] == 1
        assert 'fairlead_jobs{phase="running"}' not in told, "what a crash can take back"
        server.start()
        waits.join()
        jobs = cluster.until("it runs", lambda jobs: jobs["third"]["phase"] == "finished")
        assert jobs["long"]["starts"] == 2
        wait_for(partial(said, cluster, "journal answers again"), "it says so, a second later at most")
        told = cluster.metrics()
        assert (told["fairlead_journal_unreachable_seconds"], told['fairlead_jobs{phase="running"}']) == (0, 1)
        cluster.hurry("long")


def test_a_plane_that_is_ended_while_its_database_is_away_says_why_and_loses_nobody(
    tmp_path: Path, server: PostgresServer
) -> None:
    with ClusterAtWork(tmp_path, **ONE, lease_s=300.0, journal=server.database()) as cluster:
        cluster.submit(cluster.job("kept", steps=3000, save_every=1000))
        cluster.until("it runs", lambda jobs: jobs["kept"]["steps_done"] > 5)
        server.kill()
        waits = threading.Thread(target=lambda: unanswered(cluster))
        waits.start()
        wait_for(partial(said, cluster, "journal unreachable"), "it notices")
        os.kill(cluster.plane, signal.SIGTERM)
        assert cluster.plane_ended() == 5
        waits.join()
        cluster.start_plane()
        assert cluster.plane_ended() == 5, "without a journal there is no control plane"
        server.start()
        cluster.start_plane()
        assert said(cluster, "fairlead: error: postgresql://")
        assert not said(cluster, "Traceback")
        assert cluster.jobs()["kept"]["starts"] == 1, "its agent has kept it all the while"
        cluster.hurry("kept")


def agents_of(cluster: ClusterAtWork) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text(errors="replace")
            if "--leashed" in words and str(cluster.root) in words:
                found.append(path.parent.name)
    return found


def said(cluster: ClusterAtWork, what: str) -> bool:
    return what in (cluster.root / "plane.log").read_text()


def unanswered(cluster: ClusterAtWork) -> None:
    with gone_is_fine():
        cluster.ask("POST", "/v1/jobs", {"jobs": [cluster.job("unheard", steps=1)]})
        raise AssertionError("it was acknowledged")
