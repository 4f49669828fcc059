"""Agents and control planes of other versions: the parts of the protocol that never change."""

from __future__ import annotations

from fairlead.runtime.protocol.messages import PROTOCOL_VERSION, Hello, Refused, decode_message

HELLO_4 = (
    b'{"is":"hello","node":"n","type":"v100","accelerators":1,"incarnation":1,"address":"127.0.0.1","running":[],'
    b'"journal":"","version":4}'
)
REFUSED_4 = b'{"is":"refused","why":"the agent speaks version 5, the control plane 4: install the same Fairlead on both"}'


def test_a_former_agent_is_recognized_and_so_refused_by_its_version() -> None:
    hello = decode_message(HELLO_4)
    assert isinstance(hello, Hello)
    assert hello.version == 4 != PROTOCOL_VERSION


def test_the_refusal_of_a_former_control_plane_can_be_read() -> None:
    refused = decode_message(REFUSED_4)
    assert isinstance(refused, Refused)
    assert "install the same Fairlead on both" in refused.why


def test_an_agent_of_a_later_version_is_refused_by_its_version_though_it_says_more() -> None:
    hello = decode_message(HELLO_4.replace(b'"version":4', b'"version":6,"speed":1'))
    assert isinstance(hello, Hello)
    assert hello.version == 6 != PROTOCOL_VERSION
