"""The PNG figures are written, are pictures of something, and survive empty runs."""

from __future__ import annotations

import dataclasses
import math

from made_up import outcomes, played, record
from matplotlib.image import imread

from fairlead.core.job import Phase
from fairlead.report.figures import write_figures

ALL = ["jct_cdf.png", "ftf_cdf.png", "use.png", "queue.png", "responsiveness.png", "gantt.png"]


def test_every_figure_is_drawn(tmp_path):
    written = write_figures([played("fifo", 50), played("las", 50)], tmp_path / "new" / "folder")
    assert [path.name for path in written] == ALL
    for path in written:
        picture = imread(path)
        assert picture.shape[0] > 300
        assert picture[..., :3].std() > 0.02, f"{path.name} is blank"


def test_a_run_without_stretches_has_no_gantt_and_an_empty_one_no_crash(tmp_path):
    bare = dataclasses.replace(played("fifo", 20), stretches=None)
    nothing = record(outcomes([1.0], [math.nan], [math.nan], phase=[Phase.WAITING]))
    assert [path.name for path in write_figures([bare, nothing], tmp_path)] == ALL[:-1]
