"""The console in a real browser, on a real cluster of processes with simulated GPUs (`fairlead up`): an operator signs in,
watches a job, follows its log, drains a node, runs a what-if and switches the scheduler with a preview. Needs chromium."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))

from cluster_at_work import ClusterAtWork

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine to open the console in"),
]

TALKS = """
import fairlead, sys, time
steps = fairlead.lease(range(int(sys.argv[1])))
for step in steps:
    if step in (0, 30):
        steps.batch_size = 64 if step == 0 else 128
    print("step", step, flush=True)
    fairlead.report(loss=1 / (1 + step))
    time.sleep(0.1)
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as one:
        yield one


def text(browser: Browser, selector: str = "main") -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))


def sign_in(browser: Browser, cluster: ClusterAtWork) -> None:
    browser.open(f"http://127.0.0.1:{cluster.http}/")
    browser.wait("!!document.querySelector('#token')")
    browser.type("#token", "not-a-token")
    browser.click("#sign-in button")
    browser.wait("document.querySelector('#sign-in .problem').textContent !== ''")
    assert "not valid" in text(browser, "#sign-in .problem")
    browser.type("#token", (cluster.root / "plane" / "admin.token").read_text())
    browser.click("#sign-in button")
    browser.wait("document.querySelector('main').dataset.view === 'cluster'")
    assert "fairlead_session" not in browser.run("document.cookie"), "no script can read the session"


def confirm(browser: Browser, **fields: str) -> None:
    """Fills the dialog in and confirms it."""
    browser.wait("document.querySelector('#dialog').open")
    for name, value in fields.items():
        browser.type(f"#field-{name}", value)
    browser.click("#dialog button.primary")
    browser.wait("!document.querySelector('#dialog').open", "the dialog closes")


def what_if(browser: Browser, cluster: ClusterAtWork) -> None:
    """With four more GPUs, the job that waits would start at the next decision."""
    browser.click("nav a[href='#whatif']")
    browser.wait("!!document.querySelector('#simulate')")
    browser.type("#whatif-remove", "v100-7")
    browser.click("#simulate")
    browser.wait("document.querySelector('#whatif-remove').getAttribute('aria-invalid') === 'true'")
    assert "v100-7" in text(browser, "#whatif-remove-problem")
    browser.type("#whatif-remove", "")
    browser.press("Backspace")
    browser.type("#whatif-add", "4xv100:2")
    browser.type("#whatif-scenarios", "2")
    browser.click("#simulate")
    browser.wait("document.querySelectorAll('#whatif-metrics tbody tr').length > 3", "the what-if is answered")
    cells = "[...document.querySelectorAll('#whatif-starts tbody td')].map((one) => one.textContent)"
    name, before, after = browser.run(cells)
    assert name == "second"
    assert after == "now" or after.endswith(" s"), "at the next decision"
    assert before != after
    bars = "[...document.querySelectorAll('#whatif-timelines canvas')].map((one) => one.dataset.bars)"
    browser.wait(f"(([before, after]) => before >= 1 && after >= 2)({bars})", "both timelines are drawn")
    assert cluster.nodes().keys() == {"v100-0", "v100-1"}, "the cluster has not changed"


