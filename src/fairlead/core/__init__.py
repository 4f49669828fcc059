"""Contracts and values that all of Fairlead shares."""

VERSION = "0.1.0"
