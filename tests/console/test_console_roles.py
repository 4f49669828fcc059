"""The console in a browser for a user who is no admin: other users' jobs have no names, also in what-ifs, and what needs an
admin is not offered. Needs chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import reading  # noqa: F401, lets `serving` be found
from serving import Served, filled, served

from browser import CHROMIUM, Browser
from fairlead.engine.interference_monitor import InterferenceRecord
from fairlead.runtime.http_client import ControlPlaneClient

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine to open the console in")


@pytest.fixture
def control() -> Iterator[Served]:
    with served("v100:4", console=True) as one:
        yield one


def sign_in(browser: Browser, control: Served) -> None:
    browser.open(control.url)
    browser.wait("!!document.querySelector('#token')")
    browser.type("#token", control.user)
    browser.press("Enter")
    browser.wait("document.querySelector('main').dataset.view === 'cluster'")


def test_a_user_asks_what_if_and_finds_the_smallest_change(control: Served, tmp_path: Path) -> None:
    filled(control)  # two jobs of an admin, and a user's job behind them
    with Browser(tmp_path / "profile") as browser:
        sign_in(browser, control)
        browser.run("location.hash = 'job/2'")
        again = "(() => { const b = document.querySelector('#fix button'); if (!b.disabled) b.click(); })()"
        browser.wait(  # on a busy machine, the seconds of one search may not suffice
            "/Add .* v100/.test(document.querySelector('#fix tbody').textContent)",
            "the smallest change is found",
            also=lambda: browser.run(again),
        )
        browser.run("location.hash = 'whatif'")
        browser.wait("!!document.querySelector('#simulate')")
        browser.type("#whatif-quotas", "root=2")
        browser.click("#simulate")
        browser.wait("document.querySelector('main').textContent.includes('need an admin token')", "not another user's quota")
        browser.type("#whatif-quotas", "")
        browser.press("Backspace")
        browser.type("#whatif-add", "4xv100:4")
        browser.click("#simulate")
        browser.wait("document.querySelectorAll('#whatif-metrics tbody tr').length > 3", "the what-if is answered")
        cells = "[...document.querySelectorAll('#whatif-starts tbody td')].map((one) => one.textContent)"
        assert browser.run(cells)[0] == "mine"
        browser.wait("document.querySelectorAll('#whatif-timelines canvas').length === 2")
        page = browser.run("document.querySelector('main').textContent")
        assert "other users" in page
        assert not [word for word in ("secret", "next", "root") if word in page]
        refused = ("/console/session", "/v1/whatif", "/fix")
        assert [one for one in browser.errors if not (one.startswith("Failed to load") and one.endswith(refused))] == []


def test_a_user_sees_and_changes_own_jobs_only(control: Served, tmp_path: Path) -> None:
    ControlPlaneClient(control.url, control.token).submit([{"name": "secret", "run": "true"}])
    ControlPlaneClient(control.url, control.user).submit([{"name": "mine", "run": "true"}])
    with Browser(tmp_path / "profile") as browser:
        sign_in(browser, control)
        browser.wait("document.querySelector('.tiles').dataset.waiting === '2'")
        browser.run("location.hash = 'queue'")
        browser.wait("document.querySelector('#queue-table').dataset.rows === '2'")
        shown = browser.run("document.querySelector('#queue-table').textContent")
        assert "mine" in shown
        assert "secret" not in shown
        browser.run("location.hash = 'job/1'")
        browser.wait("!!document.querySelector('#job [data-action=cancel]')")
        browser.wait("/Next decision in [^–]*\\./.test(document.querySelector('main').textContent)", "no time that is unknown")
        browser.run("location.hash = 'job/0'")
        browser.wait("document.querySelector('main .problem').textContent !== ''", "another user's job is not found")
        assert "secret" not in browser.run("document.querySelector('main').textContent")
        browser.run("location.hash = 'fairness'")
        browser.wait("document.querySelector('#usage').textContent.includes('GPU hours')")
        assert "share" not in browser.run("document.querySelector('#usage').textContent"), "of the cluster: it is not known"
        browser.run("location.hash = 'timeline'")
        browser.wait("document.querySelector('.canvas-box canvas').dataset.bars !== undefined")
        assert "not known" not in browser.run("document.querySelector('main').textContent"), "the journal has all events"
        browser.run("location.hash = 'nodes'")
        browser.wait("document.querySelector('#nodes-table').dataset.rows === '1'")
        assert browser.run("document.querySelectorAll('#nodes-table .row.link').length") == 0
        control.plane.loop.state.interference = InterferenceRecord(
            {1: (0.0, 1.84)}, frozenset({(0, 1)}), [(5.0, 1, 3.0)], count=1
        )
        browser.run("location.hash = 'scheduler'")
        browser.wait("document.querySelector('#scheduler').dataset.policy === 'las'")
        assert browser.run("document.querySelector('#switch')") is None
        browser.wait("document.querySelector('#interference').dataset.pairs === '1'")
        monitor = browser.run("document.querySelector('#interference').textContent")
        assert "mine1.84 ×" in monitor
        assert "#0, of another user" in monitor
        expected = ("/console/session", "/v1/jobs/0", "/v1/jobs/0/logs?rank=0&offset=-65536")
        assert [
            one for one in browser.errors if not (one.startswith("Failed to load resource") and one.endswith(expected))
        ] == []
