"""Fairlead: a scheduler for deep-learning clusters, with one deterministic, event-sourced core."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.client import Elastic as Elastic
    from fairlead.client import elastic as elastic
    from fairlead.client import lease as lease
    from fairlead.client import report as report
    from fairlead.client import route as route

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """What training scripts use, fetched when it is used, so that `import fairlead` stays light."""
    if name in ("Elastic", "elastic", "lease", "report", "route"):
        from fairlead import client

        return getattr(client, name)
    raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
