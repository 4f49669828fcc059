"""The page of the console in a real browser, against an invented cluster: every view at every width, hostile names, lost
connections, the keyboard, and a cluster of 5,000 nodes. Needs chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_console import FakeConsole, InventedCluster

from alert_receivers import until
from browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine to open the console in"),
]

VIEWS = ("cluster", "timeline", "queue", "fairness", "scheduler", "whatif", "nodes")
EVIL = "<img src=x onerror=alert(1)><b>bold</b>"
SHOWN = {  # what each view has drawn when it is ready
    "cluster": "document.querySelector('.tiles-box canvas').dataset.gpus > 0 && document.querySelector('#queue-chart path')",
    "timeline": "document.querySelector('.canvas-box canvas').dataset.bars > 0",
    "queue": "document.querySelector('#queue-table').dataset.rows > 0 && document.querySelector('#queue-table .row')",
    "fairness": "document.querySelectorAll('#usage tbody tr').length === 5",
    "scheduler": "document.querySelector('#scheduler').dataset.policy && document.querySelector('#decision-times td')",
    "whatif": "document.querySelector('#whatif-form #simulate')",
    "nodes": "document.querySelector('#nodes-table').dataset.rows > 0 && document.querySelector('#nodes-table .row')",
}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as one:
        yield one


def shown(browser: Browser, view: str, at: str = "") -> None:
    """Goes to a view, and waits until it is drawn."""
    browser.run(f"location.hash = '{view}'")
    browser.wait(f"document.querySelector('main').dataset.view === '{view}' && !!({SHOWN[view]})", f"{view} {at}")


def clean(browser: Browser, server: FakeConsole) -> None:
    """Nothing was thrown or refused by the content policy, and no request left for elsewhere."""
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith((server.url, "data:", "about:"))] == []


def test_every_view_is_drawn_and_fits_at_every_width(browser: Browser) -> None:
    with FakeConsole(InventedCluster(12, 60), 3, 3) as server:
        browser.open(server.url)
        for width in (1440, 1024, 390):
            browser.resize(width, mobile=width < 500)
            for view in VIEWS:
                shown(browser, view, f"at {width}")
                over = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert over <= 0, f"{view} is too wide at {width}"
        browser.click("#theme")
        assert browser.run("document.documentElement.dataset.theme") == "dark"
        clean(browser, server)


def job_in(cluster: InventedCluster, state: str) -> int:
    return next(int(job[0]) for job in cluster.jobs if job[5] == state)


def page_of_job(browser: Browser, server: FakeConsole, state: str) -> None:
    browser.run(f"location.hash = 'job/{job_in(server.cluster, state)}'")
    browser.wait(f"document.querySelector('#job').dataset.state === '{state}'")


def test_the_metrics_of_a_job_are_curves_with_what_happened_to_it(browser: Browser) -> None:
    cluster = InventedCluster(12, 60)
    with FakeConsole(cluster, 0, 0) as server:
        browser.open(server.url)
        for width in (1440, 390):
            browser.resize(width, mobile=width < 500)
            page_of_job(browser, server, "running")
            browser.wait("document.querySelector('#metrics').dataset.curves === '5'")
            assert browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
            browser.run("location.hash = 'queue'")
            browser.wait("document.querySelector('main').dataset.view === 'queue'")
        page_of_job(browser, server, "running")
        browser.wait("document.querySelector('#metrics').dataset.curves === '5'")
        titles = "[...document.querySelectorAll('#metrics figcaption')].map((one) => one.firstChild.textContent)"
        assert browser.run(titles) == ["loss", "accuracy", "learning_rate", "batch_size", "GPU utilization"]
        first = "document.querySelector('#metrics figure')"
        kinds = f"[...{first}.querySelectorAll('.event')].map((one) => one.classList[1])"
        assert browser.run(kinds) == ["preempted", "moved", "resized", "batch", "batch"]
        assert browser.run("document.querySelector('#metrics .keys').textContent") == (
            "preempted or requeuedmoved to other GPUsresizedbatch size changed"
        )
        pieces = f"{first}.querySelector('path.line').getAttribute('d').split('M').length - 1"
        assert browser.run(pieces) == 1, "along steps, work that was done again is there once"
        browser.run(
            "(() => { const s = document.querySelector('#metrics select'); s.value = 'time'; s.onchange?.();"
            " s.dispatchEvent(new Event('change')); })()"
        )
        assert browser.run(pieces) == 2, "along time there is a gap while it waited"
        titles = f"[...{first}.querySelectorAll('.event title')].map((one) => one.textContent.split(',').slice(0, -1).join())"
        assert browser.run(titles)[2:4] == ["resized, then 2 × v100", "batch size 64 to 128"]
        clean(browser, server)


def test_what_was_predicted_of_a_job_is_beside_what_was_measured(browser: Browser) -> None:
    with FakeConsole(InventedCluster(12, 60), 0, 0) as server:
        browser.open(server.url)
        page_of_job(browser, server, "running")
        pairs = "[...document.querySelectorAll('#job .facts div')].map((one) => [...one.children].map((c) => c.textContent))"
        shown = f"Object.fromEntries({pairs})"
        facts = browser.run(shown)
        assert {name: text for name, text in facts.items() if "predict" in name} == {
            "predicted for": "v100",
            "predicted utilization": "38.0 % (31.0 to 44.0), measured 40.0 %",
            "predicted memory": "at most 11.4 GB, measured 12.5 GB",
            "predicted speed": "9.7 steps/s (8.1 to 11.6)",
            "prediction": "it uses more memory",
        }
        page_of_job(browser, server, "waiting")
        assert not [name for name in browser.run(shown) if "predict" in name]
        clean(browser, server)


def test_the_smallest_change_that_would_start_a_job_is_searched_when_asked(browser: Browser) -> None:
    with FakeConsole(InventedCluster(12, 60), 0, 0) as server:
        browser.open(server.url)
        page_of_job(browser, server, "running")
        assert browser.run("document.querySelector('#fix').hidden")
        page_of_job(browser, server, "waiting")
        browser.wait("document.querySelector('#fix').hidden === false")
        assert not [url for url in browser.requests if url.endswith("/fix")], "the search is not for free"
        browser.run("document.querySelector('#fix button').focus()")
        browser.press("Enter")
        browser.wait("document.querySelector('#fix').dataset.state === 'found'")
        rows = "[...document.querySelectorAll('#fix tbody tr')].map((row) => row.lastChild.textContent)"
        several = (
            "train-7 (bob) beyond the simulation, train-6 (bob) by 6.0 min, train-5 (bob) by 5.0 min, train-4 (bob) by 4.0 min"
        )
        assert browser.run(rows) == ["no job", f"{several}, and 3 more jobs", "not simulated"]
        assert "jobs that would have to end" in browser.run("document.querySelector('#fix').textContent")
        clean(browser, server)


def fill(browser: Browser, **values: str) -> None:
    for name, value in values.items():
        if name == "kind":
            script = f"(() => {{ const s = document.querySelector('#whatif-kind'); s.value = '{value}';"
            browser.run(f"{script} s.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()")
        else:
            browser.type(f"#whatif-{name}", value)


def asked(server: FakeConsole) -> list[dict[str, object]]:
    return [json.loads(body) for _, path, body in server.changed if path == "/v1/whatif"]


def test_a_what_if_shows_progress_differences_and_both_timelines(browser: Browser) -> None:
    with FakeConsole(InventedCluster(12, 60), 0, 0) as server:
        browser.open(server.url)
        shown(browser, "whatif")
        fill(browser, kind="policy", policy="las:by=time", round_s="30", add="16xh200:8", remove="node-00001, node-00002")
        fill(browser, quotas="bob=4, eva = 8", weights="bob=2.5", without="17 train-00003", arrivals="20", scenarios="3")
        fill(browser, node="node-00004", **{"in": "30m", "for": "4h"})
        server.may_answer.clear()
        browser.press("Enter")
        browser.wait("document.querySelector('.working').hidden === false && document.querySelector('#simulate').disabled")
        assert "Simulating" in browser.run("document.querySelector('.working').textContent")
        server.may_answer.set()
        browser.wait("!!document.querySelector('#whatif-timelines canvas[data-bars]')")
        assert asked(server) == [
            {
                "scheduler": {"policy": "las:by=time"},
                "round_s": 30,
                "add": "16xh200:8",
                "remove": ["node-00001", "node-00002"],
                "quotas": {"bob": 4, "eva": 8},
                "weights": {"bob": 2.5},
                "without": ["17", "train-00003"],
                "arrivals": 1.2,
                "scenarios": 3,
                "timelines": True,
                "faults": [{"node": "node-00004", "in_s": 1800, "for_s": 14400}],
            }
        ]
        row = "(id, n) => [...document.querySelectorAll(`#${id} tbody tr`)].map((one) => one.children[n].textContent)"
        assert browser.run(f"({row})('whatif-metrics', 4)") == ["better", "unclear", "better", "worse", "the same"]
        assert browser.run(f"({row})('whatif-metrics', 3)")[0] == "−10.0 min (−15.0 min to −5.0 min)"
        assert browser.run(f"({row})('users-gain', 0)") == ["ann", "bob"]
        assert browser.run(f"({row})('users-pay', 0)") == ["eva", "dan"]
        bars = "[...document.querySelectorAll('#whatif-timelines canvas')].map((one) => [one.dataset.rows, one.dataset.from])"
        browser.wait(f"(([one, other]) => one[0] === '25' && one[1] === other[1])({bars})")
        browser.run("document.querySelectorAll('#whatif-timelines canvas')[1].focus()")
        before = browser.run(bars)
        browser.press("ArrowDown")
        browser.run("document.querySelector('#whatif-timelines [aria-label=\"Zoom in\"]').click()")
        browser.wait(f"(([one, other]) => one[1] !== '{before[0][1]}' && one[1] === other[1])({bars})", "both move together")
        for width in (1440, 1024, 390):
            browser.resize(width, mobile=width < 500)
            browser.wait(f"innerWidth === {width}")
            assert browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        browser.run("document.querySelector('#jobs-gain a').click()")
        browser.wait("document.querySelector('main').dataset.view === 'job'")
        shown(browser, "whatif")
        browser.wait("!!document.querySelector('#whatif-metrics') && document.querySelector('#whatif-policy').value !== ''")
        clean(browser, server)


WRONG = [  # values of the form, the field with the error, and what it says
    ({}, "kind", "change something"),
    ({"quotas": "bob"}, "quotas", "USER=NUMBER"),
    ({"arrivals": "300"}, "arrivals", "100"),
    ({"node": "node-00001", "for": "long"}, "for", "30m or 4h"),
    ({"for": "1h"}, "node", "the node that fails"),
    ({"kind": "config", "config": "{"}, "config", "not JSON"),
    ({"kind": "policy", "policy": "lass"}, "policy", "did you mean 'las'?"),
    ({"remove": "ghost"}, "remove", "unknown node 'ghost'"),
    ({"add": "xh200"}, "add", "expected nodes such as"),
]


def test_an_error_of_a_what_if_is_shown_at_its_field(browser: Browser) -> None:
    with FakeConsole(InventedCluster(4, 10), 0, 0) as server:
        browser.open(server.url)
        shown(browser, "whatif")
        for values, field, says in WRONG:
            fill(browser, **values)
            browser.click("#simulate")
            browser.wait(f"document.querySelector('#whatif-{field}').getAttribute('aria-invalid') === 'true'")
            assert says in browser.run(f"document.querySelector('#whatif-{field}-problem').textContent")
            assert browser.run("document.activeElement.name") == field
            assert browser.run("document.querySelectorAll('[aria-invalid]').length") == 1
            browser.wait("!document.querySelector('#simulate').disabled")
            browser.run("[...document.querySelectorAll('#whatif-form button')].at(-1).click()")
            assert browser.run("document.querySelectorAll('[aria-invalid]').length") == 0


def test_a_what_if_can_be_stopped_and_another_one_asked(browser: Browser) -> None:
    with FakeConsole(InventedCluster(4, 10), 0, 0) as server:
        browser.open(server.url)
        shown(browser, "whatif")
        server.may_answer.clear()
        fill(browser, arrivals="-50")
        browser.click("#simulate")
        browser.wait("document.querySelector('#simulate').disabled")
        until(lambda: asked(server))
        browser.run("document.querySelector('#simulate + button').click()")
        browser.wait("!document.querySelector('#simulate').disabled && document.querySelector('.working').hidden")
        assert browser.run("document.querySelector('#whatif-result').textContent") == ""
        server.may_answer.set()
        browser.click("#simulate")
        browser.wait("!!document.querySelector('#whatif-metrics')")
        assert [one["arrivals"] for one in asked(server)] == [0.5, 0.5]
        assert browser.errors == []


def test_a_switch_of_the_scheduler_is_previewed(browser: Browser) -> None:
    with FakeConsole(InventedCluster(4, 10), 0, 0) as server:
        browser.open(server.url)
        shown(browser, "scheduler")
        browser.wait("document.querySelectorAll('#interference tbody tr').length === 2", "a slow job, and a separated pair")
        browser.click("#switch")
        browser.type("#field-policy", "srtf")
        browser.click("#preview")
        browser.wait("document.querySelectorAll('#dialog .preview tbody tr').length === 5")
        assert asked(server) == [{"scheduler": {"config": {"policy": {"name": "srtf"}, "round_s": 60}}}]
        assert "Gain (average JCT): ann −5.0 min" in browser.run("document.querySelector('.preview').textContent")
        assert [path for _, path, _ in server.changed] == ["/v1/whatif"], "nothing was switched"
        clean(browser, server)


def test_names_made_to_break_the_page_are_shown_as_text(browser: Browser) -> None:
    cluster = InventedCluster(4, 20)
    for job in cluster.jobs:
        job[1:5] = [EVIL, EVIL, EVIL, EVIL]
    for node in cluster.nodes:
        node[1], node[6] = EVIL, EVIL
    cluster.types[0] = EVIL
    cluster.decisions[0]["launched"] = {EVIL: [EVIL]}
    with FakeConsole(cluster, 2, 2) as server:
        browser.open(server.url)
        for view in ("cluster", "timeline", "queue", "nodes"):
            shown(browser, view)
            assert browser.run("document.querySelectorAll('main img, main b:not([class])').length") == 0
        assert EVIL in browser.run("document.querySelector('#nodes-table').textContent")
        clean(browser, server)


def test_a_lost_connection_is_shown_and_the_stream_resumes_where_it_was(browser: Browser) -> None:
    with FakeConsole(InventedCluster(4, 10), 2, 2) as server:
        browser.open(server.url)
        browser.wait("document.querySelector('#connection').textContent === 'live'")
        begun = server.cluster.second
        until(lambda: server.cluster.second > begun + 0.5)  # a change was sent
        server.cut.set()
        browser.wait("document.querySelector('#connection').textContent === 'connection lost, trying again'")
        server.cut.clear()
        browser.wait("document.querySelector('#connection').textContent === 'live'")
        until(lambda: server.resumed)
        assert all(since.startswith("fake%3A") and int(since.rpartition("%3A")[2]) > 1 for since in server.resumed)
        assert browser.run("document.querySelector('main').dataset.view") == "cluster"


def test_a_session_that_has_ended_leads_to_the_sign_in(browser: Browser) -> None:
    with FakeConsole(InventedCluster(4, 10), 2, 2) as server:
        server.signed_in = False
        browser.open(server.url)
        browser.wait("document.querySelector('main').dataset.view === 'sign-in' && !!document.querySelector('#token')")
        browser.type("#token", "a-token")
        browser.press("Enter")
        browser.wait("document.querySelector('main').dataset.view === 'cluster'")
        assert json.loads(server.changed[0][2]) == {"token": "a-token"}
        server.signed_in = False
        server.cut.set()
        browser.wait("document.querySelector('main').dataset.view === 'sign-in'")
        assert "has ended" in browser.run("document.querySelector('main').textContent")


def test_the_keyboard_reaches_rows_and_dialogs(browser: Browser) -> None:
    with FakeConsole(InventedCluster(12, 40), 0, 0) as server:
        browser.open(server.url)
        shown(browser, "nodes")
        browser.run("document.querySelector('#nodes-table .row').focus()")
        browser.press("ArrowDown")
        assert browser.run("document.activeElement.textContent").startswith("node-00001")
        browser.press("Enter")
        browser.wait("document.querySelector('#dialog').open && document.activeElement.name === 'reason'")
        browser.type("#field-reason", "a fan is broken")
        browser.press("Enter")
        browser.wait("!document.querySelector('#dialog').open")
        assert [(method, path, json.loads(body)) for method, path, body in server.changed] == [
            ("PUT", "/v1/nodes/node-00001/drain", {"reason": "a fan is broken"})
        ]
        shown(browser, "cluster")
        browser.run("document.querySelector('.tiles-box canvas').focus()")
        browser.press("ArrowRight")
        assert browser.run("document.querySelector('#chosen-node').textContent").startswith("node-00000")
        clean(browser, server)


def test_a_view_of_5000_nodes_and_10000_jobs_has_few_elements(browser: Browser) -> None:
    """The main thread's own processor time, over so many batches of changes, each of half a second."""
    batches = 10
    with FakeConsole(InventedCluster(5000, 10_000), 200, 100) as server:
        browser.open(server.url)
        for view in VIEWS:
            shown(browser, view)
            begun, before = server.cluster.second, browser.metrics()["TaskDuration"]
            while server.cluster.second < begun + batches / 2:
                browser.run("new Promise((done) => setTimeout(done, 200))")
            spent = browser.metrics()["TaskDuration"] - before
            share = spent / (server.cluster.second - begun)
            print(f"{view}: {1000 * share:.0f} ms of the main thread a second")
            assert browser.run("document.querySelectorAll('*').length") < 2500, view
        print("first paint:", browser.run("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
        clean(browser, server)


PRUNES = """import("/console/store.js").then(({ Store }) => {
  const store = new Store(), columns = ["number", "name", "state", "devices", "ended"], day = 86400;
  store.reset({ second: 3 * day, origin: 0, types: [], job_columns: columns, node_columns: [], jobs: [], nodes: [] });
  const jobs = Array.from({ length: 16000 }, (_, n) => [n, "old", n % 16 ? "finished" : "waiting", [], n % 16 ? day : null]);
  store.change({ second: 3 * day, jobs });
  return [store.jobs.size, [...store.jobs.values()].every((job) => job.state === "waiting")];
})"""


def test_a_page_that_stays_open_forgets_jobs_that_ended_long_ago(browser: Browser) -> None:
    with FakeConsole(InventedCluster(4, 10), 0, 0) as server:
        browser.open(server.url)
        assert browser.run(PRUNES) == [1000, True]
