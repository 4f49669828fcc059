"""What is not installed with Fairlead unless it is asked for, and how to ask."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    return f"pip install 'fairlead[{extra}]', or in a clone of it: pip install -e '.[{extra}]'"
