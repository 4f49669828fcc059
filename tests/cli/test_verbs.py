"""The verbs for people on one cluster that is up for all of these tests: logs, code, order, drains, rates, tokens."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from cluster_up import cluster_up, until
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.cli.output import out
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest
from fairlead.workloads.table_files import read_throughputs
from foundry import PATIENCE_S, SOURCE, environment

PRINTS = """
import os, sys, time
import fairlead

if len(sys.argv) > 2:
    print("launch", os.environ["FAIRLEAD_GENERATION"], "rank", os.environ["RANK"], flush=True)
for step in fairlead.lease(range(int(sys.argv[1])), save=lambda folder: None):
    print("step", step, flush=True)
    time.sleep(0 if os.path.exists(os.environ["HURRY"]) else 0.05)
"""


LONG = 3000  # steps: two and a half minutes, unless it hurries


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "prints.py").write_text(PRINTS)
    with cluster_up(folder):
        told = orjson.loads((folder / ".fairlead" / "connection.json").read_bytes())
        plane = ControlPlaneClient(told["url"], told["token"])

        def prints(name: str, *words: object, **about: object) -> dict:
            run = [sys.executable, str(folder / "prints.py"), *map(str, words)]
            around = {"PYTHONPATH": SOURCE, "HURRY": str(folder / f"hurry-{name}")}
            return {"name": name, "run": run, "directory": str(folder), "env": around, **about}

        def hurry(name: str) -> None:
            """All that was to be seen of a job while it runs has been seen."""
            (folder / f"hurry-{name}").touch()

        def reaches(name: str, *phases: str) -> dict:
            until(lambda: plane.job(name)["phase"] in phases, folder)
            return plane.job(name)

        @functools.cache
        def gang() -> None:
            """A gang of two that has finished."""
            plane.submit([prints("gang", 3, "loud", workers=2)])
            reaches("gang", "finished")

        yield SimpleNamespace(folder=folder, plane=plane, prints=prints, reaches=reaches, hurry=hurry, gang=gang)


def fairlead(folder: Path, *words: object) -> str:
    """The command in this process."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output or done.exception
    return done.stdout


def answer(folder: Path, *words: object) -> dict:
    return orjson.loads(fairlead(folder, *words, "--json"))


def said(pieces: Iterable[dict]) -> str:
    return "".join(piece["text"] for piece in pieces)


def test_a_log_is_followed_from_launch_to_launch_until_the_job_ends(here):
    here.plane.submit([here.prints("talks", LONG, "loud")])
    node = here.reaches("talks", "running")["nodes"][0]
    command = [sys.executable, "-m", "fairlead.cli.main", "logs", "-f", "--launch", "1", "talks"]
    follows = subprocess.Popen(command, cwd=here.folder, env=environment(), stdout=subprocess.PIPE, text=True)
    until(lambda: here.plane.job("talks")["steps_done"] > 3, here.folder)
    others = [here.prints(f"in-the-way-{n}", 8) for n in range(6)]
    here.plane.submit(others)
    until(lambda: here.plane.job("talks")["preemptions"] > 0, here.folder)
    here.hurry("talks")
    out, _ = follows.communicate(timeout=PATIENCE_S)
    assert follows.returncode == 0
    job = here.plane.job("talks")
    assert job["phase"] == "finished", node
    lines = out.splitlines()
    launches = [line for line in lines if line.startswith("launch")]
    assert launches == [f"launch {n + 1} rank 0" for n in range(job["starts"])]
    assert [line for line in lines if line not in launches] == [f"step {n}" for n in range(LONG)]
    first = said(here.plane.logs("talks", launch=1)).splitlines()
    assert first == lines[: len(first)]
    latest = lines[lines.index(launches[-1]) :]  # one that was stopped after its last step is launched once more, to end
    assert said(here.plane.logs("talks", tail=2)).splitlines() == latest[-2:]
    piece = answer(here.folder, "logs", "talks", "--tail", 1)
    assert (piece["text"], piece["launch"], piece["ended"]) == (latest[-1] + "\n", job["starts"], True)


