"""Fairlead: a scheduler for deep-learning clusters, with one deterministic, event-sourced core."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.client import lease as lease
    from fairlead.client import report as report
    from fairlead.config import SchedulerConfig

__version__ = "0.1.0"


def preset(name: str, /, **changes: object) -> SchedulerConfig:
    """A scheduler that ships with Fairlead (`fairlead presets` lists them), with other parts where `changes` says so:
    `preset("tiresias", placement="spread", rounds=60)`."""
    from fairlead.config import SchedulerConfig  # here, because training scripts do without it

    return SchedulerConfig.preset(name, **changes)


def __getattr__(name: str) -> object:
    """What training scripts use, fetched when it is used, so that `import fairlead` stays light."""
    if name in ("lease", "report"):
        from fairlead import client

        return getattr(client, name)
    raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
