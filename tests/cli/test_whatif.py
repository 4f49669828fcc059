"""`fairlead whatif` on the journal of a simulation and on a running cluster."""

from __future__ import annotations

import json
import sys

import command
import pytest
from cluster_up import cluster_up, until


def test_a_past_moment_is_validated_and_changed(journal, tmp_path):
    page = tmp_path / "page.html"
    given = ("whatif", journal, "--past", "20d", "--at", "4d", "--add", "8xh200:8", "--remove", "v100-0")
    printed = command.fairlead(*given, "--report", page, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "(+0.0 %)" in printed.stderr
    assert "rates on h200 are modelled" in printed.stderr
    assert "average JCT" in printed.stdout
    assert "users that gain" in printed.stdout
    assert "What if" in page.read_text(encoding="utf-8")
    found = command.answer("whatif", journal, "--at", "4d", "--policy", "fifo", cwd=tmp_path)
    assert found["metrics"]["preemptions"]["changed"] == 0
    assert {"control", "changed", "difference", "low", "high"} == found["metrics"]["average_jct_s"].keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("whatif",), "at least one change"),
        (("whatif", "--quota", "bob"), "USER=NUMBER"),
        (("whatif", "--quota", "bob=0"), "from 1 on"),
        (("whatif", "--weight", "bob=nan"), "above 0"),
        (("whatif", "--arrivals", "20"), "percentage"),
        (("whatif", "--fault", "v100-0"), "NODE:IN:FOR"),
        (("whatif", "--at", "soon", "--policy", "fifo"), "duration"),
        (("whatif", "--without", "nobody"), "has not ended"),
        (("whatif", "--at", "4d", "--remove", "nowhere"), "nowhere"),
        (("whatif", "--policy", "srtf", "--preset", "tiresias"), "one of --policy, --preset and --config"),
        (("shadow", "--policy", "srtf", "--preset", "tiresias"), "one of --policy, --preset and --config"),
        (("shadow",), "another scheduler than the one in use"),
        (("shadow", "--policy", "las"), "another scheduler than the one in use"),
        (("shadow", "--policy", "srtff"), "srtf"),
        (("shadow", "--policy", "srtf", "--promote"), "a running cluster"),
        (("shadow", "--policy", "srtf", "--for", "1h"), "a running cluster"),
        (("shadow", "--policy", "srtf", "--every", "soon"), "duration"),
    ],
)
def test_mistakes_in_what_ifs_and_shadows_are_one_line(journal, tmp_path, words, said):
    name, *options = words
    done = command.fairlead(name, journal, *options, cwd=tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_running_cluster_is_forked_and_does_not_change(tmp_path):
    run = [sys.executable, "-m", "fairlead.demo.demo_job", "--steps", "40000", "--step-s", "0.05"]
    with cluster_up(tmp_path, "--policy", "fifo", cluster="1xv100:1"):
        for name in ("first", "second"):
            given = ("--name", name, "--kind", "demo", "--steps", "40000", "--", *run)
            sent = command.fairlead("submit", *given, cwd=tmp_path)
            assert sent.returncode == 0, sent.stderr
        starts = lambda: command.answer("whatif", "--without", "first", cwd=tmp_path)["starts_s"]["second"]  # noqa: E731
        control, changed = until(lambda: both if None not in (both := starts()) else None, tmp_path)  # its rate is measured
        assert changed < 60 < control

        def searched() -> dict | None:
            """An answer has 4 seconds, and the first one starts a process."""
            done = command.fairlead("why", "second", "--fix", "--json", cwd=tmp_path)
            assert done.returncode == 0 or "the simulation took longer than 4 s" in done.stderr, done.stderr
            found = None if done.returncode else json.loads(done.stdout)["fixes"]
            return None if found is None or found["unsearched"] else found

        fixes = {one["kind"]: one for one in until(searched, tmp_path)["changes"]}
        assert fixes["more GPUs"]["size"] == 1
        assert fixes["jobs that end"]["text"] == "end job first (1 GPU)"
        printed = lambda *words: command.fairlead(*words, cwd=tmp_path).stdout  # noqa: E731
        told = "second would start at the next decision\n  if you "
        until(lambda: told in printed("why", "first", "second", "--fix"), tmp_path)
        dry = ("submit", "--dry-run", "--name", "third", "--kind", "demo", "--steps", "10", "true")
        until(lambda: "third should start in " in printed(*dry), tmp_path)
        jobs = command.answer("queue", cwd=tmp_path)["jobs"]
        assert [job["name"] for job in jobs] == ["first", "second"]
