"""The page as text: whole, self-contained, and safe whatever a trace calls its jobs."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from made_up import device_intervals, outcomes, played, record

from fairlead.core.errors import InputError
from fairlead.core.job import Phase
from fairlead.experiments.metrics import DEFAULTS, MetricOptions
from fairlead.reporting.html import report_html, write_report
from fairlead.reporting.payload import payload

EVIL = "</script><b>&\"'\u2028<!--<script>{{data}}"


class Outline(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def data_of(text: str):
    return json.loads(Outline(text).scripts[0])


@pytest.fixture(scope="module")
def text() -> str:
    return report_html([played("fifo", 40), played("las", 40)], title="Two <runs> & more")


def test_the_page_is_whole_and_its_title_is_text(text):
    outline = Outline(text)
    assert "<title>Two &lt;runs&gt; &amp; more</title>" in text
    assert "{{" not in text.replace(outline.scripts[0], "")
    ids = {attributes.get("id") for _, attributes in outline.tags}
    assert {"summary", "chart-jct", "chart-parts", "chart-ftf", "chart-use", "chart-queue", "gantt", "jobs", "users"} <= ids


def test_nothing_is_loaded_from_elsewhere(text):
    assert not re.search(r"https?://|//cdn|@import|\burl\(|\bfetch\(|XMLHttpRequest|\bimport\(", text)
    for tag, attributes in Outline(text).tags:
        assert "src" not in attributes, tag
        assert tag != "link"
        assert (attributes.get("href") or "#").startswith("#")
    assert "default-src 'none'" in text


def test_scripts_never_write_markup(text):
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", Outline(text).scripts[1])


def test_names_cannot_break_out_of_the_data():
    jobs = outcomes([0, 1], [0, 2], [5, 9], names=[EVIL, "plain"], users=[EVIL, EVIL])
    run = dataclasses.replace(record(jobs, device_intervals=device_intervals([(0, 0, 0, 5)])), scheduler=EVIL, trace=EVIL)
    text = report_html([run], title=EVIL)
    outline = Outline(text)
    assert len(outline.scripts) == 2
    assert not [tag for tag, _ in outline.tags if tag == "b"]
    data = data_of(text)
    assert data["tables"][0]["names"][0] == data["tables"][0]["users"]["levels"][0] == EVIL
    assert data["runs"][0]["label"] == data["runs"][0]["trace"] == EVIL


def test_a_run_is_packed_without_loss():
    run = played("las", 60)
    data = payload([run], DEFAULTS)
    got = data["runs"][0]
    gantt = got["gantt"]
    start = np.frombuffer(base64.b64decode(gantt["start"]), "<u4") * gantt["unit"] + gantt["low"]
    job = np.frombuffer(base64.b64decode(gantt["job"]), "<u4")
    rows = np.frombuffer(base64.b64decode(gantt["rows"]), "<u4")
    held = run.device_intervals
    order = np.lexsort((held.start_s, held.accelerator))
    assert gantt["count"] == gantt["total"] == len(held.job)
    assert start == pytest.approx(held.start_s[order], abs=1e-3)
    assert job.tolist() == held.job[order].tolist()
    assert np.diff(rows).tolist() == np.bincount(held.accelerator, minlength=run.cluster.size).tolist()
    jct = np.frombuffer(base64.b64decode(got["jobs"]["jct"]), "<f4")
    assert jct == pytest.approx(run.jobs.ended_s - run.jobs.submitted_s, rel=1e-6)
    assert sum(got["parts"]) == pytest.approx(got["summary"]["average_jct_s"])


def test_too_many_stretches_are_cut_to_a_window_that_is_told():
    run = played("las", 60)
    gantt = payload([run, run], DEFAULTS, max_bars=100)["runs"][0]["gantt"]
    assert 0 < gantt["count"] <= 50
    assert gantt["total"] == len(run.device_intervals.job)
    ends = np.frombuffer(base64.b64decode(gantt["start"]), "<u4") + np.frombuffer(base64.b64decode(gantt["length"]), "<u4")
    assert (ends * gantt["unit"] + gantt["low"]).max() <= gantt["until"] + 1e-3


def test_runs_of_one_trace_share_their_jobs_and_labels_stay_apart():
    data = payload([played("las", 30), played("fifo", 30), played("las", 31)], DEFAULTS)
    assert len(data["tables"]) == 2
    assert [run["label"] for run in data["runs"]] == [
        "las · made up, 30 jobs",
        "fifo · made up, 30 jobs",
        "las · made up, 31 jobs",
    ]
    assert [run["label"] for run in payload([played("las", 9)] * 2, DEFAULTS)["runs"]] == ["las", "las #2"]


def test_the_options_in_force_are_told():
    data = payload([played("fifo", 30)], MetricOptions(measure=(5, 20), contention="static", unfair_above=1.0))
    told = "; ".join(data["options"])
    assert "jobs 5 to 20" in told
    assert "jobs in the trace per GPU" in told
    assert data["runs"][0]["summary"]["jobs"] == 15


def test_runs_of_nothing_make_a_page(tmp_path):
    nan = math.nan
    waiting = record(outcomes([1.0], [nan], [nan], phase=[Phase.WAITING]))
    empty = record(outcomes([], [], []), device_intervals=device_intervals([]))
    path = write_report([waiting, empty], tmp_path / "deep" / "report.html")
    data = data_of(path.read_text(encoding="utf-8"))
    assert data["runs"][0]["gantt"] is None
    assert data["runs"][0]["summary"]["average_jct_s"] is None


def test_the_same_runs_give_the_same_page():
    assert report_html([played("fifo", 25)]) == report_html([played("fifo", 25)])


def test_a_report_on_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "r.html")
