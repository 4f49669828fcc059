"""Shared by the tests of reproductions: their pictures are small and have no layout, which takes longer than the runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.reporting import pictures


def small_canvas(width: float, height: float, rows: int = 1) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 4, height / 4))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1, squeeze=False)[:, 0]


@pytest.fixture(autouse=True, scope="session")
def _small_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "canvas", small_canvas)
        yield
