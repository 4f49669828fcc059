"""Writes the parts of the reference that come from the code into docs/reference/generated, which git ignores.

A page of docs/reference has the introduction, and a comment `<!-- generated: NAME -->` where the generated part stands on the
site; so links to the page are valid in a plain view of the repository too. `make docs` calls this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "reference" / "generated"

PARTS: Mapping[str, str] = {
    "cli": "generators.cli:cli_page",
    "cluster-keys": "generators.files:cluster_keys",
    "events": "generators.runtime:events",
    "exit-codes": "generators.runtime:exit_codes",
    "http-api": "generators.runtime:http_api",
    "job-columns": "generators.policy_inputs:job_columns",
    "part-parameters": "generators.files:part_parameters",
    "presets": "generators.files:preset_table",
    "prometheus": "generators.runtime:prometheus",
    "python-client": "generators.python_api:client_api",
    "python-fairlead": "generators.python_api:fairlead_api",
    "python-plugin": "generators.python_api:plugin_api",
    "python-testing": "generators.python_api:testing_api",
    "run-tables": "generators.python_api:run_tables",
    "scheduler-keys": "generators.files:scheduler_keys",
    "task-file": "generators.files:task_file",
    "trace-columns": "generators.files:trace_columns",
    "trace-formats": "generators.files:trace_formats",
}
"""By name: the function that returns the Markdown of a part."""


def generate(folder: Path = FOLDER) -> None:
    """Write every part. A file that would not change is left alone, so that only changed pages are built again."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in PARTS.items():
        module, _, function = place.partition(":")
        make: Callable[[], str] = getattr(import_module(module), function)
        text, file = make().strip() + "\n", folder / f"{name}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    generate()
