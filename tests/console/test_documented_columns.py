"""The reference of the live stream names its columns, no more and no fewer."""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.console.live_feed import JOB_COLUMNS, NODE_COLUMNS

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))

from generators.answers import LIVE_JOB, LIVE_NODE


def test_the_columns_of_the_live_stream_are_documented():
    assert (tuple(LIVE_JOB), tuple(LIVE_NODE)) == (JOB_COLUMNS, NODE_COLUMNS)
