"""Commands that the package of the papers adds, and what is said where it is not installed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fairlead.cli import main
from fairlead.core.errors import NotInstalled


def test_commands_of_another_package_are_listed_in_their_group():
    for group, added in (("predict", ("evaluate", "pairs")), ("inference", ("mixes",))):
        listed = CliRunner().invoke(main.app, [group, "--help"]).stdout
        assert all(f"\n  {name} " in listed for name in added)


@pytest.mark.parametrize("command", main.IN_PAPERS)
def test_a_command_says_how_to_install_it(command, monkeypatch):
    monkeypatch.setattr(main, "_added", dict)
    done = CliRunner().invoke(main.app, [*command.split(), "anything", "--help"])
    assert isinstance(done.exception, NotInstalled)
    assert str(done.exception).startswith(f"'fairlead {command}' needs the package fairlead-papers")
