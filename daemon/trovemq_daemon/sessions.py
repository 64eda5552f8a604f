"""Sessions of TroveMQ's own clients: a handshake creates one, and each of its calls has a proof of it. Broker
and nameserver use the same code.

Invariants
- A call number is accepted once: a call that is sent again is refused.
- A session is valid as long as its secret: it ends when the secret is dropped, or its user is disabled or
  deleted.
- If there are too many unfinished handshakes, those of the address with the most of them are dropped.
- An unknown user gets the same answer as a known one with a wrong secret, after the same work.
"""

from __future__ import annotations

import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from trovemq_daemon.users import Secret, User
from trovemq_proto import errors
from trovemq_proto.authentication.calls import SESSION_ID_SIZE, SigningKey, session_id_of
from trovemq_proto.authentication.scram import (
    KEY_SIZE,
    SALT_SIZE,
    ClientFirst,
    ScramError,
    ServerHandshake,
    Verifier,
)
from trovemq_proto.errors import TroveError

HANDSHAKES_MAX: Final = 4_096
HANDSHAKE_TIME_MAX_MS: Final = 10_000
SESSIONS_MAX: Final = 20_000
SESSIONS_OF_USER_MAX: Final = 500
SESSION_TIME_MAX_MS: Final = 3_600_000
CALLS_AHEAD_MAX: Final = 4_096  # how far call numbers may be out of order
_NONCE_SIZE: Final = 24


class Users(Protocol):
    """The present users."""

    def user(self, access_key: str) -> User | None: ...


class CallWindow:
    """The call numbers that were used. Numbers too far below the highest one count as used."""

    __slots__ = ("_highest", "_taken")

    def __init__(self) -> None:
        self._highest = -1
        self._taken = 0
        """Bit i: the number `highest - i` was used."""

    def take(self, number: int) -> bool:
        """Uses the number. False if it was used before."""
        ahead = number - self._highest
        if ahead > 0:
            kept = self._taken << ahead if ahead < CALLS_AHEAD_MAX else 0
            self._taken = (kept | 1) & ((1 << CALLS_AHEAD_MAX) - 1)
            self._highest = number
            return True
        bit = 1 << -ahead if -ahead < CALLS_AHEAD_MAX else 0
        if not bit or self._taken & bit:
            return False
        self._taken |= bit
        return True


@dataclass(slots=True)
class Session:
    """The session of one client. `until_ms`: no call may begin after it, nor, by a clock that was set back,
    far before it."""

    access_key: str
    secret: Secret
    key: SigningKey
    until_ms: int
    window: CallWindow

    def is_over(self, now_ms: int) -> bool:
        return not 0 <= self.until_ms - now_ms <= 2 * SESSION_TIME_MAX_MS


@dataclass(frozen=True, slots=True)
class SessionCall:
    """A call with a valid signature. `number`: the one in the signatures of its messages."""

    session: Session
    number: int


class _Begun(NamedTuple):
    """A handshake after its first message."""

    handshake: ServerHandshake
    began_ms: int
    source: str


