"""Whatever else can be killed, cut or filled up, with everything running: agents, workers, the wire, the journal's disk, the
calendar. What must hold afterwards is said in `cluster_at_work`."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

import pytest
from cluster_at_work import ClusterAtWork, Gone, wait_for
from wire import Wire

from fairlead.core import events as ev
from fairlead.files import atomic_write
from fairlead.journal.recovery import read_journal

pytestmark = pytest.mark.long

ONE = {"machines": "1xv100:1", "policy": "fifo"}
TWO = {"machines": "1xv100:1,1xk80:1", "policy": "fifo"}


def test_jobs_go_on_without_their_agent_and_the_next_one_finds_them(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, **ONE, lease_s=90.0) as cluster:
        cluster.submit(cluster.job("goes-on", 200, 0.2), cluster.job("next", steps=3))
        cluster.until("it runs", lambda jobs: jobs["goes-on"]["steps_done"] > 2)
        cluster.end_agent("v100-0")
        cluster.hurry("goes-on")
        wait_for(lambda: len(cluster.steps_of("goes-on")) == 200, "it goes on by itself")
        cluster.start_agent("v100-0")
        jobs = cluster.until_all_ended()
        assert [job["starts"] for job in jobs.values()] == [1, 1]


def test_a_job_that_is_sent_to_an_agent_that_has_just_died_starts_when_it_is_back(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, **ONE) as cluster:
        wait_for(lambda: cluster.nodes()["v100-0"]["up"], "the node is up")
        cluster.end_agent("v100-0")
        cluster.submit(cluster.job("unheard", steps=3))
        cluster.until("it is sent", lambda jobs: jobs["unheard"]["phase"] == "running")
        cluster.start_agent("v100-0")


def test_jobs_of_an_agent_that_stays_away_end_by_themselves_before_they_start_elsewhere(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, "2xv100:2,2xk80:2", "fifo", lease_s=3.0, grace_s=15.0) as cluster:
        cluster.until_up()
        saves, deaf = cluster.job("saves", 300, 0.2), cluster.job("deaf", 300, 0.2, save_every=5, cooperative=False)
        cluster.submit(saves, deaf)
        before = cluster.until("they run", lambda jobs: all(job["steps_done"] > 2 for job in jobs.values()))
        cluster.harmed.add("deaf")
        cluster.end_agent("v100-0")
        wait_for(lambda: not cluster.nodes()["v100-0"]["up"], "the node is given up")
        cluster.until(
            "they run elsewhere", lambda jobs: all(job["starts"] > before[name]["starts"] for name, job in jobs.items())
        )
        for name in ("saves", "deaf"):
            cluster.hurry(name)


@pytest.mark.parametrize("late", ["agent", "plane"])
def test_a_script_without_a_lease_resumes_after_an_upgrade_that_took_too_long(tmp_path: Path, late: str) -> None:
    with ClusterAtWork(tmp_path, **ONE, lease_s=2.0, grace_s=60.0) as cluster:
        cluster.until_up()
        cluster.harmed.add("deaf")
        cluster.submit(cluster.job("deaf", 300, 0.2, save_every=5, cooperative=False))
        before = cluster.until("it runs", lambda jobs: jobs["deaf"]["steps_done"] > 2)["deaf"]["starts"]
        cluster.end_agent("v100-0") if late == "agent" else cluster.kill_plane()
        wait_for(lambda: not cluster.workers_of("deaf"), "it was asked to stop")
        cluster.start_agent("v100-0") if late == "agent" else cluster.start_plane()
        cluster.until("it runs again", lambda jobs: jobs["deaf"]["starts"] > before and jobs["deaf"]["phase"] == "running")
        cluster.hurry("deaf")
        assert cluster.until_all_ended()["deaf"]["failures"] == 0


def test_an_agent_that_was_paused_does_not_start_what_runs_elsewhere(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, **TWO, lease_s=14.0, grace_s=2.0) as cluster:
        cluster.until_up()
        os.kill(cluster.agents["v100-0"], signal.SIGSTOP)
        cluster.submit(cluster.job("moves", 300, 0.2), cluster.job("other", 300, 0.2))
        cluster.until("both are sent", lambda jobs: all(job["phase"] == "running" for job in jobs.values()))
        wait_for(lambda: not cluster.nodes()["v100-0"]["up"], "the node is given up")
        os.kill(cluster.agents["v100-0"], signal.SIGCONT)
        cluster.until_up()
        for name in ("moves", "other"):
            cluster.hurry(name)
        jobs = cluster.until_all_ended()
        assert sorted(job["starts"] for job in jobs.values()) == [1, 2]
        records = [json.loads(path.read_text()) for path in tmp_path.rglob("record.json")]
        assert sorted(record["generation"] for record in records) == [1, 2], "the first launch of one never began"


def test_a_plane_that_dies_when_it_gives_a_node_up_gives_it_up_again(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, **TWO, lease_s=3.0, grace_s=2.0) as cluster:
        cluster.until_up()
        cluster.harmed.add("moves")
        cluster.submit(cluster.job("moves", 300, 0.2, save_every=5))
        before = cluster.until("it runs", lambda jobs: jobs["moves"]["steps_done"] > 2)
        cluster.kill_plane()
        cluster.end_agent("v100-0")
        for moment in ("before", "after"):
            cluster.start_plane(death=f"{moment} NodeLost")
            assert cluster.plane_ended() == -signal.SIGKILL
        cluster.hurry("moves")
        cluster.start_plane()
        jobs = cluster.until_all_ended()
        assert jobs["moves"]["starts"] == before["moves"]["starts"] + 1


def test_an_agent_that_is_cut_off_ends_its_jobs_and_comes_back(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, **TWO, lease_s=2.0, grace_s=15.0) as cluster:
        wire = Wire(cluster.port)
        cluster.end_agent("v100-0", signal.SIGTERM)
        cluster.start_agent("v100-0", through=wire.port)
        cluster.until_up()
        cluster.submit(cluster.job("stays", 600, 0.1, types=["k80"]), cluster.job("resumes", 600, 0.1, types=["v100"]))
        cluster.until("they run", lambda jobs: all(job["steps_done"] > 2 for job in jobs.values()))
        wire.cut()
        wait_for(lambda: not cluster.nodes()["v100-0"]["up"], "the node is given up")
        assert cluster.workers_of("resumes") == []
        wire.mend()
        wait_for(lambda: cluster.nodes()["v100-0"]["up"], "the node is back")
        for name in ("resumes", "stays"):
            cluster.hurry(name)
        jobs = cluster.until_all_ended()
        assert jobs["resumes"]["starts"] >= 2
        wire.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint(tmp_path: Path, workers: int) -> None:
    with ClusterAtWork(tmp_path, machines="2xv100:1", policy="fifo") as cluster:
        cluster.until_up()
        cluster.submit(cluster.job("hit", 200, 0.2, save_every=5, workers=workers))
        cluster.until("it is past a checkpoint", lambda jobs: jobs["hit"]["steps_done"] > 7)
        cluster.harmed.add("hit")
        os.kill(cluster.workers_of("hit")[-1], signal.SIGKILL)
        cluster.until("it is told", lambda jobs: jobs["hit"]["failures"] == 1)
        cluster.hurry("hit")
        jobs = cluster.until_all_ended()
        assert (jobs["hit"]["starts"], jobs["hit"]["failures"]) == (2, 1)


def test_a_full_disk_ends_the_plane_with_a_word_and_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, **ONE) as cluster:
        cluster.submit(cluster.job("before", steps=20))
        cluster.until_all_ended()  # what it reports would be the first that finds no room
        size = max(path.stat().st_size for path in cluster.journal.parent.glob("journal.sqlite*"))
        resource.prlimit(cluster.plane, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        with pytest.raises(Gone, match="cannot use the journal"):
            cluster.submit(*(cluster.job(f"more-{number}", steps=1) for number in range(100)))
        assert cluster.plane_ended() == 2
        said = (tmp_path / "plane.log").read_text()
        assert f"fairlead: error: {cluster.journal}: cannot use the journal" in said
        assert "Traceback" not in said
        cluster.start_plane()
        assert set(cluster.jobs()) == {"before"}
        cluster.submit(cluster.job("there-is-room", steps=1))


def test_a_calendar_that_is_set_forward_and_back_changes_nothing(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("0")
    with ClusterAtWork(tmp_path, **ONE) as cluster:
        cluster.kill_plane()
        cluster.start_plane(calendar=str(wrong))
        for number, seconds in enumerate((86_400.0, -86_400.0)):
            cluster.submit(cluster.job(f"running-{number}", steps=15))
            cluster.until("it runs", lambda jobs, n=number: jobs[f"running-{n}"]["steps_done"] > 2)
            atomic_write(wrong, str(seconds).encode())  # a process reads it at any moment
            cluster.submit(cluster.job(f"then-{number}", steps=2))
            cluster.until("steps are done", lambda jobs, n=number: jobs[f"running-{n}"]["steps_done"] > 5)
            cluster.kill_plane()
            cluster.start_plane(calendar=str(wrong))
        cluster.until_all_ended()
        seconds_told = [event.time for event in read_journal(str(cluster.journal)) if not isinstance(event, ev.JournalOpened)]
        assert seconds_told == sorted(seconds_told)
        assert seconds_told[-1] < 3600.0, "a day that was only on the calendar was counted"
