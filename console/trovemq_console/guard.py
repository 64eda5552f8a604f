"""Checks before any page: who may call, from where, with which headers.

Every page in its user's browser can reach a console on loopback. So `Host` must be one of the console's own
names (another name that resolves to 127.0.0.1 is refused). A request that changes something must come from a
page of the console (`Origin`, and a token in the form). And nothing that is shown can run: the policy allows
only scripts and styles from the console's own files.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trovemq_console.sessions import LIFETIME_SECONDS, BrowserSession, Sessions
from trovemq_console.settings import ConsoleSettings

SIGN_IN_PATH: Final = "/sign-in"
OPEN_PATHS: Final = ("/static/", SIGN_IN_PATH, "/healthz", "/readyz")
METHODS: Final = frozenset({"GET", "HEAD", "POST"})
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware around the console's pages; sets `request.state.session`."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, sessions: Sessions) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions
        self._hosts = settings.allowed_hosts()
        self._origins = {f"{settings.scheme}://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, _with_headers(send, None))
            return
        known = self._sessions.read(self._cookie_of(headers))
        session = known or self._sessions.begin()
        if self._must_sign_in(scope, session):
            answer = RedirectResponse(SIGN_IN_PATH, 303)
            await answer(scope, receive, _with_headers(send, None))
            return
        scope.setdefault("state", {})["session"] = session
        cookie = None if known else set_cookie(self._settings, self._sessions, session)
        await self._app(scope, receive, _with_headers(send, cookie))

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if headers.get("host", "").lower() not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            return PlainTextResponse(
                f"This console is not served under that name, only as {names}. "
                "Start it with --host-name NAME for another one.\n",
                421,
            )
        if scope["method"] not in METHODS:
            return PlainTextResponse("The method is not allowed.\n", 405)
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if scope["method"] == "POST" and (
            origin not in (None, *self._origins) or site not in ("same-origin", "none")
        ):
            return PlainTextResponse("A page of another site sent this; nothing was done.\n", 403)
        return None

    def _must_sign_in(self, scope: Scope, session: BrowserSession) -> bool:
        asked = self._settings.sign_in_token is not None and not session.signed_in
        return asked and not scope["path"].startswith(OPEN_PATHS)

    def _cookie_of(self, headers: Headers) -> str:
        name = cookie_name(self._settings)
        try:
            cookies: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[name].value if name in cookies else ""


def cookie_name(settings: ConsoleSettings) -> str:
    """The cookie's name has the port: cookies do not know ports, and one machine may have two consoles."""
    return f"trovemq_console_{settings.port}"


def set_cookie(settings: ConsoleSettings, sessions: Sessions, session: BrowserSession) -> str:
    """The value of `Set-Cookie`."""
    secure = "; Secure" if settings.tls else ""
    return (
        f"{cookie_name(settings)}={sessions.cookie(session)}; Path=/; Max-Age={LIFETIME_SECONDS}; HttpOnly; "
        f"SameSite=Lax{secure}"
    )


def _with_headers(send: Send, cookie: str | None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            if cookie is not None and "set-cookie" not in headers:
                headers.append("set-cookie", cookie)
        await send(message)

    return sending


def session_of(request: Any) -> BrowserSession:
    """The session of a request that passed the guard."""
    session = request.state.session
    assert isinstance(session, BrowserSession)
    return session
