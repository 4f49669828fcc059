"""`fairlead compare` and `fairlead report` from the outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import answer, fairlead


def test_schedulers_are_compared_over_seeds_in_two_processes(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\npolicy: {name: las, by: time}\n")
    how = ("--jobs", "15", "--cluster", "8xv100:4", "--loads", "8", "--seeds", "0,1", "--processes", "2")
    told = answer("compare", "--policies", "fifo,tiresias:thresholds=[3250,7200]", "--config", "mine.yaml", *how, cwd=tmp_path)
    labels = ["fifo", "tiresias(thresholds=[3250, 7200])", "mine"]
    assert [arm["scheduler"] for arm in told["results"]] == labels
    assert all(arm["seeds"] == 2 and arm["load"] == 8.0 for arm in told["results"])
    assert [(case["scheduler"], case["seed"]) for case in told["cases"]] == [
        (label, seed) for seed in (0, 1) for label in labels
    ]
    for index, arm in enumerate(told["results"]):
        jct = [case["average_jct_s"] for case in told["cases"][index::3]]
        assert arm["mean"]["average_jct_s"] == pytest.approx(sum(jct) / 2)
        assert arm["half_width"]["average_jct_s"] > 0
        assert all(case["finished"] == 15 for case in told["cases"])


def test_for_people_there_is_a_table_and_a_report(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\n" + "".join(f"j{i},{i},{100 + i}\n" for i in range(10)))
    how = ("--cluster", "2xv100:2", "--policies", "fifo,srtf", "--processes", "1", "--report", "out.html")
    done = fairlead("compare", "--trace", "jobs.csv", *how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fifo" in done.stdout
    assert "srtf" in done.stdout
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "fifo" in page
    assert "srtf" in page


def test_what_all_schedulers_share_is_told_once_and_not_in_their_names(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\nj,0,100\n")
    how = (
        "--estimator",
        "predicted:usage={A3C: [25, 2]}",
        "--cluster",
        "2xv100:2",
        "--trace",
        "jobs.csv",
        "--report",
        "o.html",
    )
    asked = ("compare", "--preset", "horus", "--preset", "opportunistic-packing", *how)
    told = answer(*asked, cwd=tmp_path)
    assert [case["scheduler"] for case in told["cases"]] == ["horus", "opportunistic-packing"]
    assert told["shared"] == {"estimator": "predicted(usage: 1)"}
    assert "2 × v100, all with estimator=predicted(usage: 1)\n" in fairlead(*asked, cwd=tmp_path).stdout
    page = (tmp_path / "o.html").read_text(encoding="utf-8")
    assert "<title>Schedulers compared, all with estimator=predicted(usage: 1)</title>" in page
    assert '"label":"horus"' in page


def test_a_report_is_made_of_event_logs(tmp_path):
    (tmp_path / "jobs.csv").write_text(
        "name,submitted_s,duration_s,user\n" + "".join(f"j{i},{i},{100 + i},u{i % 2}\n" for i in range(10))
    )
    live = {}
    for policy in ("fifo", "srtf"):
        how = ("--trace", "jobs.csv", "--cluster", "2xv100:2", "--events", f"{policy}.jsonl")
        live[policy] = answer("simulate", "--policy", policy, *how, cwd=tmp_path)
    told = answer("report", "fifo.jsonl", "srtf.jsonl", "-o", "both.html", cwd=tmp_path)
    assert told["report"] == "both.html"
    assert [run["scheduler"] for run in told["runs"]] == ["fifo", "srtf"]
    for run in told["runs"]:
        for name in (
            "jobs",
            "finished",
            "average_jct_s",
            "makespan_s",
            "utilization",
            "average_ftf",
            "preemptions",
            "restarts",
        ):
            assert run[name] == pytest.approx(live[run["scheduler"]][name]), name
    assert told["figures"] == []
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script src=" not in page


def test_differences_are_paired_by_seed_or_by_window_and_say_so(tmp_path):
    given = ("compare", "--policies", "fifo,las,srtf", "--cluster", "4xv100:4", "--jobs", "40", "--processes", "1")
    given = (*given, "--round", "7200")
    seeds = (*given, "--loads", "1,2", "--seeds", "2x")
    found = answer(*seeds, "--baseline", "las", cwd=tmp_path)
    assert (found["differences"]["baseline"], found["differences"]["method"]) == (
        "las",
        "paired by seed, Student's t over 2 seeds",
    )
    assert [(row["scheduler"], row["load"]) for row in found["differences"]["results"]] == [
        *(("fifo", 1.0), ("srtf", 1.0), ("fifo", 2.0), ("srtf", 2.0)),
    ]
    jct = {(row["scheduler"], row["load"], row["seed"]): row["average_jct_s"] for row in found["cases"]}
    one = found["differences"]["results"][0]["metrics"]["average_jct_s"]
    pairs = [jct["fifo", 1.0, seed] - jct["las", 1.0, seed] for seed in (0, 1)]
    assert (one["pairs"], one["difference"]) == (2, pytest.approx(sum(pairs) / 2))
    assert one["low"] < one["difference"] < one["high"]
    printed = fairlead(*seeds, "--out", "tables", "--report", "page.html", cwd=tmp_path)
    assert "Difference from fifo" in printed.stdout
    assert "tables: 13 files in tables" in printed.stderr
    assert {"jobs-las-load-1-seed-1.parquet", "runs.parquet"} <= {path.name for path in (tmp_path / "tables").iterdir()}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "load 1, 2 jobs/h; mean over seeds 0, 1 ± half the 95 % interval" in page
    assert 'data-name="2 jobs/h, seed 1"' in page
    assert "<code>fairlead compare --policies fifo,las,srtf" in page
    alone = answer(*given, cwd=tmp_path)["differences"]
    assert alone["method"] == "paired by window, Student's t over 4 windows of the jobs by submission"
    assert "makespan_s" not in alone["results"][0]["metrics"]
    wrong = fairlead(*given, "--baseline", "lass", cwd=tmp_path)
    assert (wrong.returncode, "--baseline" in wrong.stderr, "fifo, las, srtf" in wrong.stderr) == (2, True, True)


def test_several_seeds_have_the_worst_rho_of_all_of_them(tmp_path: Path) -> None:
    given = ("compare", "--policies", "fifo,las", "--jobs", 12, "--cluster", "16xv100:4", "--seeds", "3x", "--processes", 1)
    found = answer(*given)
    for arm in found["results"]:
        by_seed = [row["worst_ftf"] for row in found["cases"] if row["scheduler"] == arm["scheduler"]]
        assert arm["worst_ftf_max"] == max(by_seed) > arm["mean"]["worst_ftf"]
    shown = fairlead(*given, "--report", tmp_path / "report.html")
    assert "max ρ: the job treated worst in any seed" in " ".join(shown.stdout.split())
    assert "max ρ of all seeds" in (tmp_path / "report.html").read_text(encoding="utf-8")
