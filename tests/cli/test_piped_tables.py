"""Tables in a pipe or a file: plain, and with all there is, whatever the width of the terminal beside them."""

from __future__ import annotations

import io
import re

import pytest
from command import fairlead

from fairlead.cli.output import Out, fitted_table, out

WIDE = ("las:by=time", "las", "srtf", "fifo")


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--policy", "las", "--jobs", "5"),
        ("compare", "--policies", ",".join(WIDE), "--jobs", "5", "--processes", "1"),
        ("predict", "show"),
        ("policies",),
    ],
    ids=" ".join,
)
def test_no_line_ends_in_blanks(words):
    done = fairlead(*words)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


def test_nothing_is_left_out_for_want_of_room():
    said = fairlead("compare", "--policies", ",".join(WIDE), "--jobs", "5", "--processes", "1").stdout
    assert "no room here" not in said
    for heading in ("finished", "makespan", "worst ρ", "unfair", "cost", "preempted"):
        assert heading in said


def test_a_meaning_stands_on_one_line():
    said = fairlead("simulate", "--policy", "las", "--jobs", "5").stdout
    assert re.search(r"^ avg ρ .*equal share\. Above 1: slower than fair\.$", said, re.MULTILINE)


def test_who_sets_a_width_gets_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    written = io.StringIO()
    Out(file=written).print("word " * 100)
    assert max(map(len, written.getvalue().splitlines())) <= 60


def test_a_terminal_is_fitted_to(monkeypatch: pytest.MonkeyPatch):
    screen = Out(file=io.StringIO(), force_terminal=True, width=40)
    monkeypatch.setattr("fairlead.cli.output.out", screen)
    headings = ("name", *(f"figure {n}" for n in range(9)))
    assert len(fitted_table("", headings, [("a", *"123456789")], 1).columns) < len(headings)
    monkeypatch.setattr("fairlead.cli.output.out", out)


def test_a_predictor_is_shown_term_by_term():
    said = fairlead("predict", "show").stdout
    assert not re.search(r"[{}\[\]]", said)
    assert re.search(r"^  activations +\d+\.\d{3} +the part of the forward pass", said, re.MULTILINE)
    assert re.search(r"^  time-slicing +1 +\d\.\d{3} +\d\.\d{3}$", said, re.MULTILINE)
    assert re.search(r"^ +own² +-?\d\.\d{3}$", said, re.MULTILINE)


def test_names_of_rows_leave_figures_their_room(monkeypatch, capsys):
    monkeypatch.setattr(out, "_width", 80)
    rows = [("horus(" + "x" * 200 + ")", "2", "1.0 h"), ("fifo", "2", "2.0 h")]
    out.print(fitted_table("t", ("scheduler", "jobs/h", "avg JCT"), rows, 2))
    printed = capsys.readouterr().out
    assert "avg JCT" in printed
    assert printed.count("x") == 200
    assert max(map(len, printed.splitlines())) <= 80
