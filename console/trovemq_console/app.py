"""The console as an ASGI application: the guard, the pages that it admits, and a page for every error."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from trovemq import TroveError
from trovemq_console.cluster import Clock, Cluster, Connect
from trovemq_console.examination import Examination, Look, examine
from trovemq_console.guard import SIGN_IN_PATH, Guard, set_cookie
from trovemq_console.pages import (
    access,
    acts,
    configuration,
    dead_letters,
    groups,
    messages,
    overview,
    replicas,
    storage,
    topics,
    waiting,
)
from trovemq_console.pages.console import Console
from trovemq_console.pages.forms import read_form
from trovemq_console.rendering import load_templates, make_environment
from trovemq_console.sampling import History, Sampler
from trovemq_console.sessions import Sessions
from trovemq_console.settings import ConsoleSettings

PAGE_SECONDS_MAX: Final = 15.0
SIGN_IN_SIZE_MAX: Final = 8 << 10  # bytes of a form with a token
STATUS: Final = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "OUT_OF_RANGE": 404,
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 403,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
}
Handler = Callable[[Console, Request], Awaitable[Response]]
PAGES: Final[tuple[tuple[str, Handler, str], ...]] = (
    ("/", overview.overview, "GET"),
    ("/search", messages.search, "GET"),
    ("/message", messages.message, "GET"),
    ("/message/body", messages.body, "GET"),
    ("/topics", topics.topics, "GET"),
    ("/topic", topics.topic, "GET"),
    ("/topic/new", topics.new_messages, "GET"),
    ("/groups", groups.groups, "GET"),
    ("/group", groups.group, "GET"),
    ("/dead-letters", dead_letters.dead_letters, "GET"),
    ("/delayed", waiting.delayed, "GET"),
    ("/transactions", waiting.transactions, "GET"),
    ("/storage", storage.storage, "GET"),
    ("/replicas", replicas.replicas, "GET"),
    ("/configuration", configuration.configuration, "GET"),
    ("/access", access.access, "GET"),
    ("/acts/{name}", acts.act, "POST"),
)


def make_app(
    settings: ConsoleSettings,
    connect: Connect,
    *,
    monotonic: Clock = time.monotonic,
    clock: Callable[[], float] = time.time,
    sampling: bool = True,
    look: Look | None = None,
) -> ASGIApp:
    """The application.

    Args:
        settings: How it serves.
        connect: Makes a client of the cluster.
        monotonic: For rates.
        clock: Epoch seconds, for sessions.
        sampling: Whether counters are sampled also while no page is open.
        look: Looks for faults; None: as `trovemq doctor` does.
    """
    cluster = Cluster(connect, monotonic)
    sampler = Sampler(cluster, History(monotonic))
    sessions = Sessions(secrets.token_bytes(32), clock)
    examination = Examination(look or (lambda: examine(cluster, settings.shown_server)), monotonic)
    console = Console(settings, cluster, sampler, sessions, make_environment(), examination)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None, None]:
        # Also the routes and templates that the first search needs are there before it.
        began = (sampler.run(), load_templates(console.environment)) if sampling else ()
        tasks = [asyncio.create_task(one) for one in began]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await examination.close()
        await cluster.close()

    routes = [Route(path, _page(console, handler), methods=[method]) for path, handler, method in PAGES]
    sign_in = Route(SIGN_IN_PATH, _sign_in(console), methods=["GET", "POST"])
    health = Route("/healthz", lambda _request: PlainTextResponse("alive\n"))
    ready = Route("/readyz", _readyz(cluster))
    static = Mount("/static", StaticFiles(directory=str(files("trovemq_console") / "static")))

    async def not_found(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        if not hasattr(request.state, "session"):
            return PlainTextResponse("Not found.\n", status)
        return console.respond(request, "not_found.html", status)

    app = Starlette(
        routes=[*routes, sign_in, health, ready, static],
        lifespan=lifespan,
        exception_handlers={HTTPException: not_found},
    )
    return Guard(app, settings, sessions)


def _page(console: Console, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        try:
            async with asyncio.timeout(PAGE_SECONDS_MAX):
                return await handler(console, request)
        except TroveError as error:
            status = STATUS.get(error.spec.grpc_status, 500)
            notes = getattr(error, "__notes__", [])
            again = request.method == "GET" and error.retriable
            return console.respond(request, "error.html", status, error=error, notes=notes, asked_again=again)
        except TimeoutError:
            again = request.method == "GET"
            return console.respond(request, "slow.html", 504, seconds=PAGE_SECONDS_MAX, asked_again=again)

    return page


def _readyz(cluster: Cluster) -> Callable[[Request], Awaitable[Response]]:
    """Whether the cluster answers, in the form of the daemons' /readyz."""

    async def readyz(_request: Request) -> Response:
        detail = ""
        try:
            await cluster.state(age_max_s=0)
        except TroveError as error:
            detail = str(error)
        reasons = [f"cluster: {detail}"] if detail else []
        answer = {
            "ready": not detail,
            "reasons": reasons,
            "checks": {"cluster": {"ok": not detail, "detail": detail}},
        }
        return JSONResponse(answer, 503 if detail else 200)

    return readyz


def _sign_in(console: Console) -> Callable[[Request], Awaitable[Response]]:
    """Takes the token from the printed address or from the form, and begins a signed-in session."""

    async def sign_in(request: Request) -> Response:
        token = request.query_params.get("token", "")
        if request.method == "POST":
            try:
                form = await read_form(request, SIGN_IN_SIZE_MAX)
            except TroveError as error:  # more than a token, from any client
                return PlainTextResponse(f"{error.message}\n", 400, headers={"connection": "close"})
            token = form.text("sign-in-token").strip()
        wanted = console.settings.sign_in_token
        if wanted is None:
            return RedirectResponse("/", 303)
        if not token:
            return console.respond(request, "sign_in.html", wrong=False, bare=True)
        if not secrets.compare_digest(token.encode("utf-8", "replace"), wanted.encode()):
            return console.respond(request, "sign_in.html", 403, wrong=True, bare=True)
        answer = RedirectResponse("/", 303)
        session = console.sessions.begin(signed_in=True)
        answer.headers["set-cookie"] = set_cookie(console.settings, console.sessions, session)
        return answer

    return sign_in