class Sessions:
    """Handshakes and sessions of one server; used by one thread."""

    def __init__(self, users: Users, salt_key: bytes, random_bytes: Callable[[int], bytes]) -> None:
        """`salt_key`: from it the salts of users that do not exist are derived."""
        self._users = users
        self._salt_key = salt_key
        self._random_bytes = random_bytes
        self._no_user = Verifier(random_bytes(KEY_SIZE), random_bytes(KEY_SIZE))
        self._handshakes: OrderedDict[str, _Begun] = OrderedDict()
        self._begun_by: Counter[str] = Counter()
        """The number of _handshakes by address."""
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._of_user: dict[str, dict[bytes, None]] = {}
        """Of _sessions, in their order."""

    def __len__(self) -> int:
        return len(self._sessions)

    # --- the handshake ----------------------------------------------------------------------------------
    def begin(self, message: str, now_ms: int, source: str = "") -> str:
        """The answer to the first message of a client at this address. Raises TroveError
        AUTHENTICATION_FAILED."""
        try:
            first = ClientFirst.parse(message)
        except ScramError as error:
            raise _failed(str(error)) from None
        user = self._users.user(first.access_key)
        salt = user.salt if user is not None else self._salt_of_unknown(first.access_key)
        handshake = ServerHandshake(first, salt, self._random_bytes(_NONCE_SIZE).hex())
        self._handshakes[handshake.nonce] = _Begun(handshake, now_ms, source)
        self._begun_by[source] += 1
        if len(self._handshakes) > HANDSHAKES_MAX:
            most = self._begun_by.most_common(1)[0][0]
            self._take(next(nonce for nonce, begun in self._handshakes.items() if begun.source == most))
        return handshake.message

    def _take(self, nonce: str) -> _Begun | None:
        begun = self._handshakes.pop(nonce, None)
        if begun is not None:
            self._begun_by[begun.source] -= 1
            if not self._begun_by[begun.source]:
                del self._begun_by[begun.source]
        return begun

    def _salt_of_unknown(self, access_key: str) -> bytes:
        return hmac.digest(self._salt_key, access_key.encode(), "sha256")[:SALT_SIZE]

    def finish(self, message: str, now_ms: int) -> tuple[str, Session]:
        """The answer to a client's last message, and its session. TroveError AUTHENTICATION_FAILED."""
        nonce = message.partition(",r=")[2].partition(",")[0]
        begun = self._take(nonce)
        if begun is None or not 0 <= now_ms - begun.began_ms <= HANDSHAKE_TIME_MAX_MS:
            raise _failed("the handshake is unknown, or took too long; begin again")
        handshake = begun.handshake
        user = self._users.user(handshake.access_key)
        secrets = user.secrets if user is not None and user.enabled else ()
        try:
            which, answer, key = handshake.check(
                message, tuple(secret.verifier for secret in secrets) or (self._no_user,)
            )
        except ScramError as error:
            raise _failed("the access key or the secret is wrong") from error
        if user is None or which >= len(secrets):
            raise _failed("the access key or the secret is wrong")
        return answer, self._make(user, secrets[which], key, now_ms)

    def _make(self, user: User, secret: Secret, key: bytes, now_ms: int) -> Session:
        session_id = self._random_bytes(SESSION_ID_SIZE)
        session = Session(
            user.access_key, secret, SigningKey(session_id, key), now_ms + SESSION_TIME_MAX_MS, CallWindow()
        )
        own = self._of_user.get(user.access_key, {})
        if len(own) >= SESSIONS_OF_USER_MAX:
            self._drop(next(iter(own)))
        if len(self._sessions) >= SESSIONS_MAX:
            self._drop(next(iter(self._sessions)))
        self._sessions[session_id] = session
        self._of_user.setdefault(user.access_key, {})[session_id] = None
        return session

    def _drop(self, session_id: bytes) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        own = self._of_user[session.access_key]
        del own[session_id]
        if not own:
            del self._of_user[session.access_key]

    # --- calls ------------------------------------------------------------------------------------------
    def call(self, credential: bytes, path: str, now_ms: int) -> SessionCall:
        """The session that signed this call of `path`. TroveError AUTHENTICATION_FAILED."""
        session = self._sessions.get(session_id_of(credential))
        if session is None or session.is_over(now_ms):
            raise _failed("the session is unknown here, or has expired: begin another one", session="over")
        number = session.key.check_credential(credential, path)
        if number is None:
            raise _failed("the call is not signed by its session")
        if not session.window.take(number):
            raise _failed("the call was made before")
        self.user_of(session)
        return SessionCall(session, number)

    def user_of(self, session: Session) -> User:
        """The session's user. Raises TroveError AUTHENTICATION_FAILED if its secret is no longer valid."""
        user = self._users.user(session.access_key)
        if user is None or not user.enabled or session.secret not in user.secrets:
            self._drop(session.key.session_id)
            raise _failed("the user is disabled, or the secret is not valid any more")
        return user

    def expire(self, now_ms: int) -> None:
        """Forgets expired entries; to be called about every minute."""
        for session_id in [name for name, held in self._sessions.items() if held.is_over(now_ms)]:
            self._drop(session_id)


def _failed(message: str, **fields: object) -> TroveError:
    return TroveError(errors.AUTHENTICATION_FAILED, message, **fields)
