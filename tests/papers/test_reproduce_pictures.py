"""What stands at the axes of a study's pictures."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes

from fairlead.reporting.pictures import Distribution, Lines, PlotLine, Points, png


def labels(picture, monkeypatch):
    """As they are drawn."""
    seen = []
    set_title = Axes.set_title
    monkeypatch.setattr(Axes, "set_title", lambda axes, *words: (seen.append(axes), set_title(axes, *words)))
    assert png(picture).startswith(b"\x89PNG")
    both = [axis.get_ticklabels(which=which) for axis in (seen[0].xaxis, seen[0].yaxis) for which in ("major", "minor")]
    return {label.get_text() for some in both for label in some}


@pytest.mark.parametrize(
    "picture",
    [
        Lines("l", "times", "jobs", "ms", [PlotLine("policy", [32, 2048], [1.7, 41.0])], log_x=True, log_y=True),
        Points("p", "times", "jobs", "ms", [("policy", [3.0, 5.0, 8.0], [1.0, 2.0, 3.0])], log_x=True),
        Distribution("d", "times", "hours", [("policy", [3.0, 5.0, 8.0])]),
    ],
)
def test_logarithmic_axes_are_labelled_in_digits(picture, monkeypatch):
    found = labels(picture, monkeypatch)
    assert not [label for label in found if "$" in label]
    assert {"5"} <= found
