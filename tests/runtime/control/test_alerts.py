"""Alerts of a control plane, to real servers on this machine: what is sent, when it is sent again, and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alert_receivers import PATIENCE_S, HookServer, MailServer, until
from certificates import certificates
from fairlead.config.alert_rules import read_alerts
from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.fairness_ledger import SECOND, FairnessLedger, LedgerRow
from fairlead.engine.journal import MemoryJournal
from fairlead.journal.control_files import ALERTS, FolderFiles
from fairlead.journal.recovery import open_journal, recover
from fairlead.runtime.control import alert_conditions, alerts
from fairlead.runtime.control.alert_delivery import AlertMessage, DeliveryFailed, Mail, Webhook
from fairlead.runtime.control.alerts import AlertService, FollowedAlerts
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.testing.builders import cluster

SCHEDULER = {"policy": "las", "rounds": 60.0}
GPUS = 4
WATCH = AlertService._watch
WAITS = f"webhook: {{timeout: {PATIENCE_S:g}s}}"  # as what is answered too late is sent again


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(alerts, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(alerts, "LAST_RETRY_S", 0.2)
    monkeypatch.setattr(alerts, "STOP_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(AlertService, "_watch", lambda self, on: None)  # tests check conditions themselves


class Scene:
    """A control plane whose events the test records, and its alerts. It can be opened again, as after a restart."""

    def __init__(self, folder: Path, rules: str, more: str = WAITS, forecast: Any = None) -> None:
        (folder / "alerts.yaml").write_text(f"name: lab\nrules: {rules}\n{more}\n")
        journal = open_journal(str(folder / "journal.sqlite"))
        state = recover(journal)[0] if journal.last else None
        self.journal, files = journal, FolderFiles(folder)
        self.plane = ControlPlane(cluster("v100:2,v100:2"), SCHEDULER, compose, journal, state)
        self.settings = read_alerts(folder / "alerts.yaml")
        self.alerts = AlertService(self.plane, self.settings, files, forecast)
        if state is None:
            self.happens(
                ev.JournalOpened(0.0, self.plane.cluster, SCHEDULER, journal=self.plane.name, origin=self.plane.origin)
            )

    @property
    def state(self) -> Any:
        return self.plane.loop.state

    def happens(self, *events: ev.Event) -> None:
        for event in events:
            self.plane.loop.record(event)
        self.plane.loop.journal.commit()

    def submit(self, count: int, user: str = "ann", account: str = "vision", **more: Any) -> list[int]:
        first = self.state.next_number
        numbers = list(range(first, first + count))
        jobs = [Job(f"job-{n}", 0.0, 1e6, user=user, account=account, **more) for n in numbers]
        self.happens(*(ev.JobSubmitted(self.state.time, number, job) for number, job in zip(numbers, jobs)))
        return numbers

    def start(self, numbers: list[int]) -> None:
        count = len(numbers)
        launches = Launches(np.array(numbers), np.zeros(count, np.int64), np.arange(count + 1), np.arange(count))
        self.happens(ev.RoundPlanned(RoundPlan(self.state.time, admitted=np.array(numbers), launches=launches)))

    def finish(self, *numbers: int) -> None:
        """Of jobs that run."""
        now = self.state.time + 60.0
        self.happens(ev.JobsFinished(now, np.array(numbers), np.full(len(numbers), now)))

    def cancel(self, *numbers: int) -> None:
        self.happens(*(ev.JobCancelled(self.state.time, number) for number in numbers))

    def count(self, outcome: str, channel: str = "webhook") -> float:
        return self.plane.metrics.registry.get_sample_value("fairlead_alerts_total", {"channel": channel, "outcome": outcome})  # type: ignore[return-value]

    def check(self) -> None:
        for rule in self.settings.rules:
            self.alerts.check(rule)


@contextlib.contextmanager
def scene(folder: Path, rules: str, more: str = WAITS, forecast: Any = None, *, started: bool = True) -> Iterator[Scene]:
    found = Scene(folder, rules, more, forecast)
    if started:
        found.alerts.start()
    try:
        yield found
    finally:
        found.alerts.stop()
        found.journal.close()


def everything(*targets: str) -> str:
    return json.dumps([{"on": "job-ended", "to": list(targets)}])


def names(hook: HookServer) -> list[str]:
    return [alert["job"]["name"] for alert in hook.alerts]


def test_a_webhook_has_stable_fields_and_a_signature(tmp_path):
    (tmp_path / "secret").write_text("s3cret")
    with HookServer() as hook, scene(tmp_path, everything(hook.url), WAITS.replace("{", "{secret_file: secret, ")) as s:
        [number] = s.submit(1)
        s.start([number])
        s.happens(ev.JobsFailed(90.0, np.array([0]), np.array([90.0]), "worker 0\nended with status 3", 3, 1))
        until(lambda: hook.requests)
        [(headers, body)] = hook.requests
        at, _, given = headers["fairlead-signature"].removeprefix("t=").partition(",v1=")
        assert given == hmac.new(b"s3cret", f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        assert headers["content-type"] == "application/json"
        sent = json.loads(body)
        text = "Job job-0 (number 0, user ann) failed after running for 2 min: worker 0 ended with status 3 (node n1)."
        assert (sent["version"], sent["cluster"], sent["text"]) == (1, "lab", text.replace("n1", s.plane.cluster.nodes[1].name))
        [alert] = sent["alerts"]
        assert set(alert) == {"id", "on", "at", "text", "job"}
        assert alert["on"] == "job-failed"
        about = {"number": 0, "name": "job-0", "user": "ann", "account": "vision", "state": "failed", "exit_code": 3}
        assert about.items() <= alert["job"].items()
        until(lambda: s.count("sent") == 1)


def test_rules_choose_by_outcome_user_and_account(tmp_path):
    with HookServer() as failed, HookServer() as bobs, HookServer() as speech:
        rules = [
            {"on": "job-failed", "to": [failed.url]},
            {"on": "job-ended", "users": ["bob"], "to": [bobs.url]},
            {"on": "job-ended", "accounts": ["speech"], "to": [speech.url]},
            {"on": "job-failed", "accounts": ["speech"], "to": [speech.url]},
        ]
        with scene(tmp_path, json.dumps(rules)) as s:
            a, b, c = *s.submit(1), *s.submit(1, "bob"), *s.submit(1, "cat", "speech")
            s.start([a, b, c])
            s.finish(a, b)
            s.happens(ev.JobsFailed(99.0, np.array([c]), np.array([99.0]), "no"))
            until(lambda: failed.requests and bobs.requests and speech.requests)
        assert (names(failed), names(bobs), names(speech)) == (["job-2"], ["job-1"], ["job-2"]), "each once to each address"


def test_what_a_target_missed_while_it_was_away_arrives_once_and_in_order(tmp_path):
    with HookServer() as hook, scene(tmp_path, everything(hook.url)) as s:
        hook.statuses = [503, 429, 302, 404]
        numbers = s.submit(5)
        s.cancel(*numbers[:2])
        until(lambda: hook.asked >= 2)
        s.cancel(*numbers[2:])
        until(lambda: len(hook.alerts) == 5)
        until(lambda: s.count("sent") == 5)
        assert names(hook) == [f"job-{n}" for n in numbers]
        assert s.count("failed") == s.count("dropped") == 0


def test_a_message_that_is_refused_is_not_sent_again(tmp_path, caplog):
    with HookServer() as hook, scene(tmp_path, everything(hook.url)) as s:
        hook.statuses = [422]
        first, second = s.submit(2)
        s.cancel(first)
        until(lambda: s.count("failed") == 1)
        s.cancel(second)
        until(lambda: hook.requests)
        assert names(hook) == ["job-1"]
    assert "alerts refused" in caplog.messages
    assert "secret=1" not in str([record.__dict__ for record in caplog.records]), "the path of a webhook may be a secret"


def test_a_slow_target_delays_neither_the_loop_nor_another_target(tmp_path):
    with HookServer() as slow, HookServer() as fast, scene(tmp_path, everything(slow.url, fast.url)) as s:
        slow.open.clear()
        for number in s.submit(30):
            s.cancel(number)
        until(lambda: len(fast.alerts) == 30)
        assert not slow.requests, "and its requests are still open"
        slow.open.set()
        until(lambda: len(slow.alerts) == 30)
        assert sorted(names(slow)) == sorted(names(fast))
        assert slow.asked < 30, "what waits is sent together"


def test_ten_thousand_ends_at_once(tmp_path):
    with HookServer() as hook, MailServer() as mail:
        more = f"{WAITS}\nmail: {{host: 127.0.0.1, port: {mail.port}, from: f@x.org, tls: none, timeout: {PATIENCE_S:g}s}}"
        with scene(tmp_path, everything(hook.url, "mailto:{user}@x.org"), more) as s:
            numbers = [*s.submit(5000), *s.submit(5000, "bob")]
            s.cancel(*numbers)
            until(lambda: s.count("sent") == s.count("sent", "mail") == 10_000)
            assert s.count("dropped") == s.count("dropped", "mail") == 0
    assert names(hook) == [f"job-{n}" for n in numbers]
    assert len({alert["id"] for alert in hook.alerts}) == 10_000
    assert hook.asked < 1000, "by the hundred"
    assert {recipient for recipient, _ in mail.mails} == {"ann@x.org", "bob@x.org"}
    assert sum(text.count("was cancelled") for text in mail.texts()) == 10_000
    assert len(mail.mails) < 200


def test_after_a_restart_nothing_is_lost_and_nothing_is_sent_twice(tmp_path):
    with HookServer() as hook:
        other = "http://127.0.0.1:9/away"  # nothing listens there
        with scene(tmp_path, everything(hook.url, other)) as s:
            numbers = s.submit(6)
            s.cancel(*numbers[:2])
            until(lambda: s.count("sent") == 2)
            hook.statuses = [503] * 1000
            asked = hook.asked
            s.cancel(*numbers[2:4])
            until(lambda: hook.asked > asked)
        with scene(tmp_path, everything(hook.url, other), started=False) as s:
            s.cancel(numbers[4])  # before the threads run
            hook.statuses = []
            s.alerts.start()
            until(lambda: s.count("sent") == 3)
        with scene(tmp_path, everything(hook.url, other)) as s:
            s.cancel(numbers[5])
            until(lambda: s.count("sent") == 1)
        assert names(hook) == [f"job-{n}" for n in numbers]
        assert len({alert["id"] for alert in hook.alerts}) == 6


def test_a_service_that_was_killed_before_its_first_delivery_sends_it_later(tmp_path):
    with HookServer() as hook:
        with scene(tmp_path, everything(hook.url)) as s:
            killed = (tmp_path / ALERTS).read_bytes()
            hook.statuses = [503] * 1000
            s.cancel(*s.submit(2))
            until(lambda: hook.asked)
        (tmp_path / ALERTS).write_bytes(killed)
        hook.statuses = []
        with scene(tmp_path, everything(hook.url)) as s:
            until(lambda: s.count("sent") == 2)
        assert names(hook) == ["job-0", "job-1"]


def test_a_service_that_was_killed_sends_the_rest_of_an_event(tmp_path, monkeypatch):
    monkeypatch.setattr(Webhook, "batch", 1)
    with HookServer() as hook:
        with scene(tmp_path, everything(hook.url)) as s:
            s.start(s.submit(GPUS))
            hook.statuses = [204, 204, *[503] * 1000]
            s.finish(*range(GPUS))
            until(lambda: s.count("sent") == 2)
            until(lambda: [place for _, place in json.loads((tmp_path / ALERTS).read_bytes())["reached"].values()] == [1])
            killed = (tmp_path / ALERTS).read_bytes()
        (tmp_path / ALERTS).write_bytes(killed)  # as the mark was before an orderly end
        hook.statuses = []
        with scene(tmp_path, everything(hook.url)) as s:
            until(lambda: s.count("sent") == 2)
        assert names(hook) == [f"job-{n}" for n in range(GPUS)]


def test_a_new_address_gets_no_old_alerts_and_a_broken_mark_begins_now(tmp_path, caplog):
    with HookServer() as hook, HookServer() as late:
        with scene(tmp_path, everything(hook.url)) as s:
            s.cancel(*s.submit(2))
            until(lambda: s.count("sent") == 2)
        (tmp_path / ALERTS).write_text("{")
        with scene(tmp_path, everything(hook.url, late.url)) as s:
            s.cancel(*s.submit(1))
            until(lambda: s.count("sent") == 2)
        assert (len(hook.alerts), names(late)) == (3, ["job-2"])
    assert any("cannot read which alerts were sent" in one for one in caplog.messages)


def test_an_outbox_is_bounded_and_drops_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(alerts, "MAX_WAITING", 5)
    with HookServer() as hook, scene(tmp_path, everything(hook.url), started=False) as s:
        s.cancel(*s.submit(8))
        hook.open.clear()  # or the first is sent before the last comes
        s.alerts.start()
        until(lambda: s.count("dropped") == 3)
        hook.open.set()
        until(lambda: s.count("sent") == 5)
        assert names(hook) == [f"job-{n}" for n in range(5)]


def test_old_alerts_are_dropped(tmp_path, monkeypatch):
    with scene(tmp_path, everything("http://127.0.0.1:9/away")) as s:
        s.cancel(*s.submit(2))
        until(lambda: s.alerts.outboxes[0].waiting)
        monkeypatch.setattr(alerts, "MAX_AGE_S", -1e6)
        until(lambda: s.count("dropped") == 2)
        assert not s.alerts.outboxes[0].waiting


def test_more_events_than_fit_are_read_from_the_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(alerts, "MAX_NEW", 3)
    with HookServer() as hook, scene(tmp_path, everything(hook.url), started=False) as s:
        for number in s.submit(9):
            s.cancel(number)
        assert len(s.alerts._new) <= 3
        s.alerts.start()
        until(lambda: s.count("sent") == 9)
        assert names(hook) == [f"job-{n}" for n in range(9)]


def test_events_that_the_journal_has_dropped_are_left_out(tmp_path, caplog):
    with HookServer() as hook:
        with scene(tmp_path, everything(hook.url)) as s:
            s.cancel(*s.submit(1))
            until(lambda: s.count("sent") == 1)
        with scene(tmp_path, everything("http://127.0.0.1:9/other")) as s:
            s.cancel(*s.submit(1))
            s.journal.snapshot(s.state)
            s.journal._drop_events(s.journal.last)
            s.cancel(*s.submit(1))
        marks = json.loads((tmp_path / ALERTS).read_bytes())
        other = s.alerts.outboxes[0].name
        with scene(tmp_path, everything(hook.url), started=False) as s:
            marks["reached"] = {s.alerts.outboxes[0].name: [3, 0]}
            assert other != s.alerts.outboxes[0].name
        (tmp_path / ALERTS).write_text(json.dumps(marks))
        with scene(tmp_path, everything(hook.url)) as s:
            until(lambda: s.count("sent") == 1)
        assert names(hook) == ["job-0", "job-2"]
    assert any("has dropped events" in one for one in caplog.messages)


def test_alerts_need_a_journal_with_numbers(tmp_path):
    (tmp_path / "alerts.yaml").write_text("rules: [{on: job-ended, to: ['https://x.org']}]")
    plane = ControlPlane(cluster("v100:2"), SCHEDULER, compose, MemoryJournal())
    with pytest.raises(FairleadError, match="SQLite or PostgreSQL"):
        AlertService(plane, read_alerts(tmp_path / "alerts.yaml"), FolderFiles(tmp_path))


def test_a_silent_node_is_told_once_and_again_when_asked_for(tmp_path, monkeypatch):
    with HookServer() as hook:
        rules = json.dumps([{"on": "silent-node", "bound": "30s", "to": [hook.url]}])
        with scene(tmp_path, rules) as s:
            silent: dict[str, float] = {"v": 20.0}
            monkeypatch.setattr(s.plane.hub, "silent_nodes", lambda: silent)
            s.check()
            silent["v"] = 95.0
            for _ in range(3):
                s.check()
            until(lambda: s.count("sent") == 1)
            s.check()
            assert [alert["text"] for alert in hook.alerts] == ["Node v has been silent for 2 min."]
            assert hook.alerts[0]["node"] == {"name": "v", "silent_s": 95.0}
        with scene(tmp_path, rules) as s:
            monkeypatch.setattr(s.plane.hub, "silent_nodes", lambda: silent)
            s.check()
            assert not s.alerts.outboxes[0].waiting, "a restart changes nothing"
            monkeypatch.setattr(s.alerts._host, "time", lambda: 4e9)  # much later
            silent.clear()
            s.check()
            assert s.alerts.outboxes[0].sent, "the control plane has just started"
            s.alerts._since -= 3600.0
            s.check()
            silent["v"] = 95.0
            s.check()
            until(lambda: s.count("sent") == 1)
        rules = rules.replace('"30s"', '"30s", "repeat": "1h"')
        with scene(tmp_path, rules) as s:
            monkeypatch.setattr(s.plane.hub, "silent_nodes", lambda: silent)
            s.alerts.outboxes[0].sent.clear()
            s.check()
            until(lambda: s.count("sent") == 1)
            s.check()
            assert not s.alerts.outboxes[0].waiting
            sent = s.alerts.outboxes[0].sent
            sent.update({key: at - 3601 for key, at in sent.items()})
            s.check()
            until(lambda: s.count("sent") == 2)


def test_a_condition_that_cannot_be_checked_does_not_end_the_others(tmp_path, monkeypatch):
    rules = [{"on": on, "bound": 0, "to": ["https://hook.example.org"]} for on in ("deadline", "silent-node")]
    with scene(tmp_path, json.dumps(rules), started=False) as s:
        monkeypatch.setattr(s.plane.hub, "silent_nodes", lambda: {"v": 20.0})
        monkeypatch.setattr(s.alerts._conditions, "_deadlines", lambda rule: [][0])
        s.alerts._stopping = True  # after the first time
        for on in ("deadline", "silent-node"):
            WATCH(s.alerts, on)
        assert [alert.content.facts["node"]["name"] for alert in s.alerts.outboxes[0].waiting] == ["v"]


def test_a_slow_forecast_does_not_delay_other_conditions(tmp_path, monkeypatch):
    monkeypatch.setattr(AlertService, "_watch", WATCH)
    done = threading.Event()

    async def forecast(now, saved, rates):
        await asyncio.to_thread(done.wait, PATIENCE_S)
        raise FairleadError("too late")

    with HookServer() as hook:
        rules = [{"on": on, "bound": 0, "to": [hook.url]} for on in ("deadline", "silent-node")]
        with scene(tmp_path, json.dumps(rules), forecast=forecast, started=False) as s:
            monkeypatch.setattr(s.plane.hub, "silent_nodes", lambda: {"v": 20.0})
            s.submit(1, deadline_s=60.0)
            s.alerts.start()
            until(lambda: hook.alerts)
            assert hook.alerts[0]["node"]["name"] == "v"
            done.set()


def test_a_changed_file_is_used_and_a_wrong_one_changes_nothing(tmp_path, caplog):
    caplog.set_level("INFO", "fairlead.cluster")
    with HookServer() as first, HookServer() as second, scene(tmp_path, everything(first.url)) as s:
        followed = FollowedAlerts(tmp_path / "alerts.yaml", s.alerts)
        numbers = s.submit(4)
        s.cancel(numbers[0])
        until(lambda: len(names(first)) == 1)
        for wrong in ("rules: [", "rules: []", everything("ftp://x")):
            (tmp_path / "alerts.yaml").write_text(wrong)
            followed.reload()
        assert caplog.text.count("alert file refused; the current alerts stay") == 3
        s.cancel(numbers[1])
        until(lambda: len(names(first)) == 2)
        (tmp_path / "alerts.yaml").write_text(f"rules: {everything(first.url, second.url)}\n{WAITS}")
        followed.reload()
        s.cancel(numbers[2])
        until(lambda: len(names(first)) == 3 and len(names(second)) == 1)  # what waits for an address goes with its rule
        (tmp_path / "alerts.yaml").write_text(f"rules: {everything(second.url)}\n{WAITS}")
        followed.reload()
        s.cancel(numbers[3])
        until(lambda: len(names(second)) == 2)
        followed.stop()
        assert caplog.text.count("alerts reloaded") == 2
        assert names(first) == ["job-0", "job-1", "job-2"], "each once"
        assert names(second) == ["job-2", "job-3"]
        services = [one for one in s.plane.observers if isinstance(getattr(one, "__self__", None), AlertService)]
        assert len(services) == 1, "the former ones do not observe any more"


def test_a_lost_node_is_silent_unless_it_is_drained(tmp_path):
    with HookServer() as hook, scene(tmp_path, json.dumps([{"on": "silent-node", "bound": 0, "to": [hook.url]}])) as s:
        name = s.plane.cluster.nodes[0].name
        for node in (0, 1):
            s.happens(ev.NodeLost(0.0, node), ev.NodeRepaired(0.0, node))
        s.happens(ev.NodeLost(0.001, 0), ev.NodeLost(0.001, 1), ev.NodeDrained(0.001, 1))
        until(lambda: s.plane.backend.now > 0.001)
        s.check()
        until(lambda: hook.alerts)
        assert [alert["node"]["name"] for alert in hook.alerts] == [name]
        assert "its jobs resume on other nodes" in hook.alerts[0]["text"]


def test_an_account_that_received_too_little(tmp_path, monkeypatch):
    hour = 3600 * SECOND
    rows = {
        ("vision", "ann"): LedgerRow(0, 0, 6 * hour, 10 * hour),
        ("vision", "bob"): LedgerRow(0, 0, 1 * hour, 0),
        ("speech", "cat"): LedgerRow(0, 0, 9 * hour, 10 * hour),
        ("new", "dan"): LedgerRow(0, 0, 0, hour // 2),
    }
    with HookServer() as accounts, HookServer() as users:
        rules = [
            {"on": "unfairness", "to": [accounts.url]},
            {"on": "unfairness", "users": ["ann", "cat"], "bound": 0.35, "to": [users.url]},
        ]
        with scene(tmp_path, json.dumps(rules)) as s:
            monkeypatch.setattr(s.plane, "fairness_ledger", lambda: FairnessLedger(rows=rows))
            s.check()
            until(lambda: accounts.alerts and users.alerts)
        text = "Account vision received 70% of the GPU time that it deserves (7.0 of 10.0 recent GPU hours)."
        assert [alert["text"] for alert in accounts.alerts] == [text]
        assert [alert["user"]["name"] for alert in users.alerts] == ["ann"]


def test_a_deadline_that_will_be_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(alert_conditions, "FORECAST_EVERY_S", 0.0)
    ends: dict[int, float | None] = {}
    asked = []

    async def forecast(now: float, state: bytes, rates: Any) -> dict[str, Any]:
        asked.append(len(state))
        if not ends:
            raise FairleadError("no forecast today")
        both = ((number, [0.0, end]) for number, end in ends.items())
        shared = {"horizon_s": 30 * 86_400.0, "blocked": False}
        jobs = [{"number": n, "with_arrivals": [turn] * 3, "without_arrivals": turn, **shared} for n, turn in both]
        guesses = {"unmeasured": [[unknown, "x"], [late, "x"]], "open_ended": [], "priors": [[late, 1.0]], "limited": []}
        return {"jobs": jobs, "completed": 8, **guesses}

    rules = json.dumps([{"on": "deadline", "bound": "10m", "users": ["ann"], "to": ["HOOK"]}])
    with HookServer() as hook, scene(tmp_path, rules.replace("HOOK", hook.url), forecast=forecast) as s:
        s.check()
        assert not asked, "no job has a deadline"
        [fine, late, never, short, unknown] = s.submit(5, deadline_s=3 * 3600.0)
        [over] = s.submit(1, deadline_s=0.0)
        [other] = s.submit(1, "bob", deadline_s=60.0)
        with pytest.raises(FairleadError, match="no forecast today"):
            s.check()
        ends |= {unknown: None, fine: 3600.0, late: 5 * 3600.0, never: None, short: 3 * 3600.0 + 300, over: 7000.0, other: 9e6}
        s.check()
        until(lambda: len(hook.alerts) == 3)
        texts = {alert["job"]["number"]: alert["text"] for alert in hook.alerts}
        assert set(texts) == {late, never, over}
        expected = "Job job-1 (number 1, user ann) will miss its deadline, in 3 h, by 2 h at this rate: it should end in 5 h."
        assert texts[late] == expected
        assert texts[never].endswith("will miss its deadline, in 3 h, at this rate: it should not end within 30 d.")
        assert "missed its deadline" in texts[over]
        s.check()
        assert not s.alerts.outboxes[0].waiting


MESSAGES = [
    AlertMessage(f"id-{n}", "job-ended", 1e9 + n, f"Job {n} ρ\nBcc: x", {}, user)
    for n, user in enumerate(("ann", "bob", "ann"))
]


def mail_to(address: str, folder: Path, server: MailServer, more: str = "tls: none") -> Mail:
    about = f"mail: {{host: 127.0.0.1, port: {server.port}, from: fairlead@x.org, {more}}}"
    (folder / "alerts.yaml").write_text(f"name: lab\nrules: [{{on: job-ended, to: ['mailto:{address}']}}]\n{about}\n")
    settings = read_alerts(folder / "alerts.yaml")
    assert settings.mail is not None
    return Mail(address, settings.mail, "lab")


def test_mail_with_starttls_and_a_password(tmp_path):
    authority, certificate, key = certificates(tmp_path)
    (tmp_path / "password").write_text("pass word\n")
    login = "user: me, password_file: password"
    with MailServer((certificate, key), ("me", "pass word")) as server:
        assert mail_to("ops@x.org", tmp_path, server, f"ca_file: {authority.name}, {login}").send(MESSAGES) == 0
        [(recipient, mail)] = server.mails
        assert (recipient, mail["From"], mail["To"]) == ("ops@x.org", "fairlead@x.org", "ops@x.org")
        assert mail["Subject"] == "[lab] 3 alerts: Job 0 ρ Bcc: x"
        assert mail["Bcc"] is None
        assert mail.get_content().count("Job ") == 3
        with pytest.raises(DeliveryFailed, match="CERTIFICATE_VERIFY_FAILED") as problem:
            mail_to("ops@x.org", tmp_path, server, login).send(MESSAGES)
        assert problem.value.again
        (tmp_path / "password").write_text("wrong")
        with pytest.raises(DeliveryFailed, match="SMTPAuthenticationError"):
            mail_to("ops@x.org", tmp_path, server, f"ca_file: {authority.name}, {login}").send(MESSAGES)
    with MailServer() as plain, pytest.raises(DeliveryFailed, match="STARTTLS"):
        mail_to("ops@x.org", tmp_path, plain, "tls: starttls").send(MESSAGES)


def test_mail_for_each_user_is_sent_once_though_one_recipient_has_to_be_tried_again(tmp_path):
    with MailServer() as server:
        channel = mail_to("{user}@x.org", tmp_path, server)
        server.codes = [250, 451]
        with pytest.raises(DeliveryFailed) as problem:
            channel.send(MESSAGES)
        assert problem.value.again
        assert channel.send(MESSAGES) == 0
        assert [recipient for recipient, _ in server.mails] == ["ann@x.org", "bob@x.org"]
        server.codes = [550]
        assert channel.send(MESSAGES) == 2, "a recipient that does not exist does not hold up the others"
        assert [recipient for recipient, _ in server.mails] == ["ann@x.org", "bob@x.org", "bob@x.org"]
        first, second = server.mails[1][1], server.mails[2][1]
        assert first["Message-ID"] == second["Message-ID"], "the same messages, the same mail"


def test_mail_that_was_accepted_is_delivered_though_the_connection_is_lost_then(tmp_path):
    with MailServer() as server:
        server.hangs_up = True
        channel = mail_to("ops@x.org", tmp_path, server)
        assert channel.send([AlertMessage("1", "test", 0.0, "once", {})]) == 0
        assert len(server.mails) == 1


def test_https_is_verified_and_a_redirect_is_not_followed(tmp_path):
    authority, certificate, key = certificates(tmp_path)
    with HookServer(certificate=(certificate, key)) as hook:
        text = f"rules: [{{on: job-ended, to: ['{hook.url}']}}]\nwebhook: {{timeout: 30s"
        (tmp_path / "alerts.yaml").write_text(text + "}\n")
        with pytest.raises(DeliveryFailed, match="CERTIFICATE_VERIFY_FAILED"):
            Webhook(hook.url, read_alerts(tmp_path / "alerts.yaml").webhook, "lab").send(MESSAGES)
        (tmp_path / "alerts.yaml").write_text(f"{text}, ca_file: {authority.name}}}\n")
        channel = Webhook(hook.url, read_alerts(tmp_path / "alerts.yaml").webhook, "lab")
        assert channel.send(MESSAGES) == 0
        assert "fairlead-signature" not in hook.requests[0][0]
        hook.statuses = [307]
        with pytest.raises(DeliveryFailed, match="redirects are not followed"):
            channel.send(MESSAGES)
        assert hook.asked == 2


def test_a_target_that_never_answers_is_given_up_after_the_timeout(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        (tmp_path / "alerts.yaml").write_text(f"rules: [{{on: job-ended, to: ['{url}']}}]\nwebhook: {{timeout: 0.2s}}\n")
        with pytest.raises(DeliveryFailed, match="ReadTimeout") as problem:
            Webhook(url, read_alerts(tmp_path / "alerts.yaml").webhook, "lab").send(MESSAGES)
        assert problem.value.again
