"""The page in a real browser: every chart drawn, the Gantt moved by hand, nothing thrown. Needs chromium."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import device_intervals, outcomes, played, record
from test_report_html import EVIL, Outline

import fairlead
from browser import CHROMIUM, FLAGS
from fairlead.experiments.metric_columns import format_column, format_values
from fairlead.experiments.metrics import summarize
from fairlead.reporting.html import PageSource, report_html, write_report

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine to open the page in")]

ARGUMENTS = (*FLAGS, "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom")

# Headless chromium draws hardly any frames while it waits for the page's text: let frames come by timer instead.
FRAMES = "<script>window.requestAnimationFrame = (draw) => setTimeout(draw, 0);</script></head>"

# What a person would do: pick another run, zoom in at a point, look for a job, sort, hide a run, switch to dark.
HANDS = """<script>
setTimeout(() => {
  const by = (id) => document.getElementById(id), said = {};
  const canvas = by("gantt-canvas"), frame = canvas.getBoundingClientRect();
  const wheel = (deltaY) => canvas.dispatchEvent(new WheelEvent("wheel",
    { bubbles: true, cancelable: true, clientX: frame.left + frame.width / 2, clientY: frame.top + 40, deltaY }));
  const change = (element, value, kind) => { element.value = value; element.dispatchEvent(new Event(kind)); };
  const later = (steps) => { if (steps.length) setTimeout(() => { steps[0](); later(steps.slice(1)); }, 30); };
  const inked = () => {
    const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size;
  };
  later([
    () => { said.colours = inked(); change(by("gantt-run"), "1", "change"); },
    () => { said.jobsRun = by("jobs-run").value; said.whole = canvas.dataset.to - canvas.dataset.from; },
    () => { wheel(-200); wheel(-200); },
    () => { said.zoomed = canvas.dataset.to - canvas.dataset.from; change(by("jobs-search"), "job-0007", "input"); },
    () => { said.found = by("jobs-table").dataset.rows; by("legend").children[0].click(); },
    () => { said.lines = by("chart-jct").dataset.lines; by("summary-table").querySelectorAll("th")[1].click(); },
    () => { said.first = by("summary-table").querySelector("tbody td").textContent; by("theme").click(); },
    () => { said.theme = document.documentElement.dataset.theme; document.body.dataset.said = JSON.stringify(said); },
  ]);
}, 50);
</script></body>"""


def opened(text: str, folder: Path, query: str = "", width: int = 1400) -> tuple[dict[str, dict[str, str]], str]:
    """Elements by id (or tag, of a few) after the page has run, and what the browser's console said."""
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    command = [
        str(CHROMIUM),
        *ARGUMENTS,
        f"--window-size={width},2400",
        f"--user-data-dir={folder / 'profile'}",
        path.as_uri() + query,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    elements = {
        attributes.get("id") or tag: {name: value or "" for name, value in attributes.items()}
        for tag, attributes in Outline(ran.stdout).tags
        if tag in ("body", "b") or "id" in attributes
    }
    return elements, "\n".join(line for line in ran.stderr.splitlines() if "CONSOLE" in line)


def test_everything_is_drawn_and_answers_to_the_hand(tmp_path):
    runs = [played(name, 80) for name in ("fifo", "srtf", "las")]
    text = report_html(runs).replace("</head>", FRAMES, 1)
    head, _, tail = text.rpartition("</body>")
    elements, console = opened(head + HANDS + tail, tmp_path)
    assert console == ""
    assert elements["body"]["data-ready"] == "true"
    assert "data-errors" not in elements["body"]
    for chart in ("parts", "ftf", "use", "queue"):
        assert elements[f"chart-{chart}"]["data-lines"] == "2"  # one of three was hidden
    assert int(elements["gantt-canvas"]["data-bars"]) > 20
    assert elements["users-table"]["data-rows"] != "0"
    said = json.loads(elements["body"]["data-said"])
    assert said["colours"] > 20
    assert said["jobsRun"] == "1"
    assert said["zoomed"] < 0.6 * said["whole"]
    assert (said["found"], said["lines"], said["theme"]) == ("1", "2", "dark")
    assert said["first"] == min(runs, key=lambda run: float((run.jobs.ended_s - run.jobs.submitted_s).mean())).scheduler


READS = """<script>
setTimeout(() => {
  const read = (id) => document.getElementById(id).textContent;
  document.body.dataset.said = JSON.stringify(["users-table", "jobs-table", "tiles", "summary-table", "chart-parts"].map(read));
}, 300);
</script></body>"""


def test_a_run_of_seconds_is_told_in_seconds(tmp_path):
    jobs = outcomes([0, 5], [1, 6], [21, 26], names=["one", "two"], users=["ann", "ann"])
    head, _, tail = report_html([record(jobs)]).replace("</head>", FRAMES, 1).rpartition("</body>")
    elements, console = opened(head + READS + tail, tmp_path)
    assert console == ""
    users, told, *_ = json.loads(elements["body"]["data-said"])
    assert "40.0 s" in users, "accelerator time"
    assert "00:00:05" in told


def test_an_accelerator_that_two_share_counts_for_both_users_and_is_paid_once(tmp_path):
    jobs = outcomes([0, 0], [0, 0], [3600, 3600], names=["one", "two"], users=["ann", "bob"])
    shared = record(jobs, cluster="1xv100:1", device_intervals=device_intervals([(0, 0, 0, 3600), (1, 0, 0, 3600)]))
    head, _, tail = report_html([shared]).replace("</head>", FRAMES, 1).rpartition("</body>")
    elements, _ = opened(head + READS + tail, tmp_path)
    users, *_ = json.loads(elements["body"]["data-said"])
    assert summarize(shared).utilization == 1.0
    for row in (users.partition("ann")[2].partition("bob")[0], users.partition("bob")[2]):
        assert row.startswith("111.0 h0 s1.0 h"), "one job, done, its completion time, its wait, the accelerator's time"


TICKS = """<script>
setTimeout(() => {
  const along = (id) => [...document.querySelectorAll(`#${id} text[text-anchor=middle]`)].map((text) => text.textContent);
  const upward = (id) => [...document.querySelectorAll(`#${id} text[text-anchor=end]`)].map((text) => text.textContent);
  document.body.dataset.said = JSON.stringify([along("chart-jct"), along("chart-ftf"), upward("chart-queue")]);
}, 300);
</script></body>"""


def test_axes_have_ticks_where_all_jobs_are_nearly_alike_and_jobs_are_counted_whole(tmp_path):
    head, _, tail = (
        report_html([record(outcomes([0, 1], [1, 2], [21, 23]))]).replace("</head>", FRAMES, 1).rpartition("</body>")
    )
    elements, console = opened(head + TICKS + tail, tmp_path)
    assert console == ""
    durations, ratios, waiting = json.loads(elements["body"]["data-said"])
    assert len(durations) > 1
    assert all(text.endswith(" s") for text in durations)
    assert len(ratios) > 1
    assert waiting == ["0", "1"]


@pytest.mark.parametrize("hours", [(30, 41, 46, 60, 110), (40, 90, 100)])
def test_durations_of_a_column_have_one_unit(tmp_path, hours):
    runs = [record(outcomes([0], [0], [3600 * each])) for each in hours]
    head, _, tail = report_html(runs).replace("</head>", FRAMES, 1).rpartition("</body>")
    elements, _ = opened(head + READS + tail, tmp_path)
    *_, tiles, summary, parts = json.loads(elements["body"]["data-said"])
    values = [3600.0 * each for each in hours]
    texts, (unit, cells) = format_values(values, "duration"), format_column(values, "duration")
    assert all(text in tiles for text in texts[:2])
    assert all(text in parts for text in texts)
    assert f"avg JCT ({unit})" in summary
    assert all(cell in summary for cell in cells)


WIDTHS = """<script>
setTimeout(() => {
  const [figures, names] = ["text[text-anchor=end]", "text.strong"].map((which) =>
    [...document.querySelectorAll(`#chart-parts ${which}`)].map((text) => text.getBoundingClientRect()));
  const { scrollWidth, clientWidth } = document.querySelector("#summary .scroll");
  const told = document.querySelector("#chart-parts text.strong title")?.textContent;
  const between = names.map((name, row) => figures[row].left - name.right);
  document.body.dataset.said = JSON.stringify([between, scrollWidth - clientWidth, told]);
}, 300);
</script></body>"""


def test_a_long_name_runs_over_no_figure_and_pushes_no_column_out(tmp_path):
    long = f"horus(estimator=predicted({'sharing=mps, ' * 12}), placement=spread)"
    runs = [replace(record(outcomes([0], [0], [3600])), scheduler=name) for name in (long, "fifo")]
    head, _, tail = report_html(runs).replace("</head>", FRAMES, 1).rpartition("</body>")
    elements, console = opened(head + WIDTHS + tail, tmp_path)
    assert console == ""
    room, outside, told = json.loads(elements["body"]["data-said"])
    assert min(room) > 0
    assert outside == 0
    assert told == long


FITS = """<script>
setTimeout(() => {
  const wide = [...document.querySelectorAll(".card, .bar, .source, .chooser")].map((box) => box.scrollWidth - box.clientWidth);
  const cut = [...document.querySelectorAll(".figures")].map((table) => table.getBoundingClientRect().right - innerWidth);
  const tables = document.querySelectorAll("#summary-table table").length;
  const best = [...document.querySelectorAll("#summary-table .best")].map((cell) => cell.dataset.label);
  const over = Math.max(...wide, document.documentElement.scrollWidth - innerWidth, ...cut);
  document.body.dataset.said = JSON.stringify({ over, tables, best });
}, 300);
</script></body>"""


@pytest.mark.parametrize("width", [1440, 1024, 500])
def test_a_comparison_is_cut_at_no_width_and_no_preemptions_are_no_distinction(tmp_path, width):
    trace = fairlead.Generator(jobs=40, jobs_per_hour=40.0, durations=(600.0, 36000.0))
    result = fairlead.compare(
        trace, "4xv100:4", ["fifo", "las", "srtf", "max-min-fairness"], seeds=[0, 1], loads=[20, 40], processes=1
    )
    text = result.report(
        tmp_path / "compared.html", source=PageSource("fairlead compare --seeds 2x", "1.2.3", "2026-01-02")
    ).read_text()
    for said in (
        "<code>fairlead compare --seeds 2x</code>",
        "Fairlead 1.2.3 · 2026-01-02",
        "load 20, 40 jobs/h; mean over seeds 0, 1 ±",
    ):
        assert said in text
    assert text.count('class="data"') == 4
    assert "Differences from fifo" in text
    assert "paired by seed" in text
    head, _, tail = text.replace("</head>", FRAMES, 1).rpartition("</body>")
    elements, console = opened(head + FITS + tail, tmp_path, width=width)
    assert (console, elements["part"].get("hidden")) == ("", None)
    said = json.loads(elements["body"]["data-said"])
    assert said["over"] <= 0
    assert not [label for label in said["best"] if label in ("preempted", "moved", "restarts")]
    assert said["tables"] == {1440: 2, 1024: 2, 500: 1}[width]


def test_names_made_to_break_the_page_are_shown_as_text(tmp_path):
    jobs = outcomes([0, 1], [0, 2], [500, 900], names=[EVIL, "plain"], users=[EVIL, EVIL])
    run = record(jobs, device_intervals=device_intervals([(0, 0, 0, 500), (1, 0, 100, 400), (1, 1, 400, 900)]))
    elements, console = opened(report_html([run], title=EVIL), tmp_path, "?theme=dark")
    assert console == ""
    assert elements["body"]["data-ready"] == "true"
    assert elements["gantt-canvas"]["data-bars"] == "3"
    assert "b" not in elements  # the markup in the names has become no element


def test_a_run_of_nothing_still_makes_a_page(tmp_path):
    elements, console = opened(report_html([record(outcomes([], [], []))]), tmp_path)
    assert console == ""
    assert elements["body"]["data-ready"] == "true"
    assert elements["jobs-table"]["data-rows"] == "0"


@pytest.mark.parametrize(("query", "runs"), [("", "2"), ("?part=1", "3"), ("?part=7", "2")])
def test_a_page_in_parts_shows_the_one_that_is_asked_for(tmp_path, query, runs):
    parts = {EVIL: [played(name, 20) for name in ("fifo", "srtf")], "others": [played(name, 30) for name in ("a", "b", "c")]}
    text = write_report(parts, tmp_path / "parts.html").read_text(encoding="utf-8")
    elements, console = opened(text, tmp_path, query)
    assert (console, elements["body"]["data-ready"], "hidden" in elements["chooser"]) == ("", "true", False)
    assert elements["chart-jct"]["data-lines"] == runs
    assert "b" not in elements
