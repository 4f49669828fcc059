"""`fairlead serve` as a process: its log, its metrics, its scheduler file, and another scheduler while it runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from cluster_up import LOG, until
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.schedulers import read_scheduler
from fairlead.core import events as ev
from fairlead.journal.recovery import read_journal
from foundry import PATIENCE_S, Running, free_port, running


def lines(folder: Path) -> list[dict[str, Any]]:
    """What it has logged so far, the first remark left out: that is for people."""
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines() if line.startswith("{")]


@contextlib.contextmanager
def serving(folder: Path, *words: str, end: int = signal.SIGINT) -> Iterator[tuple[Running, str]]:
    http = f"127.0.0.1:{free_port()}"
    (folder / LOG).unlink(missing_ok=True)
    addresses = ("--http", http, "--agents", f"127.0.0.1:{free_port()}")
    command = ("serve", "--cluster", "2xv100:2", "--root", "root", *words, *addresses, "--log-format", "json")
    with running(folder, *command, log=LOG, end=end) as process:

        def answers() -> bool:
            assert process.poll() is None, (folder / LOG).read_text()[-2000:]
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://{http}/v1/health", verify=False).status_code == 200
            return False

        until(answers, folder)
        yield process, f"http://{http}"
    assert "Traceback" not in (folder / LOG).read_text()


@contextlib.contextmanager
def person(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Somebody at a command line, with the admin's token."""
    with monkeypatch.context() as here:
        here.setenv("FAIRLEAD_URL", url)
        here.setenv("FAIRLEAD_TOKEN", (folder / "root" / "admin.token").read_text())
        yield lambda *words: CliRunner().invoke(app, ["scheduler", *words])


def test_the_scheduler_is_followed_and_switched(tmp_path, monkeypatch):
    file = tmp_path / "scheduler.yaml"
    file.write_text("policy: las\nrounds: 1\n")
    with (
        serving(tmp_path, "--config", "scheduler.yaml", "--metrics-open") as (process, url),
        person(tmp_path, url, monkeypatch) as scheduler,
    ):
        assert "policy: las" in scheduler("show").stdout
        file.write_text("policy: lass\n")
        process.send_signal(signal.SIGHUP)
        refused = until(lambda: [line for line in lines(tmp_path) if "refused" in line["event"]], tmp_path)
        assert "did you mean 'las'" in refused[0]["why"]
        file.write_text("policy: fifo\nrounds: 2\n")
        process.send_signal(signal.SIGHUP)
        switched = until(lambda: [line for line in lines(tmp_path) if line["event"] == "scheduler switched"], tmp_path)
        assert (switched[0]["policy"], switched[0]["why"]) == ("fifo", "SIGHUP")
        told = {family.name for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text)}
        assert {"fairlead_jobs", "fairlead_decision_seconds", "fairlead_http_requests"} <= told
        another = scheduler("set", "--policy", "srtf", "--why", "a test", "--json")
        assert another.exit_code == 0, another.output
        assert "policy: srtf" in (shown := scheduler("show").stdout)
        assert "rounds: 2\n" in shown, "what is not named stays"
        assert "unknown policy 'nonsense'" in str(scheduler("set", "--policy", "nonsense").exception)
        assert "scheduler file" in str(scheduler("set").exception)
        assert scheduler("set", "--preset", "pollux", "--round", "3", "--why", "a preset").exit_code == 0
        shown = scheduler("show").stdout
        assert "policy: {name: pollux, power: -1, restart_s: 30}\n" in shown, "as people write it"
        (tmp_path / "shown.yaml").write_text(shown)
        told = json.loads(scheduler("show", "--json").stdout)["scheduler"]
        assert read_scheduler(tmp_path / "shown.yaml").to_data() == told, "and as a file that can be given again"
        assert (told["policy"]["name"], told["estimator"], told["rounds"]) == ("pollux", "measured", 3.0)
        assert "unknown preset 'polux'; did you mean 'pollux'" in str(scheduler("set", "--preset", "polux").exception)
        both = scheduler("set", str(file), "--preset", "pollux").exception
        assert "either a scheduler file or --preset" in str(both)
    told = [(line["event"], line.get("policy")) for line in lines(tmp_path) if line["event"].startswith("scheduler ")]
    assert told[0][0].startswith("scheduler refused"), "at the first start there is nothing to be unchanged"
    assert ("scheduler switched", "pollux") in told, "by its name, whatever its parameters"
    log = (tmp_path / LOG).read_text()
    assert not any((tmp_path / "root" / f"{role}.token").read_text() in log for role in ("admin", "agent"))
    with (
        serving(tmp_path, "--config", "scheduler.yaml", end=signal.SIGTERM) as (process, url),
        person(tmp_path, url, monkeypatch) as scheduler,
    ):
        until(lambda: "policy: fifo" in scheduler("show").stdout, tmp_path)
    assert process.returncode == 0
    journal = read_journal(str(tmp_path / "root" / "journal.sqlite"))
    switches = [(event.scheduler["policy"], event.why) for event in journal if isinstance(event, ev.SchedulerSwitched)]
    pollux = {"name": "pollux", "power": -1, "restart_s": 30}
    assert switches == [("fifo", "SIGHUP"), ("srtf", "a test"), (pollux, "a preset"), ("fifo", "--config")]