def test_a_worker_of_a_gang_has_a_log_of_its_own(here):
    here.gang()
    launch = here.plane.job("gang")["starts"]
    assert fairlead(here.folder, "logs", "gang", "--rank", 1).splitlines()[0] == f"launch {launch} rank 1"


@pytest.mark.parametrize(
    ("name", "about", "why"),
    [("nobody", {}, "no job"), ("gang", {"launch": 99}, "no launch 99"), ("gang", {"rank": 7}, "not stored")],
)
def test_a_log_that_is_not_there_is_said_so(here, name, about, why):
    if name != "nobody":
        here.gang()
    with pytest.raises(RefusedRequest, match=why):
        list(here.plane.logs(name, **about))


def test_code_that_is_sent_along_is_what_runs(here):
    code = here.folder / "code"
    (code / "package").mkdir(parents=True)
    (code / "package" / "__init__.py").write_text("WORD = 'from afar'\n")
    (code / "main.py").write_text("import os, package\nprint(package.WORD, os.getcwd())\n")
    (here.folder / "task.yaml").write_text(f"name: sent\nrun: [{sys.executable}, main.py]\ncode: code\n")
    assert answer(here.folder, "submit", "task.yaml")["jobs"][0]["name"] == "sent"
    here.reaches("sent", "finished")
    word, where = said(here.plane.logs("sent")).rstrip().rsplit(" ", 1)
    assert word == "from afar"
    assert Path(where).resolve() != code.resolve()
    kept = sorted((here.folder / ".fairlead" / "code").iterdir())
    fairlead(here.folder, "submit", "--name", "again", "--code", "code", "--", sys.executable, "main.py")
    here.reaches("again", "finished")
    assert sorted((here.folder / ".fairlead" / "code").iterdir()) == kept


def test_a_drained_node_is_left_with_every_step_done_once_and_used_again(here):
    here.plane.submit([here.prints("moves", LONG, types=["v100", "k80"])])
    node = here.reaches("moves", "running")["nodes"][0]
    until(lambda: here.plane.job("moves")["steps_done"] > 3, here.folder)
    assert answer(here.folder, "drain", node)["drained"]
    until(lambda: here.plane.job("moves")["nodes"] not in ([], [node]), here.folder)
    left = {"name": node, "drained": True, "jobs": []}
    until(lambda: any(left.items() <= one.items() for one in here.plane.nodes()), here.folder)
    assert "drained" in fairlead(here.folder, "nodes")
    assert "accepts jobs again" in fairlead(here.folder, "drain", node, "--undo")
    here.hurry("moves")
    here.reaches("moves", "finished")
    launches = range(1, here.plane.job("moves")["starts"] + 1)
    steps = "".join(said(here.plane.logs("moves", launch=launch)) for launch in launches)
    assert steps.splitlines() == [f"step {n}" for n in range(LONG)]
    with pytest.raises(RefusedRequest, match="no node"):
        here.plane.drain("nowhere")