def test_an_operator_works_with_a_cluster_in_the_console(tmp_path: Path, browser: Browser) -> None:
    with ClusterAtWork(tmp_path, "4xv100:2", policy="fifo", embedded=True) as cluster:
        cluster.until_up()
        sign_in(browser, cluster)
        browser.wait("document.querySelector('.tiles-box canvas').dataset.gpus === '4'")

        # A job that waits behind another one, runs, and is done; the page is never loaded again.
        cluster.submit(cluster.job("first", 4000, 0.5, workers=4))
        cluster.submit({**cluster.job("second", 60, 0.1), "run": [sys.executable, "-c", TALKS, "60"]})
        del cluster._about["second"]
        browser.wait("(({ running, waiting }) => running === '1' && waiting === '1')(document.querySelector('.tiles').dataset)")
        browser.click("nav a[href='#queue']")
        browser.wait("document.querySelector('#queue-table').dataset.rows === '1'")
        browser.wait("document.querySelector('#queue-table .row').textContent.includes('Waiting')")
        browser.click("#queue-table .row")
        browser.wait("['waiting', 'queued'].includes(document.querySelector('#job')?.dataset.state)")
        browser.wait("document.querySelector('#reason').textContent.includes('GPU')")
        again = "(() => { const b = document.querySelector('#fix button'); if (!b.disabled) b.click(); })()"
        browser.wait(  # on a busy machine, the seconds of one search may not suffice
            "document.querySelector('#fix tbody').textContent.includes('Add a node with 1 × v100')",
            "the smallest change is found",
            also=lambda: browser.run(again),
        )
        what_if(browser, cluster)
        browser.run(f"location.hash = 'job/{cluster.jobs()['second']['number']}'")
        browser.wait("['waiting', 'queued'].includes(document.querySelector('#job')?.dataset.state)")
        cluster.hurry("first")
        browser.wait("['running', 'finished'].includes(document.querySelector('#job').dataset.state)")
        browser.wait("document.querySelector('.log').textContent.includes('step 3')", "the log follows")
        browser.wait("document.querySelector('#job').dataset.state === 'finished'")
        browser.wait("document.querySelector('.log').textContent.includes('step 59')", "the whole log is there")
        browser.wait("document.querySelector('#metrics figcaption').textContent.startsWith('loss')")
        browser.wait("document.querySelector('#metrics path.line').getAttribute('d').includes('L')", "a curve with points")
        browser.wait("document.querySelectorAll('#launches tbody tr').length === 1")

        # A job that changes its batch size and is requeued while it runs has marks on its curves.
        cluster.submit({**cluster.job("again", 9000, 0.1), "run": [sys.executable, "-c", TALKS, "9000"]}, ends="cancelled")
        del cluster._about["again"]
        browser.run(f"location.hash = 'job/{cluster.jobs()['again']['number']}'")
        browser.wait("document.querySelector('#job').dataset.state === 'running'")
        browser.wait("document.querySelector('#metrics').dataset.events === 'batch'")
        browser.click("[data-action=requeue]")
        confirm(browser)
        browser.wait("document.querySelectorAll('#launches tbody tr').length === 2")
        browser.wait("document.querySelector('#metrics').dataset.events.includes('preempted')")
        browser.click("[data-action=cancel]")
        confirm(browser)
        browser.wait("document.querySelector('#job').dataset.state === 'cancelled'")

        # A job is held, released, moved up and cancelled.
        cluster.submit(cluster.job("wide", 4000, 0.5, workers=4))
        cluster.submit(cluster.job("held", 5000, 0.05, workers=4), ends="cancelled")
        number = cluster.jobs()["held"]["number"]
        browser.run(f"location.hash = 'job/{number}'")
        browser.click("[data-action=hold]")
        confirm(browser)
        browser.wait("document.querySelector('#job').dataset.state === 'held'")
        browser.click("[data-action=release]")
        confirm(browser)
        browser.wait("document.querySelector('#job').dataset.state !== 'held'")
        browser.click("[data-action=update]")
        confirm(browser, priority="7")
        browser.wait("document.querySelector('#job').textContent.includes('priority7')")
        assert cluster.jobs()["held"]["priority"] == 7
        browser.click("[data-action=cancel]")
        confirm(browser)
        browser.wait("document.querySelector('#job').dataset.state === 'cancelled'")
        cluster.hurry("wide")

        # A node is drained and used again.
        browser.click("nav a[href='#nodes']")
        browser.wait("document.querySelector('#nodes-table').dataset.rows === '2'")
        browser.click("#nodes-table .row")
        confirm(browser, reason="a fan is broken")
        browser.wait("document.querySelector('#nodes-table .row').textContent.includes('drained')")
        assert [node["drain"]["reason"] for node in cluster.nodes().values() if node["drained"]] == ["a fan is broken"]
        browser.click("#nodes-table .row")
        confirm(browser)
        browser.wait("!document.querySelector('#nodes-table').textContent.includes('drained')")

        # The scheduler is switched; an unknown policy is refused, with the reason in the dialog.
        browser.click("nav a[href='#scheduler']")
        browser.wait("document.querySelector('#scheduler').dataset.policy === 'fifo'")
        browser.click("#switch")
        browser.wait("document.querySelector('#dialog').open")
        browser.type("#field-policy", "lass")
        browser.type("#field-why", "try another")
        browser.click("#dialog button.primary")
        browser.wait("document.querySelector('#dialog .problem').textContent.includes('las')")
        browser.type("#field-policy", "las")
        browser.click("#preview")
        browser.wait("document.querySelectorAll('#dialog .preview tbody tr').length > 3", "the switch is previewed")
        assert text(browser, "#scheduler").startswith("fifo"), "a preview switches nothing"
        confirm(browser, policy="las")
        browser.wait("document.querySelector('#scheduler').dataset.policy === 'las'")
        assert "las" in str(cluster.ask("GET", "/v1/scheduler")["scheduler"]["policy"])
        browser.wait("document.querySelectorAll('#decision-times tbody tr').length > 0")

        for view, drawn in {"timeline": ".canvas-box canvas[data-bars]", "fairness": "#usage tbody tr"}.items():
            browser.click(f"nav a[href='#{view}']")
            browser.wait(f"!!document.querySelector({json.dumps(drawn)})")
        browser.wait("document.querySelector('.sign-out, #sign-out').hidden === false")
        browser.click("#sign-out")
        browser.wait("document.querySelector('main').dataset.view === 'sign-in'")
        assert cluster.until_all_ended()

        here = f"http://127.0.0.1:{cluster.http}/"
        assert [url for url in browser.requests if not url.startswith((here, "data:", "about:"))] == []
        # A browser notes each refusal: before the sign-in, of the wrong token, of what is unknown, of a search that had too
        # little time; and nothing else.
        refused = ("/console/session", "/console/sign-in", "/v1/scheduler", "/v1/whatif", "/fix")
        assert [
            one for one in browser.errors if not (one.startswith("Failed to load resource") and one.endswith(refused))
        ] == []
