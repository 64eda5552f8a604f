"""Sessions of browsers, and the tokens of their forms. Nothing is stored, because everything is signed.

A cookie is `NONCE.EXPIRY.SIGNED.MAC`: the nonce is the session's name, the expiry in epoch seconds, SIGNED is
1 after a sign-in. A form's token is a MAC over the nonce, so another site can neither read nor guess it. The
key is made when the console starts, so sessions end with the console.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LIFETIME_SECONDS: Final = 12 * 3_600
COOKIE_SIZE_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """One browser's session. `signed_in`: its user has given the token."""

    nonce: str
    expiry: int
    signed_in: bool = False


class Sessions:
    """Makes and checks sessions.

    Args:
        key: Secret bytes.
        clock: Epoch seconds.
    """

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        self._key = key
        self._clock = clock

    def begin(self, *, signed_in: bool = False) -> BrowserSession:
        """Begins a new session."""
        return BrowserSession(secrets.token_hex(16), int(self._clock()) + LIFETIME_SECONDS, signed_in)

    def cookie(self, session: BrowserSession) -> str:
        """The value of the session's cookie."""
        content = f"{session.nonce}.{session.expiry}.{int(session.signed_in)}"
        return f"{content}.{self._mac('cookie', content)}"

    def read(self, cookie: str) -> BrowserSession | None:
        """The session of a cookie; None if it is not ours, or has expired."""
        content, _, mac = cookie[:COOKIE_SIZE_MAX].rpartition(".")
        if not content or not hmac.compare_digest(mac.encode(), self._mac("cookie", content).encode()):
            return None
        nonce, expiry, signed_in = content.split(".")
        session = BrowserSession(nonce, int(expiry), signed_in == "1")
        return session if session.expiry > self._clock() else None

    def form_token(self, session: BrowserSession) -> str:
        """The token of the session's forms."""
        return self._mac("form", session.nonce)

    def is_form_token(self, session: BrowserSession, token: str) -> bool:
        """Whether a form of this session has sent this token."""
        return hmac.compare_digest(token.encode(), self.form_token(session).encode())

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), "sha256").hexdigest()
