"""Operations HTTP in the daemon's own event loop: `/metrics`, `/healthz`, `/readyz`, and `/`, which links to
them and to the console.

`/healthz` is 200 as long as the loop runs. `/readyz` is 200 if every named check is ok, else 503; its JSON
has each check with its problem: `{"ready": false, "reasons": ["store: failed: …"], "checks": {"store": {"ok":
false, "detail": "failed: …"}, …}, "warnings": {}}`. A warning needs attention, but requests are served:
`{"retention": "…"}`.
"""

from __future__ import annotations

import asyncio
import html
import socket
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import AddressInUseError
from trovemq_daemon.exposition import text_in_turns
from trovemq_daemon.tls import read_identity
from trovemq_proto.bounded_http import CONNECTIONS_MAX, HttpsCertificate, config_of

STOP_TIME_MAX_S: Final = 2
PIECE_SIZE: Final = 64 << 10
DATE_S: Final = 1.0  # how old the date of a reply may be
PAGES: Final = {
    "/healthz": "whether it runs",
    "/readyz": "whether it serves requests, and why not",
    "/metrics": "counters for Prometheus",
}

ReadyCheck = Callable[[], str]
"""Returns the problem in a few words, or an empty text if there is none. It must be fast."""


class Readiness:
    """Named checks, which together decide whether the daemon is ready."""

    def __init__(self) -> None:
        self._checks: dict[str, ReadyCheck] = {}
        self._warnings: dict[str, ReadyCheck] = {}

    def add(self, name: str, check: ReadyCheck) -> None:
        self._checks[name] = check

    def add_warning(self, name: str, check: ReadyCheck) -> None:
        """Adds a warning: its text is shown with the checks, and the daemon stays ready."""
        self._warnings[name] = check

    def warnings(self) -> dict[str, str]:
        """The warnings that are not empty, by their names."""
        return {name: text for name, check in self._warnings.items() if (text := check())}

    def problems(self) -> dict[str, str]:
        """The result of every check by its name; an empty text is no problem."""
        return {name: check() for name, check in self._checks.items()}

    @property
    def ready(self) -> bool:
        return not any(self.problems().values())


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the daemon handles signals (trovemq_daemon.lifecycle). It wakes
    once a second, for the date of its replies; uvicorn's own server wakes ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Idle connections end at once. uvicorn's own shutdown first sleeps for a tenth of a second, which a
        node would wait at each change of its role."""
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        await asyncio.sleep(0)  # connections that were accepted just now
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # they are lost in the next iteration
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class OpsHttp:
    """The HTTP server. `await start()` binds, and serves in a task; `await stop()` ends it."""

    def __init__(
        self,
        registry: CollectorRegistry,
        readiness: Readiness,
        routes: Sequence[BaseRoute] = (),
        *,
        name: str = "TroveMQ",
        console_url: str = "",
    ) -> None:
        self._front = _front_page(name, console_url)
        self._registry = registry
        self._readiness = readiness
        self._app = Starlette(
            routes=[
                Route("/", self._index),
                Route("/metrics", self._metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                *routes,
            ]
        )
        self._one_scrape = asyncio.Lock()
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._certificate: HttpsCertificate | None = None

    async def start(self, address: Address, tls: tuple[Path, Path] | None = None) -> Address:
        """Binds, begins to serve, and returns the address with its real port.

        `tls`: PEM files of a certificate and its key. Raises AddressInUseError, SettingsError for the files.
        """
        if tls is not None:
            await asyncio.to_thread(read_identity, *tls)
            self._certificate = await asyncio.to_thread(HttpsCertificate, *tls)
        bound = _bind(address)
        more = {"lifespan": "off", "timeout_graceful_shutdown": STOP_TIME_MAX_S}
        self._server = _Server(uvicorn.Config(**config_of(self._app, self._certificate, **more)))
        self._task = asyncio.create_task(self._server.serve([bound]), name="operations-http")
        return address.with_port(bound.getsockname()[1])

    def replace_tls(self, certificate: Path, key: Path) -> None:
        """Replaces the certificate for later connections. Blocks. Raises ssl.SSLError, OSError for files that
        cannot be used."""
        if self._certificate is not None:
            self._certificate.replace(certificate, key)

    async def stop(self) -> None:
        if self._server is None or self._task is None:
            return
        self._server.end()
        await self._task

    async def _metrics(self, request: Request) -> Response:
        async with self._one_scrape:
            if await request.is_disconnected():
                return Response(status_code=503)  # it is not read
            parts = await text_in_turns(self._registry)
        headers = {"content-type": CONTENT_TYPE_LATEST, "content-length": str(sum(map(len, parts)))}
        return StreamingResponse(_pieces(parts), headers=headers)

    async def _index(self, _request: Request) -> Response:
        return HTMLResponse(self._front, headers={"content-security-policy": "default-src 'none'"})

    async def _healthz(self, _request: Request) -> Response:
        return JSONResponse({"alive": True})

    async def _readyz(self, _request: Request) -> Response:
        problems = self._readiness.problems()
        ready = not any(problems.values())
        checks = {name: {"ok": not detail, "detail": detail} for name, detail in problems.items()}
        answer = {
            "ready": ready,
            "reasons": [f"{name}: {detail}" for name, detail in problems.items() if detail],
            "checks": checks,
            "warnings": self._readiness.warnings(),
        }
        return JSONResponse(answer, status_code=200 if ready else 503)


def _front_page(name: str, console_url: str) -> str:
    title = html.escape(name)
    links = {console_url: "the console of its cluster", **PAGES} if console_url else PAGES
    rows = "".join(
        f'<li><a href="{html.escape(target)}">{html.escape(target)}</a>: {what}</li>\n'
        for target, what in links.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title></head>\n'
        f"<body><h1>{title}</h1>\n<ul>\n{rows}</ul></body></html>\n"
    )


async def _pieces(parts: list[bytes]) -> AsyncIterator[bytes]:
    """Yields the parts and removes each from the list, so that its memory is free once it is sent."""
    parts.reverse()
    piece = bytearray()
    while parts:
        piece += parts.pop()
        if len(piece) >= PIECE_SIZE or not parts:
            yield bytes(piece)
            piece.clear()


def _bind(address: Address) -> socket.socket:
    try:
        family, _, _, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target, family=family, backlog=CONNECTIONS_MAX)
    except OSError as error:
        raise AddressInUseError(
            f"cannot listen on {address} (operations HTTP): {error.strerror or error}"
        ) from error
