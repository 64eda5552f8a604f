"""The certificate of a daemon: from PEM files, or one for development, which is made at each start.

A development certificate is self-signed, and its key is never written to disk. Clients that verify nothing
(RocketMQ's Java and Go clients by default) accept it; others must be configured to trust it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import get_logger
from trovemq_daemon.private_files import warn_of_mode

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

PEM_SIZE_MAX: Final = 1 << 20
DEVELOPMENT_DAYS: Final = 365
_CLOCK_SKEW: Final = timedelta(days=1)  # for clients whose clock is slow


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A certificate chain with its private key, both PEM. The key does not show in a repr.

    `client_ca`: PEM of the authorities of client certificates; None: clients need none. `client_crl`: PEM of
    their revocation lists; None: revocation is not checked.
    """

    certificate: bytes
    key: bytes
    fingerprint: str  # SHA-256 of the certificate, as hexadecimal digits
    begins: datetime
    expires: datetime
    development: bool = False
    client_ca: bytes | None = None
    client_crl: bytes | None = None

    def __repr__(self) -> str:
        return f"TlsIdentity({self.fingerprint})"


def read_identity(certificate_path: Path, key_path: Path) -> TlsIdentity:
    """Reads both files. Raises SettingsError that names the file and its fault."""
    from cryptography import x509

    certificate_pem, key_pem = _read(certificate_path, "tls_certificate"), _read(key_path, "tls_key")
    warn_of_mode(key_path)
    try:
        certificate = x509.load_pem_x509_certificates(certificate_pem)[0]
    except ValueError:
        raise SettingsError(f"{certificate_path} holds no certificate in PEM form") from None
    key = _load_key(key_path, key_pem)
    if key.public_key() != certificate.public_key():
        raise SettingsError(f"{key_path} is not the key of the certificate in {certificate_path}")
    return _identity(certificate, certificate_pem, key_pem)


def development_identity(hosts: Collection[str], now: datetime) -> TlsIdentity:
    """A certificate for localhost, its addresses and `hosts` (names or IP addresses), valid for a year."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [_general_name(host) for host in dict.fromkeys(("localhost", "127.0.0.1", "::1", *hosts))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=DEVELOPMENT_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
    return _identity(certificate, certificate_pem, key_pem, development=True)


def identity_for(
    certificate: str, key: str, *, hosts: Collection[str], client_ca: str = "", client_crl: str = ""
) -> TlsIdentity:
    """The certificate of the files, if they are given, else one for development. Raises SettingsError."""
    if certificate:
        identity = read_identity(Path(certificate), Path(key))
    else:
        identity = development_identity(hosts, datetime.now(UTC))
    if not client_ca:
        return identity
    authorities = _read_certificates(Path(client_ca))
    lists = _read_revocations(Path(client_crl), authorities) if client_crl else None
    return replace(identity, client_ca=authorities, client_crl=lists)


def log_identity(identity: TlsIdentity) -> None:
    """Logs the certificate in one line; a warning for a development certificate, and for one that clients
    refuse now."""
    log = get_logger(sha256=identity.fingerprint, expires=identity.expires.isoformat())
    if identity.development:
        log.warning("tls.development_certificate", reason="no tls_certificate was given")
    elif identity.expires <= datetime.now(UTC):
        log.warning("tls.certificate_expired")
    elif identity.begins > datetime.now(UTC):
        log.warning("tls.certificate_not_valid_yet", begins=identity.begins.isoformat())
    else:
        log.info("tls.certificate")


def _read(path: Path, setting: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(PEM_SIZE_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{setting} {path} cannot be read: {error.strerror}") from None
    if len(content) > PEM_SIZE_MAX:
        raise SettingsError(f"{setting} {path} has more than {PEM_SIZE_MAX} bytes")
    return content


def _read_certificates(path: Path) -> bytes:
    from cryptography import x509

    pem = _read(path, "tls_client_ca")
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise SettingsError(f"{path} holds no certificate in PEM form") from None
    return pem


def _read_revocations(path: Path, authorities: bytes) -> bytes:
    """Reads revocation lists: at least one for each authority."""
    from cryptography import x509

    pem = _read(path, "tls_client_crl")
    blocks = re.findall(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", pem, re.DOTALL)
    try:
        lists = [x509.load_pem_x509_crl(block) for block in blocks]
    except ValueError:
        raise SettingsError(f"{path} holds a list of revoked certificates that cannot be read") from None
    if not lists:
        raise SettingsError(f"{path} holds no list of revoked certificates in PEM form (X509 CRL)")
    now = datetime.now(UTC)
    for authority in x509.load_pem_x509_certificates(authorities):
        own = [one for one in lists if _is_list_of(authority, one)]
        name = authority.subject.rfc4514_string()
        if not own:
            raise SettingsError(f"{path} holds no list of {name!a}, whose certificates tls_client_ca takes")
        ends = [one.next_update_utc for one in own if one.next_update_utc is not None]
        if len(ends) == len(own) and max(ends) <= now:
            get_logger().warning(
                "tls.revocation_list_expired",
                path=str(path),
                authority=name,
                advice="clients of this authority are refused until there is a newer list",
            )
    return pem


def _is_list_of(authority: x509.Certificate, found: x509.CertificateRevocationList) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm

    if found.issuer != authority.subject:
        return False
    try:
        return found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, UnsupportedAlgorithm):
        return False


def _load_key(path: Path, pem: bytes) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, password=None)
    except TypeError:
        raise SettingsError(f"{path} is encrypted; give a key without a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise SettingsError(f"{path} holds no private key in PEM form") from None


def _identity(
    certificate: x509.Certificate, certificate_pem: bytes, key_pem: bytes, *, development: bool = False
) -> TlsIdentity:
    from cryptography.hazmat.primitives import hashes

    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return TlsIdentity(
        certificate_pem,
        key_pem,
        fingerprint,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        development=development,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
