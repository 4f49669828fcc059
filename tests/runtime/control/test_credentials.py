"""Credentials of nodes: how they are stored, and what a bearer may do with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import files
from fairlead.runtime.control.request_guard import HTTPException, check_token
from fairlead.runtime.control.tokens import Role, Tokens

HERE, ELSEWHERE = "a" * 32, "b" * 32


def test_a_new_credential_of_a_node_replaces_the_former_one(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.issue(Role.USER, "n1")  # a user with the name of the node
    issued = [tokens.issue_credential("n1", HERE) for _ in range(20)] + [tokens.issue_credential("n2", HERE)]
    assert [(one.role, one.user) for one in tokens.listed()] == [(Role.USER, "n1"), (Role.NODE, "n1"), (Role.NODE, "n2")]
    other = Tokens(tmp_path / "tokens.json")
    assert [other.bearer(token) is not None for token in issued] == [False] * 19 + [True] * 2
    held = other.credential_of("n1")
    assert held is not None
    assert (held.is_for(HERE), held.is_for(ELSEWHERE), held.is_for("")) == (True, False, False)
    assert other.revoke("n1", Role.NODE) == 1
    assert not tokens.is_valid(held)
    assert tokens.credential_of("n1") is None
    assert [one.user for one in tokens.listed()] == ["n1", "n2"]


def test_a_credential_that_cannot_be_stored_leaves_the_former_one_valid(tmp_path: Path, monkeypatch) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    first = tokens.issue_credential("n1", HERE)

    def full(path: Path) -> None:
        raise OSError(28, os.strerror(28), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "before_write", full)
        with pytest.raises(OSError, match="No space"):
            tokens.issue_credential("n1", HERE)
    assert tokens.bearer(first) is not None


@pytest.mark.parametrize("role", [Role.AGENT, Role.NODE])
def test_agents_and_nodes_are_no_users_of_the_http_api(role: Role) -> None:
    tokens = Tokens()
    with pytest.raises(HTTPException) as refused:
        check_token(tokens.bearer(tokens.issue(role, "n1")))
    assert refused.value.status_code == 401
