"""Fairlead: a scheduler for deep-learning clusters, with one deterministic, event-sourced core."""

__version__ = "0.1.0"
