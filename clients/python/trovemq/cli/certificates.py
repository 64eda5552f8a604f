"""cert: a certificate authority for development, and certificates of servers and clients that it signs."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.file_modes import warn_of_mode

if TYPE_CHECKING:
    from trovemq._net.certificates import KeyPair

AUTHORITY: Final = "ca"
REVOKED: Final = "revoked.pem"
DAYS_MAX: Final = 3650
NAME_LENGTH_MAX: Final = 64  # of a common name
HOSTS_MAX: Final = 64
_KEY_MODE: Final = 0o600
_CERTIFICATE_MODE: Final = 0o644

app = typer.Typer(no_args_is_help=True, help="Certificates for development.")

DirectoryOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Where the files are; made if it is missing.")
]
DaysOption = Annotated[
    int, typer.Option("--days", min=1, max=DAYS_MAX, help="How long the certificate is valid.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]


@verb(app, "ca")
async def make_ca(
    session: Session,
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = DAYS_MAX,
    force: ForceOption = False,
) -> None:
    """Make an authority. ca.pem, which clients and servers trust, and ca.key, which signs."""
    making = _library()
    files = _Files(directory, AUTHORITY)
    files.check(force=force)
    files.write(making.make_authority("TroveMQ development CA", days, datetime.now(UTC)), session)


@verb(app, "server")
async def make_server(
    session: Session,
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]...",
            help="Names and IP addresses that clients dial (localhost).",
            show_default=False,
        ),
    ] = None,
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = 365,
    force: ForceOption = False,
) -> None:
    """Make a daemon's server.pem and server.key. Signed by the authority of `cert ca`."""
    making = _library()
    names = hosts or list(making.HOSTS_DEFAULT)
    for host in names:
        _check_name("HOST", host)
    if len(names) > HOSTS_MAX:
        raise typer.BadParameter(f"at most {HOSTS_MAX} names and addresses")
    files = _Files(directory, "server")
    files.check(force=force)
    certificate, key = _authority(directory)
    pair = _made(lambda: making.make_server(certificate, key, names, days, datetime.now(UTC)), directory)
    files.write(pair, session, names=names)


@verb(app, "client")
async def make_client(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The subject, and the files' name.")] = "client",
    directory: DirectoryOption = Path("certs"),
    days: DaysOption = 365,
    force: ForceOption = False,
) -> None:
    """Make a client's NAME.pem and NAME.key. Signed by the authority of `cert ca`."""
    making = _library()
    _check_name("NAME", name)
    if name in (AUTHORITY, "server", "revoked") or name.startswith(".") or os.sep in name:
        raise typer.BadParameter(f"{name!r} cannot be the name of a client's files")
    files = _Files(directory, name)
    files.check(force=force)
    certificate, key = _authority(directory)
    pair = _made(lambda: making.make_client(certificate, key, name, days, datetime.now(UTC)), directory)
    files.write(pair, session, names=[name])


@verb(app, "revoke")
async def revoke(
    session: Session,
    certificates: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[CERT]...", help="PEM files; without one the list is renewed.", show_default=False
        ),
    ] = None,
    directory: DirectoryOption = Path("certs"),
    days: Annotated[
        int, typer.Option("--days", min=1, max=DAYS_MAX, help="How long the list counts; renew it before.")
    ] = 30,
) -> None:
    """Revoke certificates of clients. Into revoked.pem, which a daemon reads as tls_client_crl."""
    making = _library()
    certificate, key = _authority(directory)
    path = directory / REVOKED
    before = _read(path) if path.exists() else None
    wanted = [_read(one) for one in certificates or ()]
    try:
        made, count = making.revoke(certificate, key, wanted, before, days, datetime.now(UTC))
    except (ValueError, TypeError) as error:
        raise _illegal(f"the authority in {directory} cannot revoke them: {error}") from None
    _write(path, made, _CERTIFICATE_MODE)
    _show(session, {"list": str(path), "revoked": count, "days": days})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _illegal(f"{path} cannot be read: {error.strerror}") from None


class _Files:
    """DIR/NAME.pem and DIR/NAME.key."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"

    def check(self, *, force: bool) -> None:
        """Creates the directory. Raises TroveError TLS_OPTION_ILLEGAL if a file exists, unless `force`."""
        for path in (self._key, self._certificate):
            if path.exists() and not force:
                raise _illegal(f"{path} is there already; --force replaces it")
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise _illegal(f"{self._directory} cannot be made: {error.strerror}") from None

    def write(self, pair: KeyPair, session: Session, *, names: list[str] | None = None) -> None:
        """Writes both files, the key readable only for its owner, and prints the answer."""
        _write(self._key, pair.key, _KEY_MODE)
        _write(self._certificate, pair.certificate, _CERTIFICATE_MODE)
        fields: dict[str, object] = {
            "certificate": str(self._certificate),
            "key": str(self._key),
            "names": names or [],
            "expires": pair.expires.date().isoformat(),
            "sha256": pair.fingerprint,
        }
        _show(session, fields, names=", ".join(names or []) or None)


def _show(session: Session, fields: dict[str, object], **shown: object) -> None:
    """`shown`: in place of fields, for people."""
    session.output.item(fields)
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card({**fields, **shown}))


def _write(path: Path, content: bytes, mode: int) -> None:
    """Writes the file in one step: no reader sees a part of it, and none without the rights of `mode` at any
    time."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            if hasattr(os, "fchmod"):  # not on Windows
                os.fchmod(file.fileno(), mode)  # whatever the umask is
            file.write(content)
        new.replace(path)
    except OSError as error:
        raise _illegal(f"{path} cannot be written: {error.strerror}") from None


def _authority(directory: Path) -> tuple[bytes, bytes]:
    """The certificate and the key that sign. Raises TroveError TLS_OPTION_ILLEGAL."""
    contents = []
    for path in (directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"):
        try:
            contents.append(path.read_bytes())
        except FileNotFoundError:
            raise _illegal(f"{path} is missing: make it with `trovemq cert ca --dir {directory}`") from None
        except OSError as error:
            raise _illegal(f"{path} cannot be read: {error.strerror}") from None
    warn_of_mode(path)  # the key
    certificate, key = contents
    return certificate, key


def _made(make: Callable[[], KeyPair], directory: Path) -> KeyPair:
    try:
        return make()
    except (ValueError, TypeError) as error:  # TypeError: a key with a password
        raise _illegal(f"{directory}/{AUTHORITY}.pem and {AUTHORITY}.key cannot sign: {error}") from None


def _check_name(what: str, text: str) -> None:
    if not 1 <= len(text) <= NAME_LENGTH_MAX or not text.isascii() or not text.isprintable() or " " in text:
        raise typer.BadParameter(
            f"{what} has 1 to {NAME_LENGTH_MAX} ASCII characters and no space, not {text!r}"
        )


def _library() -> Any:
    """The module that makes them. Raises TroveError TLS_OPTION_ILLEGAL if `cryptography` is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise _illegal(
            "certificates are made by the package cryptography: pip install 'trovemq[tls]'"
        ) from None
    from trovemq._net import certificates

    return certificates


def _illegal(text: str) -> TroveError:
    return TroveError(errors.TLS_OPTION_ILLEGAL, text)
