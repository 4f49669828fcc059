"""A program that jobs of other users cannot start: the reason names the folder that keeps them out."""

from __future__ import annotations

from pathlib import Path

from fairlead.runtime.agent.processes import closed_folder


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
