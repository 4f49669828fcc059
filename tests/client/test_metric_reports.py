"""Reports: lines of JSON, not too many, and the last value is never lost."""

from __future__ import annotations

import json
from pathlib import Path

from fake_agent import Agent

from fairlead.client.metric_reports import ReportWriter


class Clock:
    ns = 0

    def __call__(self) -> int:
        return self.ns


def written(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_name_is_written_at_most_every_tenth_of_a_second_and_the_last_value_wins(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "reports"
    reports = ReportWriter(str(path), clock)
    for ms in range(0, 250, 10):
        clock.ns = ms * 1_000_000
        reports.add({"loss": ms})
    reports.flush()
    reports.flush()
    assert written(path) == [{"loss": 0.0}, {"loss": 100.0}, {"loss": 200.0}, {"loss": 240.0}]


def test_each_name_has_its_own_rate(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "reports"
    reports = ReportWriter(str(path), clock)
    reports.add({"loss": 1})
    reports.add({"loss": 2, "accuracy": 0.5})
    reports.flush()
    assert written(path) == [{"loss": 1.0}, {"accuracy": 0.5}, {"loss": 2.0}]


def test_what_is_not_a_finite_number_is_written_as_infinity(tmp_path: Path) -> None:
    for number, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        path = tmp_path / f"reports-{number}"
        ReportWriter(str(path), Clock()).add({"loss": value, "accuracy": 0.5})
        assert written(path) == [{"loss": float("inf"), "accuracy": 0.5}]


def test_a_job_without_a_lease_reports_its_last_value_when_it_ends(agent: Agent, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import fairlead\nfor number in range(5): fairlead.report(number=number)")
    job = agent.launch(script)
    assert job.ends() == 0, job.errors
    assert written(job.reports)[-1] == {"number": 4.0}


def test_a_full_disk_or_a_missing_folder_does_not_stop_training(tmp_path: Path) -> None:
    for path in ("/dev/full", str(tmp_path / "missing" / "reports")):
        reports = ReportWriter(path)
        reports.add({"loss": 0.5})
        reports.flush()
