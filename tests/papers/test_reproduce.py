"""Gavel's evaluation, run again: every study end to end at a tiny size, resuming, damaged cases, failures, names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from cli.command import fairlead
from fairlead.core.errors import InputError, UnknownName
from fairlead.experiments.cases import Answers, CaseStore, key_of, run_cases
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers import GavelInputs, Paper, Reproduction, reproduce
from fairlead_papers.blox import BLOX
from fairlead_papers.findings import Findings, Row, Wants
from fairlead_papers.gavel import GAVEL
from fairlead_papers.gavel.runs import Jobs, Run
from fairlead_papers.gavel.scale import SCALES
from fairlead_papers.pages import Report, Told, page, shown_value, write_pages
from fairlead_papers.study import Study

pytestmark = pytest.mark.long

TINY = SCALES["tiny"]
NAMES = {"fig9", "fig10", "fig11", "fig12", "fig13", "fig14", "fig15a", "fig15b", "fig16", "makespan", "fifo", "priorities"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All studies once, with the bundled catalogue; the tests look at what came of it."""
    folder = tmp_path_factory.mktemp("gavel")
    given = Reproduction(GAVEL, replace(TINY, measure=(2, 4), static_jobs=6), GavelInputs(), folder)
    return given, reproduce(given, processes=1)


def test_every_study_is_told_and_only_the_absent_traces_fail(finished):
    given, outcome = finished
    assert {study.name for study in given.studies} >= NAMES | {"cost", "table3", "table4"}
    failed = {study.name for study, row in outcome.rows if row.ours is None and "no measured job" not in row.note}
    assert failed == {"table3", "table4"}
    told = next(row.note for study, row in outcome.rows if study.name == "table3")
    assert "pass --throughputs FILE" in told


def test_the_reports_tell_the_same_rows_and_carry_their_pictures(finished):
    given, outcome = finished
    text = (given.folder / "report.md").read_text()
    whole = (given.folder / "report.html").read_text()
    for one in outcome.told:
        assert one.study.title in text
        for picture in one.findings.pictures:
            assert (given.folder / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
            assert f"({picture.name}.png)" in text
    assert whole.count("data:image/png;base64,") == sum(len(one.findings.pictures) for one in outcome.told)
    assert "http://" not in whole
    assert "https://" not in whole
    assert "bundled catalogue" in text
    assert "bundled catalogue" in whole
    assert "8 of each type" in text


def test_what_is_finished_is_not_run_again_and_tells_the_same(finished):
    given, outcome = finished
    again = reproduce(given, processes=1)
    missing = 5  # of Tables 3 and 4: failures are not kept
    assert again.ran == missing
    assert again.rows == outcome.rows


def test_a_damaged_case_is_run_again(finished):
    given, _ = finished
    small = replace(given, only=GAVEL.chosen(["fig13"]))
    (case,) = small.cases()
    path = CaseStore(given.folder / "cases", given.inputs).path(case)
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"", b"[]", whole.replace(b'"throughput":[[', b'"throughput":[[9')):
        path.write_bytes(damaged)
        assert reproduce(small, processes=1).ran == 1
        assert path.read_bytes() == whole
    assert reproduce(small, processes=1).ran == 0


def test_settings_and_rates_make_the_key(tmp_path):
    run = Run("fifo", TINY.cluster, Jobs(1.0, measure=(0, 3)))
    other = tmp_path / "rates.csv"
    other.write_text("kind,workers,type,steps_per_s\nA,1,v100,2\n")
    keys = {
        key_of(run, GavelInputs()),
        key_of(replace(run, seed=1), GavelInputs()),
        key_of(run, GavelInputs(other)),
    }
    assert len(keys) == 3
    assert key_of(replace(run), GavelInputs()) == key_of(run, GavelInputs())


