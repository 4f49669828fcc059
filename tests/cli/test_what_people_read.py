"""What verbs for people show of a job and of a cluster, and what they say where something is not there."""

from __future__ import annotations

import io
import os
import re
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import from_scratch
from rich.console import Console
from typer.testing import CliRunner

from fairlead.cli import cmd_jobs, cmd_nodes
from fairlead.cli.cmd_top import overview_view, updates
from fairlead.cli.job_tables import progress_text as done_of
from fairlead.cli.main import app
from fairlead.runtime.http_client import RefusedRequest, Unreachable
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead_papers import command as reproduce
from fairlead_papers.findings import Row

SEEN = {"second": 7.0, "policy": "las", "nodes": [], "jobs": [], "decisions": []}


def told(phase: str, done: float | None, steps: float = 10.0, known: bool = True) -> str:
    return done_of({"phase": phase, "steps_done": done, "steps": steps, "steps_known": known})


def test_how_much_is_done_is_a_part_where_the_whole_is_known():
    assert [told("running", 4), told("running", 1234, 1e6, False)] == ["40 %", "step 1,234"]
    assert [told("finished", 10), told("finished", None, 1e6, False)] == ["100 %", "100 %"]


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (["python", "-u", "code/train.py", "--lr", "1"], "train.py"),
        (["python", "-c", "print('a secret')"], "python"),
        ("sh -c 'echo $X' word", "sh"),
        (["python", "-m", "package.train"], "package.train"),
        (["hostname"], "hostname"),
        (["sleep", "12"], "sleep"),
        (["nice", "-n", "10", "./train.sh"], "train.sh"),
        (["torchrun", "--nproc-per-node", "4", "train.py", "--config", "other.py"], "train.py"),
        (["/usr/bin/python3.11", "-W", "ignore", "train.py"], "train.py"),
        (["bash", "-c", "./train.sh"], "bash"),
        (["env", "SEED=x.py", "./train"], "env"),
    ],
)
def test_a_kind_is_the_script_and_never_the_text_of_a_program(run, kind):
    assert TaskSpec(run=run).job("a", "ann").kind == kind


def test_top_waits_for_a_control_plane_that_is_away_and_goes_on():
    answers = iter([{**SEEN, "second": 8.0}, Unreachable("nobody"), RefusedRequest(503, "later"), {**SEEN, "second": 9.0}])

    def look():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen = list(islice(updates(SEEN, look, lambda: None), 4))
    assert [(one["second"], away) for one, away in seen] == [(8.0, ""), (8.0, "nobody"), (8.0, "later"), (9.0, "")]
    screen = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    screen.print(overview_view(*seen[1][:1], 100, seen[1][1]))
    assert "waiting for the control plane: nobody" in screen.export_text()
    with pytest.raises(RefusedRequest):
        next(updates(SEEN, lambda: (_ for _ in ()).throw(RefusedRequest(401, "a token")), lambda: None))


def test_help_needs_no_extra(tmp_path: Path):
    absent = ("grpc", "fastapi", "uvicorn", "httpx", "starlette", "prometheus_client")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n")
    done = from_scratch("--help", cwd=tmp_path, paths=(tmp_path,))
    assert (done.returncode, "advise" in done.stdout) == (0, True), done.stderr


def test_a_lease_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", "--cluster", "1xv100:1", "--lease", "inf"])
    assert "--lease inf: expected a number of seconds" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_on_a_narrow_terminal_a_claim_of_a_paper_takes_one_line():
    rows = [
        Row(f"{n} times shorter than under the other scheduler, with eight jobs an hour and one worker each", 2.0, 1.5)
        for n in range(5)
    ]
    outcome = SimpleNamespace(rows=[(SimpleNamespace(name="fig8"), row) for row in rows])
    screen = Console(width=80, file=io.StringIO())
    screen.print(reproduce._shown(outcome, "title", "caption", 80))
    lines = [line for line in screen.file.getvalue().splitlines() if "1.50×" in line]
    assert len(lines) == 5
    assert all(len(line) <= 80 and "fig8" in line and "…" in line for line in lines)


def test_what_claims_lack_is_said_once_and_not_in_their_lines():
    reason = "no data: philly/philly.csv: expected it in the folder of public traces: pass --data FOLDER"
    rows = [("fig8", Row(f"said {n}", 2.0, None, note=reason)) for n in range(4)]
    rows += [("fig9", Row("said 4", 2.0, None, note=reason)), ("fig9", Row("said 5", None, None, note="KeyError: 'x'"))]
    outcome = SimpleNamespace(rows=[(SimpleNamespace(name=name), row) for name, row in rows])
    for width in (80, None):
        screen = Console(width=80, file=io.StringIO())
        screen.print(reproduce._shown(outcome, "title", "caption", width))
        lines = [line.rstrip() for line in screen.file.getvalue().splitlines() if "said " in line]
        assert [line.endswith("no data") for line in lines] == [True] * 5 + [False]
        assert lines[5].endswith("failed")
        assert "philly" not in "".join(lines)
    assert reproduce._why_not(outcome) == [f"{reason} (5 claims of fig8, fig9)", "failed: KeyError: 'x' (1 claim of fig9)"]


