"""Certificates for tests that speak through TLS: an authority of our own, and a server that it vouches for."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificates(folder: Path, address: str = "127.0.0.1") -> tuple[Path, Path, Path]:
    """An authority, and a server's certificate and key that it vouches for: files."""
    now = datetime.datetime.now(datetime.UTC)

    def certified(name: str, key, issuer: str, signer, *, authority: bool) -> x509.Certificate:
        subject, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        if authority:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            made = made.add_extension(usage, critical=True)
        else:
            here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")])
            made = made.add_extension(here, critical=False)
        return made.sign(signer, hashes.SHA256())

    root, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = {
        "ca.pem": certified("authority", root, "authority", root, authority=True).public_bytes(pem),
        "server.pem": certified("server", server, "authority", root, authority=False).public_bytes(pem),
        "server.key": server.private_bytes(pem, plain, serialization.NoEncryption()),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / "ca.pem", folder / "server.pem", folder / "server.key"
