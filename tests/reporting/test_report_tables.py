"""The terminal's tables: what they say, and that no number is ever cut in half."""

from __future__ import annotations

import io

import pytest
from made_up import played
from rich.console import Console

from fairlead.experiments.metric_columns import format_duration, format_value
from fairlead.experiments.metrics import summarize
from fairlead.reporting.tables import comparison_table, summary_table


@pytest.fixture(scope="module")
def summaries():
    return [(name, summarize(played(name, 60))) for name in ("fifo", "srtf", "las")]


def printed(table, width: int, **options) -> str:
    out = io.StringIO()
    Console(file=out, width=width, **options).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_a_comparison_fits_its_width_with_whole_cells(summaries, width):
    text = printed(comparison_table(summaries, width=width), width)
    assert "…" not in text
    assert "\x1b" not in text  # plain where there is no terminal
    for name, summary in summaries:
        (line,) = [line for line in text.splitlines() if line.strip().startswith(name + " ")]
        assert format_duration(summary.average_jct_s) in line


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_long_name_goes_on_below_itself_and_leaves_figures_their_room(summaries, width):
    long = "horus(estimator=predicted(sharing=mps, profiles=mine.csv), placement=spread, rounds=60)"
    rows = [(long, summaries[0][1]), *summaries[1:]]
    table = comparison_table(rows, width=width)
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    for heading in ("avg JCT", "p99 JCT", "makespan"):
        assert heading in text.splitlines()[1]
    edge = text.splitlines()[1].index(table.columns[1].header) - 1
    body = text.splitlines()[3:]
    assert "".join("".join(line[:edge].split()) for line in body).startswith(long.replace(" ", ""))


def test_what_there_is_no_room_for_is_named_below(summaries):
    whole, narrow = (comparison_table(summaries, width=width) for width in (200, 80))
    left_out = [column.header for column in whole.columns if column.header not in [c.header for c in narrow.columns]]
    assert "preempted" in left_out
    assert all(heading in narrow.caption for heading in left_out)
    assert narrow.caption.endswith(": widen the terminal, or --json")
    assert whole.caption is None


def test_the_best_of_each_column_is_emphasised_once(summaries):
    table = comparison_table(summaries, width=200)
    column = next(c for c in table.columns if c.header == "avg JCT")
    styles = [str(cell.style) for cell in column.cells]
    times = [summary.average_jct_s for _, summary in summaries]
    assert [bool(style) for style in styles] == [time == min(times) for time in times]
    assert "" in styles


def test_markup_in_a_label_is_text(summaries):
    assert "[bold]x[/bold]" in printed(comparison_table([("[bold]x[/bold]", summaries[0][1])], width=120), 120)
    assert "[red]y" in printed(summary_table("[red]y", summaries[0][1]), 120)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.42, "0.42 s"), (42, "42.0 s"), (90, "1.5 min"), (11_520, "3.2 h"), (86_400, "24.0 h"),
        (864_000, "10.0 d"), (100 * 86_400 * 12, "1,200 d"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_durations_read_well(seconds, text):
    assert format_duration(seconds) == text


def test_unknown_is_a_dash_and_shares_are_percent():
    assert (format_value(None, "ratio"), format_value(0.1234, "share"), format_value(1234.5, "money")) == (
        "–",
        "12.3 %",
        "$1,234",
    )
