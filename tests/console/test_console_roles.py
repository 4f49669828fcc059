"""The console in a browser for a user who is no admin: other users' jobs have no names, and what needs an admin is not offered.
Needs chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import reading  # noqa: F401, lets `serving` be found
from serving import Served, served

from browser import CHROMIUM, Browser
from fairlead.runtime.http_client import ControlPlaneClient

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine to open the console in")


@pytest.fixture
def control() -> Iterator[Served]:
    with served("v100:4", console=True) as one:
        yield one


def test_a_user_sees_and_changes_own_jobs_only(control: Served, tmp_path: Path) -> None:
    ControlPlaneClient(control.url, control.token).submit([{"name": "secret", "run": "true"}])
    ControlPlaneClient(control.url, control.user).submit([{"name": "mine", "run": "true"}])
    with Browser(tmp_path / "profile") as browser:
        browser.open(control.url)
        browser.wait("!!document.querySelector('#token')")
        browser.type("#token", control.user)
        browser.press("Enter")
        browser.wait("document.querySelector('.tiles').dataset.waiting === '2'")
        browser.run("location.hash = 'queue'")
        browser.wait("document.querySelector('#queue-table').dataset.rows === '2'")
        shown = browser.run("document.querySelector('#queue-table').textContent")
        assert "mine" in shown
        assert "secret" not in shown
        browser.run("location.hash = 'job/1'")
        browser.wait("!!document.querySelector('#job [data-action=cancel]')")
        browser.run("location.hash = 'job/0'")
        browser.wait("document.querySelector('main .problem').textContent !== ''", "another user's job is not found")
        assert "secret" not in browser.run("document.querySelector('main').textContent")
        browser.run("location.hash = 'nodes'")
        browser.wait("document.querySelector('#nodes-table').dataset.rows === '1'")
        assert browser.run("document.querySelectorAll('#nodes-table .row.link').length") == 0
        browser.run("location.hash = 'scheduler'")
        browser.wait("document.querySelector('#scheduler').dataset.policy === 'las'")
        assert browser.run("document.querySelector('#switch')") is None
        expected = ("/console/session", "/v1/jobs/0", "/v1/jobs/0/logs?rank=0&offset=-65536")
        assert [
            one for one in browser.errors if not (one.startswith("Failed to load resource") and one.endswith(expected))
        ] == []