def test_a_part_that_nobody_knows_is_answered_with_near_names_or_how_to_see_all():
    assert "did you mean 'tiresias'" in str(CliRunner().invoke(app, ["policies", "tiresius"]).exception)
    told = str(CliRunner().invoke(app, ["policies", "zzzzzz"]).exception)
    assert "'zzzzzz': expected a kind (policy, " in told
    assert "a part that 'all' lists" in told
    told = str(CliRunner().invoke(app, ["presets", "show", "zzzzzz"]).exception)
    assert ("known: allox" in told, " more" in told) == (True, True)


def test_a_type_of_accelerator_that_is_misspelt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text("name,submitted_s,duration_s\na,0,60\n")
    Path("known.yaml").write_text("types: {v10: {memory_gb: 8}}\nnodes: [{type: v10, accelerators: 2}]\n")
    simulate = ["simulate", "--policy", "fifo", "--trace", "jobs.csv", "--json", "--cluster"]
    said = {cluster: CliRunner().invoke(app, [*simulate, cluster]).stderr for cluster in ("2xv10:2", "2xgpu:2", "known.yaml")}
    assert "unknown GPU type 'v10'; did you mean 'v100'" in said["2xv10:2"]
    assert (said["2xgpu:2"], said["known.yaml"]) == ("", "")
    Path("jobs.csv").write_text("name,submitted_s,duration_s,allowed_types\na,0,60,gpu|v10|V100|v100|a100\n")
    told = CliRunner().invoke(app, [*simulate, "2xgpu:2"]).stderr.splitlines()
    assert [line.partition("' or")[0] for line in told] == [
        f"allowed_types: unknown GPU type '{name}'; did you mean 'v100" for name in ("v10", "V100")
    ]


def test_what_a_node_could_not_begin_stands_below_the_nodes(monkeypatch: pytest.MonkeyPatch):
    well = {
        "name": "n0",
        "type": "v100",
        "accelerators": 4,
        "free": 2,
        "drained": False,
        "connected": True,
        "jobs": ["a"],
        "up": True,
    }
    away = "kubernetes is unavailable: the token may have expired"
    mute = {**well, "name": "n2", "connected": False, "unreachable_s": 20.0, "engine_problem": away}
    well |= {"jobs": ["a", "b", "c"], "stopping": ["b"], "starting": ["c"]}
    ill = {**well, "name": "n1", "jobs": [], "up": False, "launch_error": "/full: No space left on device", "backoff_s": 30.0}
    monkeypatch.setattr(cmd_nodes, "control_plane", lambda: SimpleNamespace(nodes=lambda: [well, ill, mute]))
    said = CliRunner().invoke(app, ["nodes"], env={"COLUMNS": "200"}).stdout
    assert "backing off" in said
    assert re.search(r"n2 .* unknown +unreachable 20 s +a", said)
    assert "a, b (stopping), c (starting)" in " ".join(said.split())  # the column may wrap
    assert "n1 could not start a job: /full: No space left on device; retried in 30 s\n" in said
    assert "n0 could not" not in said
    assert f"\n{away}\n" in said


@pytest.mark.parametrize(
    ("soonest_s", "latest_s", "said"),
    [
        (6.0, 6.0, "; the next decision comes in 6 s"),
        (6.0, 7176.0, "; the next decision comes in 6 s if anything changes, else in 2.0 h"),
        (6.0, None, ""),
        (None, 300.0, "; the next decision comes within 5.0 min"),
    ],
)
def test_why_prints_when_the_next_decision_comes_if_that_is_known(monkeypatch, soonest_s, latest_s, said):
    reason = {"by": "policy", "code": "waiting-for-resources", "facts": {"needed": 1, "free": 0}, "text": "others go first"}
    about = {"name": "a", "phase": "waiting", "reason": reason}
    job = {**about, "next_decision_s": soonest_s, "latest_decision_s": latest_s}
    monkeypatch.setattr(cmd_jobs, "control_plane", lambda: SimpleNamespace(job=lambda name: job))
    assert CliRunner().invoke(app, ["why", "a"]).stdout == f"a is waiting: others go first{said}\n"
    held, mute = "; the quota is held by b, c", "; the agent of its node n0 is unreachable for 20 s"
    job |= {"quota_jobs": ["b", "c"], "unreachable": {"n0": 20.0}}
    assert CliRunner().invoke(app, ["why", "a"]).stdout == f"a is waiting: others go first{held}{said}{mute}\n"
    job |= {"quota_jobs": [], "unreachable": {}}
    job = {**job, "next_decision_s": None, "latest_decision_s": None}
    assert CliRunner().invoke(app, ["why", "a"]).stdout == "a is waiting: others go first\n"
    job |= {"engine_problems": ["kubernetes is unavailable: the token may have expired"]}
    away = "; kubernetes is unavailable: the token may have expired"
    assert CliRunner().invoke(app, ["why", "a"]).stdout == f"a is waiting: others go first{away}\n"
    job = {"name": "a", "phase": "running", "not_begun": {"n0": "ImagePullBackOff: typo:1"}}
    assert CliRunner().invoke(app, ["why", "a"]).stdout == "a is running; it has not started on n0: ImagePullBackOff: typo:1\n"


