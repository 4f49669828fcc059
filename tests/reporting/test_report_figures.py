"""The PNG figures are written, are pictures of something, and survive empty runs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from made_up import outcomes, played, record
from matplotlib.image import imread

from fairlead.core.job import Phase
from fairlead.reporting import figures
from fairlead.reporting.figures import write_figures

pytestmark = pytest.mark.long

ALL = ["jct_cdf.png", "ftf_cdf.png", "use.png", "queue.png", "responsiveness.png", "gantt.png"]


def test_every_figure_is_drawn(tmp_path):
    written = write_figures([played("fifo", 50), played("las", 50)], tmp_path / "new" / "folder")
    assert [path.name for path in written] == ALL
    for path in written:
        picture = imread(path)
        assert picture.shape[0] > 300
        assert picture[..., :3].std() > 0.02, f"{path.name} is blank"


def test_a_run_without_stretches_has_no_gantt_and_an_empty_one_no_crash(tmp_path):
    bare = dataclasses.replace(played("fifo", 20), device_intervals=None)
    nothing = record(outcomes([1.0], [math.nan], [math.nan], phase=[Phase.WAITING]))
    assert [path.name for path in write_figures([bare, nothing], tmp_path)] == ALL[:-1]


def test_a_gantt_of_more_stretches_than_bars_are_drawn_shows_all_of_its_time(tmp_path, monkeypatch):
    run = played("las", 50)
    write_figures([run], tmp_path / "bars")
    monkeypatch.setattr(figures, "_MOST_BARS", 10)
    write_figures([run], tmp_path / "pixels")
    pictures = [imread(tmp_path / how / "gantt.png")[..., :3] for how in ("bars", "pixels")]
    bars, pixels = (np.flatnonzero((np.ptp(one, axis=2) > 0.1).any(axis=0)) for one in pictures)
    assert abs(bars[0] - pixels[0]) < 8
    assert abs(bars[-1] - pixels[-1]) < 8


def test_a_pixel_shows_who_holds_the_accelerator_in_its_middle():
    left, right = np.array([0.0, 1.4, 2.0, 2.6, 0.0]), np.array([1.4, 1.6, 2.6, 9.0, 1.0])
    image = figures.painted(left, right, np.array([0, 0, 0, 0, 1]), np.arange(20.0).reshape(5, 4) + 1, rows=2, pixels=4)
    assert image[:, :, 0].tolist() == [[1.0, 5.0, 9.0, 13.0], [17.0, 0.0, 0.0, 0.0]]


@pytest.mark.filterwarnings("error:constrained_layout not applied")
def test_a_long_name_leaves_the_picture_its_room(tmp_path):
    long = "horus(" + "estimator=predicted(sharing=mps), " * 5 + "rounds=60)"
    runs = [dataclasses.replace(played("fifo", 20), scheduler=name) for name in (long, "las")]
    assert [path.name for path in write_figures(runs, tmp_path)] == ALL
