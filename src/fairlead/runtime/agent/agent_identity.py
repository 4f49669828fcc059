"""What an agent keeps in its root folder to be recognized after a restart: the root's identity, the last number from its
control plane, and its node's credential. A job that runs as the agent's user can write these files: a file of another form
counts as damaged."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

from fairlead.files import atomic_write
from fairlead.runtime.agent.agent_errors import NodeError, node_errors
from fairlead.runtime.agent.stored_records import read_plain_file
from fairlead.runtime.host import Host

log = logging.getLogger(__name__)

CREDENTIAL_FILE = "credential"
_IDENTITY, _COUNT = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9]{1,15}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,200}")


class AgentIdentity:
    """An agent's name, number and token. `token` is the node's credential, if the root has one; otherwise the given token,
    which all agents share. Raises `NodeError`: the root cannot be written, or its credential is damaged and no token given."""

    def __init__(self, root: Path, token: str, host: Host) -> None:
        with node_errors(root):
            self.identity = _identity(root, host)
        self._incarnation_file = root / "incarnation"
        self.incarnation = int(stored_text(self._incarnation_file, _COUNT) or 0)
        self._credential_file = root / CREDENTIAL_FILE
        credential = stored_text(self._credential_file, _TOKEN)
        if not credential and os.path.lexists(self._credential_file):
            if not token:
                fix = "remove it, and pass --token-file with an agent token"
                raise NodeError(self._credential_file, f"the credential of this node is damaged: {fix}")
            log.warning(
                "the credential of this node is damaged; using the agent token", extra={"file": str(self._credential_file)}
            )
        self.token, self._given = credential or token, token

    def forget_credential(self) -> bool:
        """Use the given token again, as after the node was removed; False: it was in use, or there is none."""
        if not self._given or self.token == self._given:
            return False
        self.token = self._given
        self._credential_file.unlink(missing_ok=True)
        return True

    def keep_credential(self, credential: str) -> None:
        """Use the credential that the control plane has given, if any, from now on; also after a restart, if it can be
        stored."""
        if not credential:
            return
        self.token = credential
        try:
            atomic_write(self._credential_file, credential.encode(), private=True)
        except OSError as problem:
            why = f"{problem.strerror}; after a restart the agent token is used again"
            log.warning("cannot store the credential of this node: %s", why, extra={"file": str(self._credential_file)})

    def keep_incarnation(self, number: int) -> None:
        """Use the number that the control plane has issued, if any, from now on. If it cannot be stored, the agent has none
        after a restart: with an old one it would be refused."""
        if not number:
            return
        self.incarnation = number
        try:
            atomic_write(self._incarnation_file, str(number).encode(), private=True)
        except OSError as problem:
            log.warning("cannot store the number of this agent: %s", problem.strerror, extra={"file": str(problem.filename)})
            with contextlib.suppress(OSError):
                self._incarnation_file.unlink(missing_ok=True)


def stored_text(path: Path, form: re.Pattern[str]) -> str:
    """The text in a file, which a job may have written; empty if it does not have this form."""
    text = (read_plain_file(path) or b"").decode(errors="replace")
    return text if form.fullmatch(text) else ""


def _identity(root: Path, host: Host) -> str:
    """The random name of a root, created with it: another root with the same node name belongs to another agent."""
    path = root / "identity"
    found = stored_text(path, _IDENTITY)
    if not found:
        found = host.token(16)
        atomic_write(path, found.encode(), private=True)
    return found