def test_top_shows_who_holds_what_and_the_last_decisions(here, monkeypatch):
    here.plane.submit([here.prints("shown", 10_000, steps=10_000)])

    def with_rates() -> dict | None:  # a job that has just moved has no rate yet, and so no time left
        found = answer(here.folder, "top")
        return found if all(job["left_s"] for job in found["jobs"]) and found["jobs"] else None

    seen = until(with_rates, here.folder)
    assert sorted(name for node in seen["nodes"] for holders in node["holders"] for name in holders) == ["shown"]
    (job,) = seen["jobs"]
    assert job["left_s"] > 0
    assert any("shown" in decision["launched"] for decision in seen["decisions"])
    monkeypatch.setattr(out, "_width", 80)
    once = fairlead(here.folder, "top", "--once")
    assert ("shown" in once, "free" in once) == (True, True), once
    assert "user" not in once, "80 columns have no room for it"
    assert max(map(len, once.splitlines())) <= 80
    screen, terminal = os.openpty()
    command = [sys.executable, "-m", "fairlead.cli.main", "top", "--every", "0.2"]
    live = subprocess.Popen(command, cwd=here.folder, env={**environment(), "TERM": "xterm"}, stdout=terminal)
    os.close(terminal)
    drawn, asked = b"", False
    try:
        while select.select([screen], [], [], PATIENCE_S)[0]:
            try:
                drawn += os.read(screen, 1 << 16)
            except OSError:  # it has ended
                break
            if drawn.count(b"shown") >= 6 and not asked:  # in more than one picture
                live.send_signal(signal.SIGINT)
                asked = True
        assert (asked, live.wait(PATIENCE_S)) == (True, 130), drawn[-2000:]
    finally:
        live.kill()
        live.wait()
        os.close(screen)
    here.plane.cancel("shown")


def test_measured_rates_are_a_table_that_the_simulator_reads(here):
    here.plane.submit([here.prints("timed", 600, steps=600, kind="model", types=["v100"])])
    until(lambda: any(rate["kind"] == "model" for rate in here.plane.rates()["rates"]), here.folder)
    here.hurry("timed")
    here.reaches("timed", "finished")
    measured = next(rate for rate in here.plane.rates()["rates"] if rate["kind"] == "model")
    fairlead(here.folder, "rates", "export", "--out", "rates.csv", "--all-types")
    table = read_throughputs(here.folder / "rates.csv")
    assert table.alone[table.row("model", 1), table.types.index("v100")] == measured["steps_per_s"]
    (here.folder / "trace.csv").write_text("name,submitted_s,steps,kind\na,0,60,model\n")
    words = ("--policy", "fifo", "--trace", "trace.csv", "--cluster", "1xv100:1", "--throughputs", "rates.csv")
    simulated = answer(here.folder, "simulate", *words)
    assert simulated["makespan_s"] == pytest.approx(60 / measured["steps_per_s"])


def test_jobs_run_one_after_the_other_and_end_with_the_one_that_fails(here):
    line = (
        "import os, sys, time\nwhile not os.path.exists('begin'): time.sleep(0.05)\n"
        "open('order', 'a').write(sys.argv[1]); sys.exit(int(sys.argv[2]))"
    )
    for name, code, after in (("second", 1, "first"), ("first", 0, "")):
        task = {"name": name, "run": [sys.executable, "-c", line, f"{name} ", str(code)], "retries": 0}
        (here.folder / f"{name}.yaml").write_bytes(orjson.dumps({**task, **({"after": [after]} if after else {})}))
    told = answer(here.folder, "submit", "second.yaml", "first.yaml")["jobs"]
    assert [job["name"] for job in told] == ["second", "first"]
    kind = ("--kind", "toy (batch size 32)", "--mode", "expert", "--steps", "100", "--schedule", "32@0.25|256@0.75")
    fairlead(here.folder, "submit", "--name", "third", "--after", "second", "--after", "first", *kind, "--", "true")
    assert (here.plane.job("third")["kind"], here.plane.job("third")["mode"]) == ("toy (batch size 32)", "expert")
    assert here.plane.job("third")["schedule"] == [{"batch_size": 32, "share": 0.25}, {"batch_size": 256, "share": 0.75}]
    assert "batch size 32 for 25% of its steps" in " ".join(fairlead(here.folder, "info", "third").split())
    assert "Waiting until" in fairlead(here.folder, "why", "third")
    (here.folder / "begin").touch()
    here.reaches("third", "cancelled")
    assert (here.folder / "order").read_text() == "first second "
    assert here.plane.job("second")["phase"] == "failed"
    assert "second, which has failed" in fairlead(here.folder, "why", "third")