def test_an_admin_without_jobs_is_told_of_others_and_a_user_of_none(monkeypatch: pytest.MonkeyPatch):
    def asked(others: list[dict]) -> str:
        plane = SimpleNamespace(jobs=lambda phases, all_users: others, find_jobs=lambda **_: [])
        monkeypatch.setattr(cmd_jobs, "control_plane", lambda: plane)
        chosen = CliRunner().invoke(app, ["queue", "--state", "failed", "--array", "none"])
        assert (chosen.exit_code, chosen.stdout) == (0, "no jobs\n")
        return CliRunner().invoke(app, ["queue"]).stdout

    assert asked([{}] * 6) == "no jobs of yours; --all shows all 6 active jobs\n"
    assert asked([]) == "no jobs\n"


def test_an_empty_cluster_is_said_to_have_no_jobs():
    screen = Console(width=100, file=io.StringIO())
    screen.print(overview_view(SEEN, 100))
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "no jobs" in said
    assert "nodes, or reason" not in said
    assert "last decisions" not in said


def test_nodes_that_cannot_limit_jobs_are_named(monkeypatch: pytest.MonkeyPatch):
    node = {"type": "v100", "accelerators": 4, "free": 4, "drained": False, "connected": True, "jobs": [], "up": True}
    limits = {"n0": "none", "n1": "cpu,memory", "n2": None}
    found = [{**node, "name": name, "limits": limit} for name, limit in limits.items()]
    monkeypatch.setattr(cmd_nodes, "control_plane", lambda: SimpleNamespace(nodes=lambda: found))
    why = "the CPU and memory of jobs: cgroups (v2) are not available\n"
    assert f"no limits on n0 for {why}" in CliRunner().invoke(app, ["nodes"]).stdout
    for node in found:
        node["limits"] = "none"
    assert f"no node limits {why}" in CliRunner().invoke(app, ["nodes"]).stdout
    assert f"no limits on n0, n1 for {why}" in CliRunner().invoke(app, ["nodes", "n0", "n1"]).stdout
    found = [{**node, "limits": "memory"} for node in found]
    assert "cgroups" not in CliRunner().invoke(app, ["nodes"]).stdout


def test_accelerators_that_several_share_are_counted_where_there_are_some(monkeypatch: pytest.MonkeyPatch):
    node = {"name": "n0", "type": "v100", "accelerators": 4, "free": 2, "shared": 1, "drained": False, "connected": True}
    node |= {"jobs": ["a", "b"], "up": True}
    monkeypatch.setattr(cmd_nodes, "control_plane", lambda: SimpleNamespace(nodes=lambda: [node]))
    assert "shared" in CliRunner().invoke(app, ["nodes"]).stdout
    node["shared"] = 0
    assert "shared" not in CliRunner().invoke(app, ["nodes"]).stdout


def test_racks_of_nodes_are_listed_where_there_are_some(monkeypatch: pytest.MonkeyPatch):
    node = {
        "name": "n0",
        "type": "v100",
        "accelerators": 4,
        "free": 2,
        "drained": False,
        "connected": True,
        "jobs": [],
        "up": True,
    }
    found = [{**node, "rack": "r7"}, {**node, "name": "n1", "rack": ""}]
    monkeypatch.setattr(cmd_nodes, "control_plane", lambda: SimpleNamespace(nodes=lambda: found))
    said = CliRunner().invoke(app, ["nodes"]).stdout
    assert re.search(r"name +type +rack +GPUs", said)
    assert re.search(r"n0 +v100 +r7 +4", said)
    assert re.search(r"n1 +v100 +4", said)
    found.pop(0)
    assert "rack" not in CliRunner().invoke(app, ["nodes"]).stdout
