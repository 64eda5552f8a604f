"""Certificates for development: an authority, and certificates of servers and clients that it signs.

Needs the package `cryptography` (`pip install 'trovemq[tls]'`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CLOCK_SKEW: Final = timedelta(days=1)  # for machines whose clock is slow
HOSTS_DEFAULT: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM. The key does not show in a repr."""

    certificate: bytes
    key: bytes
    expires: datetime
    fingerprint: str  # SHA-256 of the certificate, as hexadecimal digits

    def __repr__(self) -> str:
        return f"KeyPair({self.fingerprint})"


def make_authority(name: str, days: int, now: datetime) -> KeyPair:
    """An authority's certificate, which signs itself and others."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key, key, days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def make_server(
    authority_pem: bytes, key_pem: bytes, hosts: Sequence[str], days: int, now: datetime
) -> KeyPair:
    """A server's certificate for these names and IP addresses; a broker that registers can show it as a
    client, too."""
    from cryptography import x509

    names = [_general_name(host) for host in hosts]
    server, client = x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH
    return _make(authority_pem, key_pem, hosts[0], days, now, [server, client], names)


def make_client(authority_pem: bytes, key_pem: bytes, name: str, days: int, now: datetime) -> KeyPair:
    """A client's certificate; its subject is CN=name."""
    from cryptography import x509

    usages = [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    return _make(authority_pem, key_pem, name, days, now, usages, [])


def revoke(
    authority_pem: bytes,
    key_pem: bytes,
    revoked: Sequence[bytes],
    before: bytes | None,
    days: int,
    now: datetime,
) -> tuple[bytes, int]:
    """The authority's list of revoked certificates: those of `before`, and these. Returns it and its length.

    Raises ValueError where a certificate is not the authority's, or the list of before is not.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization

    authority, signing_key = _authority(authority_pem, key_pem)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(now - CLOCK_SKEW)
        .next_update(now + timedelta(days=days))
    )
    entries = {}
    if before is not None:
        held = x509.load_pem_x509_crl(before)
        if held.issuer != authority.subject or not held.is_signature_valid(signing_key.public_key()):
            raise ValueError("the list of before is another authority's")
        entries = {one.serial_number: one.revocation_date_utc for one in held}
    for pem in revoked:
        certificate = x509.load_pem_x509_certificate(pem)
        try:
            certificate.verify_directly_issued_by(authority)
        except InvalidSignature:
            raise ValueError("a certificate is another authority's") from None
        entries.setdefault(certificate.serial_number, now)
    for serial, date in entries.items():
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build()
        builder = builder.add_revoked_certificate(one)
    made = builder.sign(signing_key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM), len(entries)


def _authority(authority_pem: bytes, key_pem: bytes) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Raises ValueError where the files are not a certificate and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    authority = x509.load_pem_x509_certificate(authority_pem)
    signing_key = load_pem_private_key(key_pem, password=None)
    if signing_key.public_key() != authority.public_key() or not isinstance(
        signing_key, ec.EllipticCurvePrivateKey
    ):
        raise ValueError("the key is not the certificate's")
    return authority, signing_key


def _make(
    authority_pem: bytes,
    key_pem: bytes,
    name: str,
    days: int,
    now: datetime,
    usages: list[x509.ObjectIdentifier],
    names: list[x509.GeneralName],
) -> KeyPair:
    """Raises ValueError where the authority's files are not a certificate and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    authority, signing_key = _authority(authority_pem, key_pem)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), authority.subject, key, signing_key, days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _signed(builder, key, signing_key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing_key: ec.EllipticCurvePrivateKey,
    days: int,
    now: datetime,
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
        )
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signing_key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    from cryptography.hazmat.primitives import hashes, serialization

    certificate = builder.sign(signing_key, hashes.SHA256())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return KeyPair(pem, key_pem, certificate.not_valid_after_utc, fingerprint)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return cast("x509.GeneralName", x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        return cast("x509.GeneralName", x509.DNSName(host))
