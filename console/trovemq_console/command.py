"""`trovemq console`: the command line, and the server."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
import uvicorn

import trovemq
from trovemq import Client, ClientOptions, TroveError
from trovemq_console.app import make_app
from trovemq_console.settings import ConsoleSettings, is_loopback
from trovemq_proto.bounded_http import CONNECTIONS_MAX, HttpsCertificate, config_of
from trovemq_proto.file_modes import warn_of_mode

SERVER_DEFAULT: Final = "127.0.0.1:8081"
STOP_SECONDS_MAX: Final = 2
TOKEN_VARIABLE: Final = "TROVEMQ_CONSOLE_TOKEN"  # noqa: S105  its name
CALL_TIMEOUT_MS: Final = 5_000
USAGE: Final = 2  # exit codes, as the daemons'
ADDRESS_IN_USE: Final = 6


def serve(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where browsers reach it.")
    ] = "127.0.0.1:8090",
    server: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "--server",
            metavar="SERVER",
            help="Nameservers, HOST:PORT[,HOST:PORT], or a broker, or trovemq://…; else "
            f"$TROVEMQ_SERVER, else {SERVER_DEFAULT}.",
            show_default=False,
        ),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Serve acts: messages, topics, groups, users and rules.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM certificate: serve by HTTPS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM key of the certificate.", show_default=False)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain HTTP on more than loopback.")
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A name by which browsers call it (repeatable).", show_default=False
        ),
    ] = None,
) -> None:
    """Serve a console for a cluster. Its calls have the rights of its credentials
    (TROVEMQ_ACCESS_KEY and TROVEMQ_SECRET_KEY, or TROVEMQ_CREDENTIALS).

    If it listens on more than loopback, or has credentials, browsers must sign in: with the address that it
    prints, or the token in TROVEMQ_CONSOLE_TOKEN.
    """
    host, port = _address(listen)
    loopback = is_loopback(host)
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("give --tls-certificate and --tls-key together")
    if not loopback and tls_certificate is None and not insecure:
        raise typer.BadParameter(
            f"{host} is more than loopback: give --tls-certificate and --tls-key, or --insecure"
        )
    names = [*(host_name or []), *([socket.gethostname()] if not loopback else [])]
    server = server or os.environ.get("TROVEMQ_SERVER") or SERVER_DEFAULT
    settings = ConsoleSettings(
        server,
        host,
        port,
        allow_changes,
        None if tls_certificate is None or tls_key is None else (tls_certificate, tls_key),
        tuple(names),
        _token(must=not loopback or _has_credentials(server)),
    )
    raise typer.Exit(_run(settings))


def main(arguments: Sequence[str] | None = None, program: str = "trovemq console") -> None:
    """Runs the command line: `trovemq console` calls it with its arguments."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name="console")(serve)
    app(args=None if arguments is None else list(arguments), prog_name=program)


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _token(*, must: bool) -> str | None:
    given = os.environ.get(TOKEN_VARIABLE)
    return given or (secrets.token_urlsafe(24) if must else None)


def _has_credentials(server: str) -> bool:
    try:
        return "@" in server or ClientOptions().credentials() is not None
    except TroveError as error:
        raise typer.BadParameter(str(error)) from None


def _run(settings: ConsoleSettings) -> int:
    """Binds, prints the address, and serves until a signal; returns the exit code."""
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        bound = socket.create_server((settings.host, settings.port), family=family, backlog=CONNECTIONS_MAX)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        return _failed(f"cannot listen on {settings.host}:{settings.port}: {reason}", ADDRESS_IN_USE)
    settings = settings.with_port(bound.getsockname()[1])
    try:
        certificate = _certificate(settings)
    except OSError as error:  # also if a file is not valid for TLS
        bound.close()
        return _failed(f"the certificate or its key cannot be used: {error.strerror or error}", USAGE)
    app = make_app(settings, lambda: _connect(settings.server))
    config = uvicorn.Config(**config_of(app, certificate, timeout_graceful_shutdown=STOP_SECONDS_MAX))
    sys.stderr.write(greeting(settings))
    sys.stderr.flush()
    _Server(config).run([bound])
    return 0


def _certificate(settings: ConsoleSettings) -> HttpsCertificate | None:
    """Raises OSError for files that cannot be used."""
    if settings.tls is None:
        return None
    certificate, key = settings.tls
    warn_of_mode(key)
    return HttpsCertificate(certificate, key)


def _failed(text: str, code: int) -> int:
    sys.stderr.write(f"trovemq console: {text}\n")
    return code


class _Server(uvicorn.Server):
    """uvicorn that ends with exit code 0 at a signal, and at once at a second one."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit, self.should_exit = self.should_exit, True


def greeting(settings: ConsoleSettings) -> str:
    """The line with the address of the console."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    token = f"sign-in?token={settings.sign_in_token}" if settings.sign_in_token else ""
    mode = "changes are allowed" if settings.allow_changes else "read-only"
    url = f"{settings.scheme}://{host}:{settings.port}/{token}"
    return f"console of {settings.shown_server}, {mode}: {url}\n"


async def _connect(server: str) -> Client:
    return await trovemq.connect(server, options=ClientOptions(call_timeout_ms=CALL_TIMEOUT_MS))


if __name__ == "__main__":
    main(program="python -m trovemq_console.command")
