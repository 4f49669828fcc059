"""Blox' studies of elastic jobs and of hosts: on Pollux' own jobs end to end at a tiny size, and what their rows rest on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.core.errors import InputError
from fairlead_papers import Reproduction, reproduce
from fairlead_papers.blox import BLOX, PublicTraces
from fairlead_papers.blox.elastic import POLLUX, Trained, at_interval, under_load
from fairlead_papers.blox.hosts import HUNGRY, MODEST, PROPORTIONAL, TUNE, Hosted, hosted, sixteen_nodes
from fairlead_papers.blox.own_clusters import own_clusters
from fairlead_papers.blox.policies import FIFO, OPTIMUS
from fairlead_papers.blox.runs import Run
from fairlead_papers.blox.scale import SCALES
from fairlead_papers.blox.traces import Workload

pytestmark = pytest.mark.long

TINY = SCALES["tiny"]


def test_pollux_jobs_are_told_with_a_picture_for_each_figure(public_data, tmp_path):
    given = Reproduction(BLOX, TINY, PublicTraces(data=public_data), tmp_path, BLOX.chosen(["fig3", "fig8", "fig9"]))
    outcome = reproduce(given, processes=1)
    assert not [told for _, told in outcome.rows if told.verdict == "failed"]
    assert {file.name for file in outcome.files} >= {"fig3.png", "fig8.png", "fig9.png"}
    told = {row.what: row.ours for _, row in outcome.rows}
    assert 1 < told["most jobs at once, Pollux: 40 jobs/hr"] <= 8
    assert "8 jobs of Pollux' workload 6" in (tmp_path / "report.md").read_text()


def test_the_interval_is_all_that_differs_between_the_bars_of_figure_3():
    cases = [at_interval(own_clusters(TINY), minutes)[0] for minutes in (1, 8)]
    assert [replace(case, scheduler="") for case in cases] == 2 * [Trained("", 6, 8)]
    assert "rounds: 480" in cases[1].scheduler


def test_at_another_load_the_same_jobs_of_pollux_come():
    medium = own_clusters(SCALES["medium"])
    assert len(medium.arrivals) == 8
    cases = [under_load(medium, POLLUX, load, 3) for load in (5.0, 25.0)]
    assert {case.workload for case in cases} == {4}
    assert cases[0] == replace(cases[1], load=5.0)


def test_a_long_stream_has_all_of_pollux_jobs_each_once(public_data):
    trace = PublicTraces(data=public_data).all_pollux_jobs()
    assert len({job.name for job in trace.jobs}) == len(trace.dynamics) == 8 * 160


def test_the_most_jobs_at_once_are_counted_from_coming_to_leaving(public_data):
    few, many = (Trained("policy: fifo, rounds: 60", 6, 5, load).run(PublicTraces(data=public_data)) for load in (0.1, 3600.0))
    assert (few["at_once"], many["at_once"]) == (1, 5)


def test_without_pollux_tables_the_mend_is_told():
    with pytest.raises(InputError, match=r"workload-6\.csv.*pass --data FOLDER"):
        Trained("policy: fifo", 6, 8).run(PublicTraces())


def test_a_folder_without_pollux_tables_is_told_what_it_lacks(tmp_path):
    with pytest.raises(InputError, match=f"^--data {tmp_path}: expected a folder with pollux/workloads/workload-6.csv in it$"):
        Trained("policy: fifo", 6, 8).run(PublicTraces(data=tmp_path))


def test_other_tables_of_pollux_are_another_world(public_data, tmp_path):
    (tmp_path / "expected").symlink_to(public_data / ".." / "expected")
    here = tmp_path / "data"
    here.mkdir()
    for name in ("philly", "pollux"):
        (here / name).symlink_to(public_data / name)
    without_tiresias = PublicTraces(data=here).fingerprint
    (here / "tiresias").symlink_to(public_data / "tiresias")
    same = PublicTraces(data=here).fingerprint
    assert same == PublicTraces(data=public_data).fingerprint != without_tiresias
    other = tmp_path / "other"
    (other / "pollux").mkdir(parents=True)
    (other / "philly").symlink_to(public_data / "philly")
    (other / "pollux" / "bert").symlink_to(public_data / "pollux" / "bert")
    assert PublicTraces(data=other).fingerprint != same


def test_tuned_cpus_are_worth_something_where_jobs_can_use_them_and_nothing_elsewhere():
    workload = Workload("gavel", 3.6, (0, 30))
    jct = {
        (arm.label, hungry): Hosted(arm.scheduler, workload, hungry, 0).run(PublicTraces())["figures"]["average_jct_s"]
        for arm in (PROPORTIONAL, TUNE)
        for hungry in (True, False)
    }
    assert jct["proportional", True] > 1.1 * jct["Synergy-Tune", True]
    assert jct["proportional", False] == pytest.approx(jct["Synergy-Tune", False], rel=0.01)


def test_synergys_nodes_and_jobs_are_those_of_its_study():
    cluster = sixteen_nodes()
    assert (cluster.size, float(cluster.node_cpus[0]), float(cluster.node_memory_gb[0])) == (128, 24.0, 500.0)
    assert len(HUNGRY) == len(MODEST), "drawn alike, half of the jobs are hungry"
    case = hosted(TINY, "gavel", True, TUNE, 3.6, 1)
    assert case.workload.measure == own_clusters(TINY).hosts_measure


def test_with_few_jobs_optimus_gives_each_more_and_all_end_sooner():
    workload = Workload("gavel", 1.0, (0, 12))
    jct = [
        Run(arm.scheduler, "16xv100:4", workload, 0).run(PublicTraces())["figures"]["average_jct_s"] for arm in (OPTIMUS, FIFO)
    ]
    assert jct[0] < jct[1]
