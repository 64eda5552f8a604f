"""TLS of a client: trusted certificates and its own, read from PEM files and checked before it connects.

| variable | means | on the command line |
| --- | --- | --- |
| TROVEMQ_TLS | 1 or 0; if not set: 1 if one of the others is | --tls |
| TROVEMQ_TLS_CA | certificates that are trusted; the system's if not set | --tls-ca |
| TROVEMQ_TLS_CERT, TROVEMQ_TLS_KEY | the client's own certificate and its key | --tls-cert, --tls-key |
| TROVEMQ_TLS_SERVER_NAME | the name in the server's certificate | --tls-server-name |

An expired certificate is found here if `cryptography` is installed (`pip install 'trovemq[tls]'`), otherwise
by the handshake.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.file_modes import warn_of_mode

PEM_SIZE_MAX: Final = 1 << 20
VARIABLE: Final = "TROVEMQ_TLS"
_YES: Final = {"1", "true", "yes", "on"}
_NO: Final = {"0", "false", "no", "off"}
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)

PemFile = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS of a client. Each file is PEM.

    Attributes:
        ca: The certificates that are trusted; None: the system's.
        certificate: The client's own, with its chain, for a server that asks for one.
        key: Its private key, not encrypted.
        server_name: The name that the server's certificate must have; None: the host of the address.
    """

    ca: PemFile | None = None
    certificate: PemFile | None = None
    key: PemFile | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS options that were read and checked. Neither the key nor its file shows in a repr."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    server_name: str | None = None

    def __repr__(self) -> str:
        return f"ClientTls(server_name={self.server_name!r})"

    def context(self) -> ssl.SSLContext:
        """The context for Python's own ssl, with HTTP/2 only."""
        import trovemq_rpc

        return trovemq_rpc.ssl_channel_credentials(self.ca, self.key, self.certificate).context


def system_certificates() -> bytes | None:
    """PEM of the certificates that the system trusts; None if it has no such file."""
    bundle = ssl.get_default_verify_paths().cafile
    return Path(bundle).read_bytes() if bundle else None


def options_of_environment(environment: Mapping[str, str] = os.environ) -> TlsOptions | None:
    """TLS as the variables above say; None for a plain connection. TroveError TLS_OPTION_ILLEGAL."""
    switch = environment.get(VARIABLE, "").strip().casefold()
    if switch and switch not in _YES | _NO:
        raise TroveError(errors.TLS_OPTION_ILLEGAL, f"{VARIABLE} is 1 or 0, not {switch!r}")
    options = TlsOptions(
        ca=environment.get(f"{VARIABLE}_CA") or None,
        certificate=environment.get(f"{VARIABLE}_CERT") or None,
        key=environment.get(f"{VARIABLE}_KEY") or None,
        server_name=environment.get(f"{VARIABLE}_SERVER_NAME") or None,
    )
    wanted = switch in _YES or (not switch and options != TlsOptions())
    return options if wanted else None


def chosen_tls(
    given: bool | TlsOptions | None, environment: Mapping[str, str] = os.environ
) -> ClientTls | None:
    """TLS as a caller wants it (True: with the files of the environment; None: as the environment says).

    Raises:
        TroveError: TLS_OPTION_ILLEGAL.
    """
    if given is False:
        return None
    if isinstance(given, TlsOptions):
        return read_tls(given)
    options = options_of_environment({**environment, VARIABLE: "1"} if given else environment)
    return None if options is None else read_tls(options)


def read_tls(options: TlsOptions) -> ClientTls:
    """Reads the files and checks them. Raises TroveError TLS_OPTION_ILLEGAL that names the file."""
    if (options.certificate is None) != (options.key is None):
        given, missing = ("a key", "certificate") if options.certificate is None else ("a certificate", "key")
        raise TroveError(errors.TLS_OPTION_ILLEGAL, f"TLS has {given} and no {missing}: give both or neither")
    ca = None if options.ca is None else _read_ca(Path(options.ca))
    certificate = key = None
    if options.certificate is not None and options.key is not None:
        certificate, key = _read_pair(Path(options.certificate), Path(options.key))
    return ClientTls(ca=ca, certificate=certificate, key=key, server_name=options.server_name)


def _read_ca(path: Path) -> bytes:
    pem = b"".join(
        _CERTIFICATE.findall(_read(path, "CA"))
    )  # comments may have characters that ssl does not read
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise _fault(path, "holds no certificate in PEM form") from None
    _check_times(path, pem, leaf_only=False)
    return pem


def _read_pair(path: Path, key_path: Path) -> tuple[bytes, bytes]:
    certificate, key = _read(path, "CERT"), _read(key_path, "KEY")
    warn_of_mode(key_path)
    if b"-----BEGIN CERTIFICATE-----" not in certificate:
        raise _fault(path, "holds no certificate in PEM form")
    if b"ENCRYPTED" in key:
        raise _fault(key_path, "is encrypted; give a key without a password")
    if b"PRIVATE KEY-----" not in key:
        raise _fault(key_path, "holds no private key in PEM form")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, key_path, password=lambda: b"")
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise _fault(key_path, f"is not the key of the certificate in {path}") from None
        raise _fault(path, f"and {key_path} cannot be used: {error.reason or error}") from None
    _check_times(path, certificate, leaf_only=True)
    return certificate, key


def _read(path: Path, what: str) -> bytes:
    named_by = f"--tls-{what.lower()}, {VARIABLE}_{what}"
    try:
        with path.open("rb") as file:
            content = file.read(PEM_SIZE_MAX + 1)
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror} ({named_by})") from None
    if len(content) > PEM_SIZE_MAX:
        raise _fault(path, f"has more than {PEM_SIZE_MAX} bytes ({named_by})")
    return content


def _check_times(path: Path, pem: bytes, *, leaf_only: bool) -> None:
    """Refuses a file none of whose certificates is valid now; `leaf_only`: the first of a chain must be."""
    try:
        from cryptography import x509
    except ImportError:
        return
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise _fault(path, "holds no certificate in PEM form") from None
    if leaf_only:
        del certificates[1:]
    now = datetime.now(UTC)
    ends = max(certificate.not_valid_after_utc for certificate in certificates)
    if ends <= now:
        raise _fault(path, f"has expired, on {ends:%Y-%m-%d}: make or order a new one")
    begins = min(certificate.not_valid_before_utc for certificate in certificates)
    if begins > now:
        raise _fault(path, f"is valid from {begins:%Y-%m-%d %H:%M} UTC only: look at this machine's clock")


def _fault(path: Path, text: str) -> TroveError:
    return TroveError(errors.TLS_OPTION_ILLEGAL, f"{path} {text}", file=path)
