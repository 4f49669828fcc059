"""Certificates and addresses: who may be spoken to in the clear, and how others are. Tokens travel with every request, so what
goes beyond this machine is encrypted unless somebody says otherwise."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from fairlead.core.errors import InputError
from fairlead.runtime.listening import host_of, port_of


def is_loopback(address: str) -> bool:
    """Whether what listens there, or is reached there, is on this machine only."""
    host = host_of(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_clear(option: str, address: str, *, encrypted: bool, insecure: bool, mend: str) -> None:
    """Refuses what is no address, and to go beyond this machine in the clear."""
    port_of(option, address)
    if not (encrypted or insecure or is_loopback(address)):
        wanted = f"an address of this machine, or {mend}; --insecure sends tokens in the clear"
        raise InputError(option, wanted, field="address", value=address)


@dataclass(frozen=True)
class Certificate:
    """A server's certificate, with those that vouch for it behind it, and its key: PEM files."""

    certificate: Path
    key: Path

    @classmethod
    def given(cls, certificate: Path | None, key: Path | None) -> Certificate | None:
        """None where neither is. What cannot be used is refused before anything listens."""
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise InputError("serve", "--tls-cert and --tls-key, both or neither")
        for path in (certificate, key):
            if not path.is_file():
                raise InputError(path, "a file that is there")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as problem:
            raise InputError(certificate, f"a certificate as PEM, with the key {key} ({problem})") from None
        return cls(certificate, key)

    def for_agents(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])


def trusting(authority: Path | None) -> grpc.ChannelCredentials | None:
    """How an agent believes a control plane: by a certificate authority's PEM file. None: in the clear."""
    if authority is None:
        return None
    try:
        ssl.create_default_context(cafile=str(authority))
    except (ssl.SSLError, OSError) as problem:
        raise InputError(authority, f"a certificate authority as PEM ({problem})") from None
    return grpc.ssl_channel_credentials(authority.read_bytes())
