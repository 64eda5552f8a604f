"""Messages and a client for tests of the kombu transport, without a broker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from trovemq.received import ReceivedFields
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@dataclass(slots=True, eq=False, kw_only=True)
class FakeMessage(ReceivedFields):
    """Notes its settlements. `fails`: each settlement raises."""

    settled: list[str] = field(default_factory=list)
    fails: bool = False

    def _settle(self, what: str) -> None:
        if self.fails:
            raise TroveError(errors.BROKER_UNREACHABLE)
        self.settled.append(what)

    def consumed(self) -> None:
        self._settle("ack")

    def nack(self, delay: float | None = None) -> None:
        self._settle(f"nack {delay}")

    def dead_letter(self, reason: str | None = None) -> None:
        self._settle("dead" if reason is None else f"dead: {reason}")

    def extend(self, duration: float) -> None:
        self._settle(f"extend {duration:.0f}")


def received(body: bytes, *, topic: str = "celery", attempt: int = 1, born_timestamp: int = 0) -> FakeMessage:
    """A message as a subscription gives it."""
    return FakeMessage(
        topic=topic,
        body=body,
        message_id="id",
        keys=(),
        tags=None,
        properties={},
        message_group=None,
        queue_id=0,
        queue_offset=0,
        attempt=attempt,
        born_timestamp=born_timestamp,
        store_timestamp=0,
        broker="b",
    )


class FakeSubscription:
    """Gives the messages of a deque until it is ended; then notes its end."""

    def __init__(self, messages: deque[FakeMessage], changed: threading.Condition) -> None:
        self.ended = self.closed = False
        self._failure: TroveError | None = None
        self._messages, self._changed = messages, changed

    def __enter__(self) -> FakeSubscription:
        return self

    def __iter__(self) -> Iterator[FakeMessage]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.ended or self._failure or self._messages)
                if self._failure is not None:
                    raise self._failure
                if self.ended:
                    return
                message = self._messages.popleft()
            yield message

    def end(self) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def fail(self, failure: TroveError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def close(self) -> None:
        self.end()
        self.closed = True


class FakeClient:
    """Topics as lists in memory; each message goes to one subscription."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, dict[str, Any]]] = []
        self.created: list[tuple[str, str, Any]] = []
        self.subscribed: list[tuple[str, str, dict[str, Any]]] = []
        self.subscriptions: list[FakeSubscription] = []
        self.message_type = "MIXED"
        self.failure: TroveError | None = None
        self.closed = False
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[FakeMessage]] = {}
        groups = SimpleNamespace(lag=lambda group, topic: [])
        self.admin = SimpleNamespace(create_topic=self._create_topic, groups=groups)

    def _create_topic(self, name: str, *, options: Any, message_type: str, **_: Any) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        self.created.append((name, message_type, options))
        return [SimpleNamespace(message_type=self.message_type)]

    def send(self, topic: str, body: bytes, **arguments: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append((topic, body, arguments))
        self.put(received(body, topic=topic))

    def put(self, message: FakeMessage) -> None:
        with self._changed:
            self._waiting.setdefault(message.topic, deque()).append(message)
            self._changed.notify_all()

    def subscribe(self, topic: str, group: str, **options: Any) -> FakeSubscription:
        if self.failure is not None:
            raise self.failure
        self.subscribed.append((topic, group, options))
        made = FakeSubscription(self._waiting.setdefault(topic, deque()), self._changed)
        self.subscriptions.append(made)
        return made

    def close(self) -> None:
        self.closed = True
