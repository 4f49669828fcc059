"""Folders that keep users out: a program that their jobs cannot start, and the root folder of an agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.processes import closed_folder
from fairlead.runtime.agent.supervisor import Supervisor


def test_the_folder_that_keeps_users_out_is_named(tmp_path: Path) -> None:
    program = tmp_path / "closed" / "python"
    program.parent.mkdir(mode=0o700)
    program.touch(mode=0o755)
    reason = closed_folder(PermissionError(13, "Permission denied"), str(program), {})
    closed = next(path for path in reversed(program.parents) if not path.stat().st_mode & 1)
    assert f"cannot pass through {closed}: chmod o+x {closed}, or install the program elsewhere" in reason
    assert closed_folder(PermissionError(), "python", {"PATH": str(program.parent)}) == reason
    assert closed_folder(FileNotFoundError(), str(program), {}) == ""
    assert closed_folder(PermissionError(), str(tmp_path / "none"), {}) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another account")
def test_a_root_folder_that_another_account_has_made_is_refused(tmp_path: Path) -> None:
    shared, root = tmp_path / "shared", tmp_path / "shared" / "root"
    shared.mkdir()
    root.mkdir()
    os.chown(root, 4242, 4242)
    Supervisor(root, NodeAccelerators.parse("v100:1")).close()  # no other account can have made it
    shared.chmod(0o1777)
    with pytest.raises(NodeError, match="belongs to another account"):
        Supervisor(root, NodeAccelerators.parse("v100:1"))
