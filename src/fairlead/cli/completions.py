"""Values that the shell completes: names of jobs and nodes of the cluster, and of installed policies, presets and formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

ANSWER_WITHIN_S = 1.0
"""How long a completion waits for the control plane. Without an answer there is no completion."""


def completions_of(what: str) -> Iterable[str]:
    """Return the values of a kind: `jobs`, `nodes`, `presets`, `parts`, or the parts of one kind, such as `policy`."""
    if what in ("jobs", "nodes"):
        from fairlead.runtime.http_client import ControlPlaneClient  # needs the extra `cluster`

        plane = replace(ControlPlaneClient.from_environment(), timeout_s=ANSWER_WITHIN_S)
        return [str(found["name"]) for found in (plane.jobs() if what == "jobs" else plane.nodes())]
    from fairlead.config.registry import GROUPS, Registry, presets

    if what == "presets":
        return sorted(presets())
    entries = Registry.installed().entries
    return sorted({*GROUPS, *(name for names in entries.values() for name in names)} if what == "parts" else entries[what])
