"""`fairlead up --alerts` and `fairlead alerts test` as processes, with servers of the test as receivers."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from cluster_up import LOG, cluster_up, until
from command import fairlead

from alert_receivers import HookServer, MailServer
from foundry import PATIENCE_S, free_port

pytestmark = pytest.mark.long


def log_of(folder: Path) -> str:
    return (folder / LOG).read_text()


def test_a_control_plane_that_is_killed_before_the_delivery_sends_the_alert_after_its_next_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    port = free_port()
    Path("alerts.yaml").write_text(f"rules:\n  - on: job-failed\n    to: ['http://127.0.0.1:{port}/hook?secret=1']\n")
    with cluster_up(tmp_path, "--alerts", "alerts.yaml") as process:
        assert fairlead("submit", "--name", "bad", "--retries", "0", "--", "false").returncode == 0
        until(lambda: "alerts not delivered" in log_of(tmp_path), tmp_path)  # nothing listens there
        process.send_signal(signal.SIGKILL)
        process.wait()
    with HookServer(port) as hook:
        with cluster_up(tmp_path, "--alerts", "alerts.yaml"):
            until(lambda: hook.alerts, tmp_path)
        [alert] = hook.alerts
        assert (alert["on"], alert["job"]["name"], alert["job"]["exit_code"]) == ("job-failed", "bad", 1)
        with cluster_up(tmp_path, "--alerts", "alerts.yaml"):
            assert fairlead("submit", "--name", "worse", "--retries", "0", "--", "false").returncode == 0
            until(lambda: len(hook.alerts) > 1, tmp_path)
        assert [alert["job"]["name"] for alert in hook.alerts] == ["bad", "worse"], "each once"
    assert "secret=1" not in log_of(tmp_path)


def test_sighup_reads_the_alert_file_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with HookServer() as first, HookServer() as second:
        write = lambda hook: Path("alerts.yaml").write_text(f"rules: [{{on: job-ended, to: ['{hook.url}']}}]\n")  # noqa: E731
        write(first)
        with cluster_up(tmp_path, "--alerts", "alerts.yaml") as process:
            assert fairlead("submit", "--name", "one", "--", "true").returncode == 0
            until(lambda: first.alerts, tmp_path)
            Path("alerts.yaml").write_text("rules: []\n")
            process.send_signal(signal.SIGHUP)
            until(lambda: "alert file refused; the current alerts stay" in log_of(tmp_path), tmp_path)
            write(second)
            process.send_signal(signal.SIGHUP)
            until(lambda: "alerts reloaded" in log_of(tmp_path), tmp_path)
            assert fairlead("submit", "--name", "two", "--", "true").returncode == 0
            until(lambda: second.alerts, tmp_path)
    assert [alert["job"]["name"] for alert in (*first.alerts, *second.alerts)] == ["one", "two"]


def about_ghost(server: MailServer) -> list[str]:
    """Mails to the operators. Others may be about real nodes, whose agents take long to start on a busy machine."""
    texts = [mail.get_content() for to, mail in list(server.mails) if to == "ops@x.org"]
    return [text for text in texts if "Node ghost has been silent for" in text]


def test_a_silent_node_and_the_end_of_a_job_by_mail(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with MailServer() as server:
        rules = [
            {"on": "job-ended", "users": ["admin"], "to": ["mailto:{user}@x.org"]},
            {"on": "silent-node", "bound": "1s", "to": ["mailto:ops@x.org"]},
        ]
        mail = {"host": "127.0.0.1", "port": server.port, "from": "fairlead@x.org", "tls": "none"}
        Path("alerts.yaml").write_text(json.dumps({"name": "lab", "rules": rules, "mail": mail}))
        with cluster_up(tmp_path, "--alerts", "alerts.yaml"):
            assert fairlead("submit", "--name", "mine", "--", "true").returncode == 0
            until(lambda: any(to == "admin@x.org" for to, _ in server.mails), tmp_path)
            assert fairlead("nodes", "add", "ghost", "v100:2").returncode == 0  # no agent runs there
            until(lambda: about_ghost(server), tmp_path)
    mine = [mail["Subject"].partition(" after")[0] for to, mail in server.mails if to == "admin@x.org"]
    assert mine == ["[lab] Job mine (number 0, user admin) finished"]
    assert len(about_ghost(server)) == 1


def test_a_deadline_that_a_forecast_says_will_be_missed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with HookServer() as hook:
        Path("alerts.yaml").write_text(f"rules: [{{on: deadline, to: ['{hook.url}']}}]\n")
        with cluster_up(tmp_path, "--alerts", "alerts.yaml"):
            for name, deadline in (("fine", "1d"), ("late", "1h")):
                task = {"name": name, "run": "sleep 1000", "time_limit": "2h", "deadline": deadline}
                Path(f"{name}.yaml").write_text(json.dumps(task))
            done = fairlead("submit", "fine.yaml", "late.yaml")  # together: no forecast comes in between
            assert done.returncode == 0, done.stderr
            until(lambda: hook.alerts, tmp_path, 2 * PATIENCE_S)  # if a forecast fails, the next comes 5 minutes later
        [alert] = hook.alerts
        assert (alert["on"], alert["job"]["name"]) == ("deadline", "late")
        assert "will miss its deadline, in " in alert["text"]
        assert alert["job"]["expected_end_at"] > alert["job"]["deadline_at"]


def test_the_command_sends_a_message_to_each_address_and_says_what_came_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with HookServer() as hook, MailServer() as server:
        targets = f"'{hook.url}', 'mailto:ops@x.org', 'mailto:{{user}}@x.org'"
        mail = f"mail: {{host: 127.0.0.1, port: {server.port}, from: f@x.org, tls: none}}"
        Path("alerts.yaml").write_text(f"name: lab\nrules: [{{on: job-ended, to: [{targets}]}}]\n{mail}\n")
        done = fairlead("alerts", "test", "alerts.yaml")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0] == f"{hook.url.partition('/hook')[0]}: sent"
        assert lines[1:] == ["mailto:ops@x.org: sent", "mailto:{user}@x.org: skipped: pass --user NAME"]
        assert hook.alerts[0]["text"] == "This is a test of alerts from Fairlead, cluster lab."
        assert fairlead("alerts", "test", "alerts.yaml", "--user", "ann").returncode == 0
        assert [to for to, _ in server.mails] == ["ops@x.org", "ops@x.org", "ann@x.org"]
        hook.statuses, server.codes = [500], [550]
        done = fairlead("alerts", "test", "alerts.yaml", "--json")
        assert done.returncode == 1
        outcomes = [(one["outcome"], one["why"]) for one in json.loads(done.stdout)["targets"]]
        assert outcomes == [("failed", "status 500"), ("failed", "the recipient was refused"), ("skipped", "pass --user NAME")]


def test_a_wrong_file_is_an_error_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("alerts.yaml").write_text("rules:\n  - on: job-end\n    to: ['https://example.org']\n")
    for words in (("up", "--alerts", "alerts.yaml"), ("serve", "--alerts", "alerts.yaml"), ("alerts", "test", "alerts.yaml")):
        done = fairlead(*words)
        assert done.returncode == 2
        assert "alerts.yaml:2: field 'on' is 'job-end': expected a kind of alert (did you mean 'job-ended'" in done.stderr
    assert not Path(".fairlead").exists()
    assert "an alert file" in fairlead("alerts", "test", "--help").stdout.lower()
