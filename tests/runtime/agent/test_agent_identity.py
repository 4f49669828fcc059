"""The files by which an agent is recognized after a restart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fairlead import files
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.agent_identity import CREDENTIAL_FILE, AgentIdentity
from fairlead.runtime.host import Host


def test_a_credential_is_private_and_used_from_then_on_without_the_agent_token(tmp_path: Path) -> None:
    agent = AgentIdentity(tmp_path, "of all agents", Host())
    assert agent.token == "of all agents"
    agent.keep_credential("")  # the control plane gives none
    assert agent.token == "of all agents"
    agent.keep_credential("of-this-node")
    assert agent.token == "of-this-node"
    assert (tmp_path / "credential").stat().st_mode & 0o777 == 0o600
    assert [AgentIdentity(tmp_path, token, Host()).token for token in ("", "of all agents")] == ["of-this-node"] * 2


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"two words", b"x" * 201, b"line\n"])
def test_with_a_damaged_credential_the_agent_token_is_used_or_the_error_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "credential").write_bytes(content)
    assert AgentIdentity(tmp_path, "of all agents", Host()).token == "of all agents"
    assert "the credential of this node is damaged" in caplog.text
    with pytest.raises(NodeError, match="credential: the credential of this node is damaged: remove it, and pass --token-file"):
        AgentIdentity(tmp_path, "", Host())


def test_a_credential_that_cannot_be_stored_serves_this_agent_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = AgentIdentity(tmp_path, "of all agents", Host())

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "before_write", full)
        agent.keep_credential("of-this-node")
    assert agent.token == "of-this-node"
    assert "cannot store the credential of this node: No space left" in caplog.text
    assert AgentIdentity(tmp_path, "of all agents", Host()).token == "of all agents"


def test_a_temporary_agent_whose_credential_was_revoked_uses_its_token_again(tmp_path: Path) -> None:
    first = AgentIdentity(tmp_path, "token", Host())
    first.keep_credential("credential")
    assert not AgentIdentity(tmp_path, "", Host()).forget_credential()
    again = AgentIdentity(tmp_path, "token", Host())
    assert again.token == "credential"
    assert again.forget_credential()
    assert again.token == "token"
    assert not again.forget_credential()
    assert not (tmp_path / CREDENTIAL_FILE).exists()