def test_a_later_start_names_options_without_effect_and_a_root_that_others_can_read(tmp_path):
    with serving(tmp_path, "--policy", "fifo", "--round", "2"):
        assert "no effect" not in (tmp_path / LOG).read_text()
    assert (tmp_path / "root" / "journal.sqlite").stat().st_mode & 0o777 == 0o600
    assert not [line for line in lines(tmp_path) if "can read" in line["event"]]
    with serving(tmp_path, "--policy", "fifo", "--round", "2"):
        told = (tmp_path / LOG).read_text()
        assert "no effect" not in told, "they are those of the journal"
        assert "differs from --cluster" not in told
    (tmp_path / "root").chmod(0o755)
    with serving(tmp_path, "--policy", "las", "--round", "2", "--cluster", "4xv100:2"):
        told = (tmp_path / LOG).read_text()
        assert "no effect: --policy; the scheduler in the journal has other values" in told
        assert "cluster: 2 × v100, as in the journal, which differs from --cluster; `fairlead nodes add`" in told
    (warning,) = [line for line in lines(tmp_path) if line["event"] == "other users of this machine can read --root"]
    assert warning["fix"] == "chmod 700 root"


def test_only_their_owner_reads_the_files_of_a_control_plane(tmp_path):
    def modes() -> dict[str, int]:
        found = {}
        for path in (tmp_path / "root").rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a draft that has its name by now
                if stat.S_ISREG(mode := path.stat().st_mode):
                    found[path.relative_to(tmp_path / "root").as_posix()] = mode & 0o777
        return found

    archive = b"PK\x05\x06" + bytes(18)
    digest = hashlib.sha256(archive).hexdigest()
    with serving(tmp_path, "--round", "2") as (_, url):
        token = (tmp_path / "root" / "admin.token").read_text()
        sent = httpx.put(f"{url}/v1/code/{digest}", content=archive, headers={"authorization": f"Bearer {token}"})
        assert sent.is_success, sent.text
        until(lambda: {"alive", "origin"} <= {Path(name).name for name in modes()}, tmp_path)
        found = modes()
    written = {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "journal.sqlite.lock", "tokens.json"}
    assert {*written, "admin.token", "agent.token"} <= found.keys()
    assert any(digest in name for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode != 0o600} == {}
    # Jobs that a root agent starts as other users pass through to their checkpoints.
    assert (tmp_path / "root").stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
    assert (tmp_path / "root" / "code").stat().st_mode & 0o077 == 0
    (tmp_path / "root" / "journal.sqlite").chmod(0o644)
    with serving(tmp_path, "--round", "2"):
        assert {mode for name, mode in modes().items() if name.startswith("journal.sqlite")} == {0o600}
