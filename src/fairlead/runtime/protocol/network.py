"""Network addresses and TLS of the control plane and its agents. An address is parsed and bound before anything else happens,
so that a wrong or used one leaves nothing behind. Tokens travel with every request, so connections beyond this machine are
encrypted unless the operator passes --insecure."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import grpc

from fairlead.core.errors import InputError, require

LAST_PORT = 65_535
FIRST_PORT, PORTS = 20_000, 10_000  # for gangs; below the range that the system assigns
_NOT_LOCAL = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def host_of(address: str) -> str:
    """The host of `host:port`, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def port_of(option: str, address: str) -> int:
    """The port of `host:port`; 0 means any free port."""
    port = address.rpartition(":")[2]
    if not host_of(address) or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= LAST_PORT):
        raise InputError(option, f"host:port, with a port from 0 to {LAST_PORT}", field="address", value=address)
    return int(port)


def own_address(towards: str) -> str:
    """The address from which this machine reaches another; loopback without a route to it."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(host_of(towards), LAST_PORT, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as one:
                one.connect(place)  # sends nothing: it only looks up the route
                return str(one.getsockname()[0])
    except OSError:
        pass
    return "127.0.0.1"


def reachable_address(address: str, port: int) -> str:
    """Where others reach a server that listens at an address, with the port that it has."""
    anywhere = host_of(address) in ("0.0.0.0", "::")
    return f"{socket.getfqdn() if anywhere else address.rpartition(':')[0]}:{port}"


def gang_ports(launch: tuple[int, int], checkpoints: str) -> tuple[int, int]:
    """Return two ports for a gang. They differ between launches, and between control planes on one machine."""
    first = FIRST_PORT + 2 * ((crc32(checkpoints.encode()) + 7919 * launch[0] + launch[1]) % (PORTS // 2))
    return first, first + 1


def bind_sockets(option: str, address: str) -> list[socket.socket]:
    """Sockets bound to an address; a name such as localhost may need several. All have the same port; none listens yet."""
    host, port = host_of(address), port_of(option, address)
    found: list[socket.socket] = []
    problem: OSError | None = None
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                found.append(_bound(family, kind, protocol, (place[0], port, *place[2:])))
            except OSError as missing:
                if missing.errno not in _NOT_LOCAL:
                    raise
                problem = missing
            else:
                port = found[0].getsockname()[1]
        if not found:
            raise problem or OSError("no such address")
    except OSError as why:
        for one in found:
            one.close()
        wanted = f"an address to listen at ({why.strerror or why})"
        raise InputError(option, wanted, field="address", value=address) from None
    return found


def check_address_free(option: str, address: str) -> None:
    """Check that an address can be bound, for a server that binds it itself a moment later."""
    for one in bind_sockets(option, address):
        one.close()


def _bound(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(place)
    except OSError:
        one.close()
        raise
    return one


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from this machine only."""
    host = host_of(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_encryption(option: str, address: str, *, encrypted: bool, insecure: bool, mend: str) -> None:
    """Refuse an invalid address, and an unencrypted one beyond this machine; `mend` names the options that encrypt it."""
    port_of(option, address)
    if not (encrypted or insecure or is_loopback(address)):
        wanted = f"an address of this machine, or {mend}; --insecure sends tokens in the clear"
        raise InputError(option, wanted, field="address", value=address)


@dataclass(frozen=True)
class Certificate:
    """A server's certificate chain and its key: PEM files."""

    certificate: Path
    key: Path

    @classmethod
    def load(cls, certificate: Path | None, key: Path | None) -> Certificate | None:
        """None without both. Files that cannot be used are refused before anything listens."""
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise InputError("serve", "--tls-cert and --tls-key, both or neither")
        for path in (certificate, key):
            require(path.is_file(), path, "an existing file")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as problem:
            raise InputError(certificate, f"a PEM certificate that matches the key {key} ({problem})") from None
        return cls(certificate, key)

    def for_agents(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])


def channel_credentials(authority: Path | None) -> grpc.ChannelCredentials | None:
    """Credentials of an agent that trusts a certificate authority (PEM file); None: not encrypted."""
    if authority is None:
        return None
    try:
        ssl.create_default_context(cafile=str(authority))
    except (ssl.SSLError, OSError) as problem:
        raise InputError(authority, f"a PEM certificate authority ({problem})") from None
    return grpc.ssl_channel_credentials(authority.read_bytes())