def test_a_trace_beside_the_rates_makes_the_key_too(tmp_path):
    keys = set()
    for name, jobs in (("one", "some"), ("two", "others"), ("three", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rates.csv").write_text("kind,workers,type,steps_per_s\nA,1,v100,2\n")
        if jobs:
            (tmp_path / name / "max_min_fairness.trace").write_text(jobs)
        keys.add(
            key_of(Run("fifo", TINY.cluster, Jobs(trace="max_min_fairness.trace")), GavelInputs(tmp_path / name / "rates.csv"))
        )
    assert len(keys) == 3


@dataclass(frozen=True)
class Broken:
    why: str

    def run(self, inputs):
        raise ValueError(self.why)


def test_a_case_that_fails_is_told_and_the_rest_goes_on(tmp_path):
    good = Run("fifo", TINY.cluster, Jobs(1.0, measure=(0, 3)))
    store = CaseStore(tmp_path, GavelInputs())
    answers = run_cases([Broken("out of\nluck"), good], store, processes=1)
    assert answers.of(good)["figures"]["finished"] == 3
    with pytest.raises(Exception, match="ValueError: out of luck"):
        answers.of(Broken("out of\nluck"))
    assert store.read(Broken("out of\nluck")) is None


def test_a_study_that_cannot_be_read_is_a_row_with_the_error(tmp_path):
    def read(scale, answers: Answers) -> Findings:
        raise KeyError("gone")

    given = Reproduction(GAVEL, TINY, GavelInputs(), tmp_path, (Study("odd", "An odd study", lambda scale: [], read),))
    ((_, row),) = reproduce(given, processes=1).rows
    assert row.verdict == "failed"
    assert "gone" in row.note


def test_two_processes_give_what_one_gives(tmp_path, finished):
    given, outcome = finished
    some = replace(given, folder=tmp_path, only=GAVEL.chosen(["fig12"]))
    assert reproduce(some, processes=2).rows == [(study, row) for study, row in outcome.rows if study.name == "fig12"]


def test_verdicts():
    assert Row("a", 2.0, 1.81).verdict == "met"
    assert Row("a", 2.0, 2.19).verdict == "met"
    assert Row("a", 2.7, 7.67).verdict == "exceeded"
    assert Row("a", 2.0, 1.5).verdict == "in part"
    assert Row("a", 2.0, 0.9).verdict == "not met"
    assert Row("a", 2.0, None, note="ValueError: x").verdict == "failed"
    assert Row("a", 35.0, 40.0, "%", Wants.NEAR).verdict == "not met"
    assert Row("a", 0.0, 0.0, "%", Wants.MOST).verdict == "met"
    assert Row("a", None, 3.0).verdict == ""


def test_a_part_that_is_small_is_not_shown_as_none():
    shown = [shown_value(value, "%") for value in (0.0, 0.0013, 0.03, 0.11, 0.444, 20.34)]
    assert shown == ["0.00 %", "0.0013 %", "0.03 %", "0.11 %", "0.44 %", "20.3 %"]


def test_loads_shrink_with_the_cluster_and_all_arms_see_the_same_jobs():
    assert SCALES["small"].load(5.6) == pytest.approx(5.6 / 3)
    assert SCALES["full"].load(5.6) == 5.6
    cases = list(GAVEL.chosen(["fig9"])[0].cases(SCALES["full"]))
    assert len(cases) == 5 * 7 * 3
    by_arm: dict[str, set] = {}
    for case in cases:
        by_arm.setdefault(case.policy, set()).add((case.jobs, case.seed, case.cluster, case.round_s, case.mechanism))
    assert len(set(map(frozenset, by_arm.values()))) == 1


def test_only_the_high_load_with_fewer_seeds_is_a_part_of_the_whole():
    whole, part = SCALES["full"], SCALES["full"].at_high_load().with_seeds(1)
    assert "1 seed;" in part.description
    assert "loads at 100 %" in part.description
    for study in GAVEL.chosen(["fig9", "fig10", "fig11", "fifo", "priorities", "makespan"]):
        few, all_ = set(study.cases(part)), set(study.cases(whole))
        assert few <= all_  # what has been run of the part is kept for the whole
        assert {case.seed for case in few} == {0}
        assert {case.jobs.load for case in few} <= {5.6, 2.6, None}
        assert {case.policy for case in few} == {case.policy for case in all_}


def test_the_command_takes_the_high_load_and_a_number_of_seeds(tmp_path):
    asked = ("--scale", "tiny", "--only", "fig15b", "--loads", "high", "--seeds", 2, "--processes", 1)
    done = fairlead("reproduce", "gavel", *asked, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cases run: 4" in done.stderr
    assert "2 seeds; loads at 100 %" in (tmp_path / "report.md").read_text()
    wrong = fairlead("reproduce", "gavel", "--loads", "low", "--out", tmp_path)
    assert wrong.returncode == 2
    assert "low" in wrong.stderr


def test_the_load_goes_on_until_the_measured_jobs_have_ended():
    answer = Run("max-min-fairness", TINY.cluster, Jobs(1.2, measure=(3, 9))).run(GavelInputs())
    assert not answer["load_ended_early"]
    assert len(answer["jct_s"]) == 6
    assert np.isfinite(answer["ftf"]).all()


def test_names_that_nobody_has_bring_near_ones():
    with pytest.raises(UnknownName, match="did you mean 'fig9'"):
        GAVEL.chosen(["fig99"])
    with pytest.raises(UnknownName, match="did you mean 'small'"):
        GAVEL.scale("smal")
    assert [study.name for study in GAVEL.chosen(["table4", "fig9"])] == ["fig9", "table4"]
    assert len({study.name for study in GAVEL.studies}) == len(GAVEL.studies)


def test_what_is_called_a_trace_and_is_a_folder_is_no_part_of_a_world(tmp_path):
    for name in ("plain", "with"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rates.csv").write_text("")
    (tmp_path / "with" / "old.trace").mkdir()
    assert GavelInputs(tmp_path / "with" / "rates.csv").fingerprint == GavelInputs(tmp_path / "plain" / "rates.csv").fingerprint


def test_a_trace_that_is_absent_says_what_to_pass():
    with pytest.raises(InputError, match="pass --throughputs FILE"):
        GavelInputs().trace("max_min_fairness.trace")


def test_a_trace_that_does_not_lie_beside_the_table_says_where_it_was_looked_for(tmp_path):
    table = tmp_path / "rates.csv"
    with pytest.raises(InputError, match=f"^--throughputs {table}: expected max_min_fairness.trace next to it$"):
        GavelInputs(table).trace("max_min_fairness.trace")


def test_the_published_traces_come_out_as_the_paper_says(public_data, tmp_path):
    inputs = GavelInputs((public_data / "gavel" / "simulation_throughputs.json").resolve())
    outcome = reproduce(Reproduction(GAVEL, TINY, inputs, tmp_path, GAVEL.chosen(["table3"])), processes=1)
    assert {row.verdict for _, row in outcome.rows} == {"met"}


def test_the_command_tells_its_sizes_and_its_studies(tmp_path):
    told = fairlead("reproduce", "gavel", "--help")
    assert told.returncode == 0
    for word in (
        "36 of each type",
        "12 of each type",
        "3 seeds",
        "takes about an hour",
        "takes about ten minutes",
        "tiny: a trial run that checks that everything works",
        "fig15b",
        "--throughputs",
        "--processes",
    ):
        assert word in " ".join(told.stdout.split())
    wrong = fairlead("reproduce", "gavel", "--only", "fig99", "--out", tmp_path)
    assert wrong.returncode == 2
    assert "did you mean 'fig9'" in wrong.stderr
    absent = fairlead("reproduce", "gavel", "--throughputs", tmp_path / "no.json", "--out", tmp_path)
    assert absent.returncode == 2
    assert "no.json" in absent.stderr


def test_pictures_of_the_report_before_go_with_it_and_others_stay(tmp_path):
    def wrote(*names: str) -> set[str]:
        pictures = [Lines(name, name.title(), "x", "y", [PlotLine("a", [0, 1], [0, 1])]) for name in names]
        told = [Told(GAVEL.studies[0], Findings([Row("claim", 1.0, 1.0)], pictures))]
        write_pages(Report("Gavel", TINY, [], told), tmp_path)
        return {path.stem for path in tmp_path.glob("*.png")}

    (tmp_path / "mine.png").write_bytes(b"")
    assert wrote("one", "two") == {"one", "two", "mine"}
    assert wrote("two", "three") == {"two", "three", "mine"}, "what this report never wrote is nobody's to remove"
    (tmp_path / "report.md").write_text("![mine](mine.png)\n")
    assert wrote("four") == {"two", "three", "four", "mine"}, "nor is what another's report shows"


def test_studies_that_are_not_run_again_stay_in_the_report_with_their_pictures(tmp_path):
    def read(what: str):
        def findings(scale, answers: Answers) -> Findings:
            return Findings(
                [Row(what, 1.0, 1.0)], [Lines(f"{what}-line", what, "x", "y", [PlotLine("a", [0, 1], [0, 1])])], ["<&>"]
            )

        return findings

    said = ["Rates: some."]
    studies = tuple(Study(name, f"Study {name} <b>", lambda scale: [], read(f"claim-{name}")) for name in ("a", "b", "c"))
    paper = Paper("Somebody", studies, {"tiny": TINY}, lambda scale, inputs: said)

    def told(*names: str) -> tuple[str, str, list[str]]:
        outcome = reproduce(Reproduction(paper, TINY, GavelInputs(), tmp_path, paper.chosen(names)), processes=1)
        return *((tmp_path / name).read_text() for name in ("report.md", "report.html")), list(outcome.kept)

    text, page, kept = told()
    assert kept == []
    assert told("b") == (text, page, ["a", "c"]), "run again, it is the same report"
    assert {path.stem for path in tmp_path.glob("*.png")} == {"claim-a-line", "claim-b-line", "claim-c-line"}
    for name in ("report.md", "report.html"):
        (tmp_path / name).unlink()
    assert told("c")[2] == []
    both = told("a")
    assert both[2] == ["c"]
    for one in both[:2]:
        assert one.index("claim-a") < one.index("claim-c"), "in the paper's order"
        assert "claim-b" not in one
    said[:] = ["Rates: others."]
    for _ in range(2):
        for one in told("a")[:2]:
            assert one.count("of which this holds") == 1
            assert one.count("Rates: some.") == 1, "once, with the study that it holds for"
            assert one.index("claim-a") < one.index("Rates: some.") < one.index("claim-c")


def test_a_report_of_another_scale_or_paper_is_not_written_over(tmp_path):
    def given(paper: Paper, scale: Any) -> Reproduction:
        return Reproduction(paper, scale, GavelInputs(), tmp_path, paper.studies[:1])

    write_pages(Report("Gavel", TINY, [], []), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = f"without the report of Gavel at scale tiny: another --out keeps both, as in {tmp_path}-small"
    for one in (given(GAVEL, SCALES["small"]), given(BLOX, BLOX.scale("small"))):
        with pytest.raises(InputError, match=other):
            reproduce(one, processes=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing was run"
    assert "report of" not in page(Report("Gavel", TINY, [], []), {})


def test_without_a_folder_each_scale_has_its_own(tmp_path):
    asked = ("reproduce", "gavel", "--only", "fig13", "--processes", 1)
    done = fairlead(*asked, "--scale", "tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gavel-tiny"]


def test_the_command_writes_the_report(tmp_path):
    done = fairlead("reproduce", "gavel", "--scale", "tiny", "--only", "fig13", "--out", tmp_path, "--processes", 1)
    assert done.returncode == 0, done.stderr
    assert "fig13" in done.stdout
    assert (tmp_path / "report.html").is_file()
    assert "cases run: 1" in done.stderr
