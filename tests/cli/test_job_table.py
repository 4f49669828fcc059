"""Jobs of a live cluster on a terminal: whatever its width, who it is and where it runs, or why it does not, is there."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fairlead.cli.job_info import array_lines, detail_lines, job_details
from fairlead.cli.job_tables import array_record, array_row, jobs_table, nodes_or_reason, progress_text

RUNS: dict[str, Any] = {
    "number": 7,
    "name": "counts",
    "phase": "running",
    "user": "ann",
    "workers": 1,
    "mode": "",
    "steps": 1e6,
    "steps_known": False,
    "steps_done": 2000.0,
    "rate": 9.7312,
    "left_s": None,
    "nodes": ["v100-0"],
    "accelerators": [1],
    "accelerator_s": 90.0,
}
WAITS = {
    **RUNS,
    "name": "resnet-50-imagenet-sweep-learning-rate-0.1",
    "phase": "waiting",
    "steps": 400.0,
    "steps_known": True,
    "steps_done": 100.0,
    "rate": 0.0,
    "nodes": [],
    "accelerators": [],
    "reason": {"text": "needs 8 accelerators of v100, of which 3 are free"},
}


def details(job: dict[str, Any]) -> dict[str, str]:
    return {label: text for _, lines in job_details(job) for label, text in lines}


def drawn(width: int, **about: bool) -> list[str]:
    screen = Console(width=width, file=io.StringIO())
    screen.print(jobs_table([RUNS, WAITS], width, **about))
    return screen.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 60, 79, 80, 100, 200])
@pytest.mark.parametrize("left", [False, True])
def test_names_and_reasons_are_whole_at_any_width(width: int, left: bool):
    lines = drawn(width, users=True, left=left)
    assert max(map(len, lines)) <= width
    heading = next(line for line in lines if "nodes, or reason" in line)
    reason, name, behind = (heading.index(word) for word in ("nodes, or", "job", "user" if width >= 110 else "phase"))
    assert " ".join(line[reason:].strip() for line in lines[4:]).strip() == WAITS["reason"]["text"]
    assert "".join(line[name:behind].strip() for line in lines[4:]) == WAITS["name"]
    assert any("v100-0" in line for line in lines)
    assert ("user" in heading, "steps/s" in heading) == (width >= 110, width >= 80)


def test_what_a_job_printed_does_nothing_to_a_terminal_and_does_not_fill_it():
    lines = ["\x1b[31mred\x1b[0m\x07", "a\tb", "x" * 10_000, "\x9b2J"]
    failed = {**RUNS, "kind": "\x1b[2J", "last_lines": lines, "last_failure": {"why": "\x1b]0;title", "node": ""}}
    about = details(failed)
    shown = [line.strip() for line in about["last lines"].split("\n")]
    assert shown == ["␛[31mred␛[0m␇", "a\tb", "x" * 500 + "…", "�2J"]
    assert (about["last failure"], about["job type"]) == ("␛]0;title", "␛[2J")


def test_steps_that_nobody_knows_are_counted_and_not_shared():
    lines = "\n".join(drawn(80))
    assert ("step 2,000" in lines, "25 %" in lines) == (True, True)
    about = details(RUNS)
    assert (about["steps"], about["steps done"], about["rate"]) == ("unknown", "2,000", "9.73 steps/s")
    assert about["GPU time"] == "1.5 min"
    assert "1e+06" not in about.values()


def test_who_does_not_run_has_no_speed_and_namesakes_are_told_by_number():
    ended = details({**RUNS, "phase": "finished", "rate": 0.0, "earlier": [3, 5]})
    assert "rate" not in ended
    assert ended["same name before"] == "number 3, 5"
    assert "same name before" not in details({**RUNS, "earlier": []})


@pytest.mark.parametrize(
    ("phase", "steps_done", "expected"),
    [
        ("finished", 400.0, "100 %"),
        ("finished", 160.0, "40 %"),
        ("failed", 399.9, "99 %"),
        ("running", 399.9, "99 %"),
        ("waiting", 100.0, "25 %"),
    ],
)
def test_only_who_has_done_all_its_steps_is_said_to_have(phase: str, steps_done: float, expected: str):
    assert progress_text({**WAITS, "phase": phase, "steps_done": steps_done}) == expected


def test_who_has_finished_without_saying_how_many_steps_there_are_is_done():
    assert progress_text({**RUNS, "phase": "finished", "steps_done": None}) == "100 %"


def test_whom_a_job_shares_accelerators_with_stands_behind_where_it_runs():
    assert nodes_or_reason({**RUNS, "colocated_with": ["b", "of another user"]}) == "v100-0, shared with b, of another user"
    assert nodes_or_reason({**RUNS, "colocated_with": list("abcde")}) == "v100-0, shared with a, b, c and 2 more"
    assert details({**RUNS, "colocated_with": ["b"]})["co-located with"] == "b"


def test_lost_work_stands_in_the_table_and_in_the_details():
    job = {**RUNS, "preemptions": 2, "lost_work": {"seconds": 125.0, "preemptions": 2}}
    assert details(job)["lost work"] == "2.1 min in 2 preemptions without a checkpoint"
    assert nodes_or_reason(job).endswith("; lost work: 2.1 min in 2 preemptions without a checkpoint")
    one = {**job, "lost_work": {"seconds": 30.0, "preemptions": 1}}
    assert details(one)["lost work"] == "30.0 s in 1 preemption without a checkpoint"


def test_an_array_has_the_mean_share_of_its_jobs_and_their_lost_work():
    array = {"name": "sweep", "id": "a", "size": 3}
    about = {
        "account": "",
        "kind": "x",
        "priority": 0,
        "now_s": 9.0,
        "submitted_s": 0.0,
        "first_started_s": 1.0,
        "array": array,
    }
    at_half = {**RUNS, **about, "ended_s": None, "steps": 400.0, "steps_known": True, "steps_done": 200.0}
    at_half["lost_work"] = {"seconds": 20.0, "preemptions": 1}
    members = [at_half, {**at_half, "steps_done": 300.0}, {**RUNS, **about, "phase": "finished", "ended_s": 8.0}]
    row = array_row(members)
    assert (progress_text(row), array_record(members)["done"]) == ("75 %", 0.75)
    lost = "40.0 s in 2 preemptions without a checkpoint"
    assert nodes_or_reason(row) == f"3 jobs: 2 running, 1 finished; lost work: {lost}"
    assert [line.split()[-2:] for line in array_lines(array_record(members)) if "done" in line] == [["75", "%"]]
    assert any(line.endswith(lost) for line in array_lines(array_record(members)))


def test_an_array_that_waits_has_the_reason_of_its_first_waiting_job():
    array = {"name": "sweep", "id": "a", "size": 2}
    about = {"account": "", "kind": "x", "priority": 0, "now_s": 9.0, "submitted_s": 0.0, "first_started_s": None}
    first = {**RUNS, **about, "array": array, "ended_s": None}
    waits = {**first, "name": "sweep-1", "phase": "waiting", "reason": {"text": "needs 1 GPU; 0 are free"}}
    assert nodes_or_reason(array_row([first, waits])) == "2 jobs: 1 waiting, 1 running; sweep-1: needs 1 GPU; 0 are free"


def test_the_lost_work_of_a_cancelled_job_stands_alone():
    job = {**RUNS, "phase": "cancelled", "nodes": [], "lost_work": {"seconds": 30.0, "preemptions": 1}}
    assert nodes_or_reason(job) == "lost work: 30.0 s in 1 preemption without a checkpoint"


def test_details_name_a_job_script_and_its_outputs():
    script = {**RUNS, "command": ["bash", "-c", "#!/bin/bash\ntrain\n", "train.sh", "a b"], "outputs": ["*.pt"]}
    assert (details(script)["command"], details(script)["outputs"]) == ("train.sh 'a b'", "*.pt")
    lines = {**RUNS, "command": ["bash", "-c", "prepare\ntrain"], "shell": True}
    assert details(lines)["command"] == "prepare"


@pytest.mark.parametrize(("newest", "text"), [(None, ""), ("", " (empty)"), ("model.pt", " (newest: model.pt)")])
def test_details_show_the_newest_file_of_the_checkpoint_folder(newest: str | None, text: str):
    (line,) = [
        line for line in detail_lines({**RUNS, "checkpoint": "/shared/7", "checkpoint_file": newest}) if "/shared" in line
    ]
    assert line.endswith(f"/shared/7{text}")
