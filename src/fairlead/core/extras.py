"""What Fairlead can do without is in extras of its package; whoever finds one missing says here how it is had."""

from __future__ import annotations

from fairlead.core.errors import FairleadError


class NotInstalled(FairleadError):
    """What was asked for needs an extra that is not there; nothing is wrong with it otherwise."""


def install(extra: str) -> str:
    """The mend, as the end of a sentence."""
    return f"in the clone of Fairlead, pip install -e '.[{extra}]'"
