"""One request of a remoting client. Its handler answers it once, now or later."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.fields import Fields
from trovemq_proto.remoting.headers import Header

NO_FIELDS: Final[Mapping[str, str]] = {}
_FORGOTTEN: Final[dict[str, str]] = {}


class Reply(NamedTuple):
    """A client's answer to a request of ours."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


class Connection(Protocol):
    """The connection of a client, for the handlers of its requests."""

    is_lost: bool
    on_lost: list[Callable[[], None]]
    """Is called when the connection is lost."""

    @property
    def peer(self) -> str:
        """As gRPC names it: ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000."""
        ...

    @property
    def is_secure(self) -> bool: ...
    def relayed(self, peer: str, *, is_secure: bool) -> None:
        """From now on it is the connection of that client. TroveError REQUEST_ILLEGAL: it was used before."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether the client has too many unread bytes for another reply with messages."""
        ...

    def now(self) -> float:
        """Seconds of the loop's clock."""
        ...

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Calls back when the client has read its replies; at once if it has. Never after it is lost."""
        ...

    def notify(self, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> None:
        """A one-way request to the client."""
        ...

    async def ask(self, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        """The client's answer. TroveError LIMIT_EXCEEDED, CONSUME_MSG_TIMEOUT, CONSUMER_NOT_ONLINE."""
        ...

    def run(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        """By Request.run."""
        ...

    def answered(
        self, request: Request, code: int, remark: str, fields: Mapping[str, str], body: bytes
    ) -> None:
        """By Request.answer."""
        ...

    def response_of(self, request: Request, error: BaseException) -> tuple[int, str]:
        """Code and remark of an error."""
        ...


class Request:
    """`body` is the request's own: it may be kept."""

    __slots__ = ("_is_answered", "body", "connection", "form", "header", "received_s", "size")

    def __init__(self, connection: Connection, header: Header, form: int, body: bytes, size: int) -> None:
        """`size`: of the frame."""
        self.connection: Final = connection
        self.header: Final = header
        self.form: Final = form
        self.body: Final = body
        self.size: Final = size
        self.received_s: Final = time.perf_counter()
        self._is_answered = False

    @property
    def fields(self) -> Fields:
        return Fields(self.header.fields)

    @property
    def is_open(self) -> bool:
        """Whether an answer is still wanted: it has none, and its connection is there."""
        return not self._is_answered and not self.connection.is_lost

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str = "",
        fields: Mapping[str, str] = NO_FIELDS,
        body: bytes = b"",
    ) -> None:
        """The first answer counts. A one-way request gets none."""
        if not self._is_answered:
            self._is_answered = True
            self.connection.answered(self, code, remark, fields, body)

    def fail(self, error: BaseException) -> None:
        """The code and the remark of an error."""
        if not self._is_answered:
            self.answer(*self.connection.response_of(self, error))

    def forget_fields(self) -> None:
        """Its handler has read them: a request that waits keeps no memory for them."""
        self.header.fields = _FORGOTTEN

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the rest of the handler, whose error is the answer. It ends with the connection."""
        self.connection.run(self, work)
