"""What the documentation and `help` say about policies comes from the code and is complete."""

from __future__ import annotations

import re

import pytest
from pages import DOCS

import fairlead.testing
from fairlead.core.columns import ALL_COLUMNS, JobColumns


def test_every_column_that_a_policy_may_read_has_a_unit_and_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    from generators.policy_inputs import INTERNAL, job_columns

    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", job_columns(), re.MULTILINE)
    computed = {name for name, found in vars(JobColumns).items() if type(found).__name__ == "_Kept"}
    assert {name for name, _, _ in rows} == {*ALL_COLUMNS, *computed} - {*INTERNAL}
    assert all(unit and meaning for _, unit, meaning in rows)
    assert ("accelerator_s", "GPU seconds", "GPU time so far: run time × GPUs held.") in rows


@pytest.mark.parametrize("what", ["policy", "admission", "placement", "termination", "estimator", "journal", "backend"])
def test_help_of_a_contract_says_what_it_checks_and_takes(what: str) -> None:
    found = getattr(fairlead.testing, f"{what}_contract")
    assert found.__name__ == f"{what}_contract"
    for part in ("\n    - ", "Args:", "Raises:", "Example:", "AssertionError"):
        assert part in found.__doc__
