"""The connection: a client of `trovemq.sync`, the control topic, and a wait that messages end at once."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from queue import Empty
from typing import Any, Final

from kombu.transport import base, virtual

import trovemq.sync
from trovemq._kombu.channel import Channel
from trovemq._kombu.envelope import Payload, payload_of
from trovemq._kombu.failures import BrokerAwayError, translated
from trovemq._kombu.readers import Reader
from trovemq._kombu.settings import Settings
from trovemq.received import ReceivedFields
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

SHARED_WAITING_MAX: Final = 10_000
"""Messages of one shared queue that wait; of more, the oldest are dropped, and the log says so once."""
Shared = tuple[Payload, ReceivedFields]
CONTROL_GROUP: Final = "celery-control"
_SECRET: Final = re.compile(r"(?<=://)([^:@/]*):([^@/]*)@")


class Transport(virtual.Transport):
    """kombu's transport `trovemq://`."""

    Channel = Channel
    can_parse_url = True  # the URL may name several servers, and options of the client
    driver_type = driver_name = "trovemq"
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    connection_errors: tuple[Any, ...] = (*base.Transport.connection_errors, BrokerAwayError)
    channel_errors: tuple[Any, ...] = (*base.Transport.channel_errors, TroveError)

    bindings = virtual.BrokerState()
    """Exchanges and bindings that this process has declared, over all of its connections."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state = self.bindings
        self.settings = Settings.of(client.transport_options)
        self.arrived = threading.Event()
        self.topics: set[str] = set()  # those that are known to exist
        self._client: trovemq.sync.Client | None = None
        self._process_id = os.getpid()
        self._control: Reader | None = None
        self._shared: dict[str, deque[Shared]] = {}
        self._overflowed: set[str] = set()

    @property
    def trovemq(self) -> trovemq.sync.Client:
        """The client. Raises BrokerAwayError while it is not connected."""
        if self._client is None:
            raise BrokerAwayError("the connection is closed")
        return self._client

    def driver_version(self) -> str:
        """Of the SDK."""
        return version("trovemq")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL, with its secret masked."""
        return uri if include_password else _SECRET.sub(rf"\1:{mask}@", uri)

    def establish_connection(self) -> Any:
        """Connects, also again in a forked process, which has no thread of its parent's client. Raises
        BrokerAwayError; TroveError for an illegal URL."""
        if self._process_id != os.getpid():
            self._process_id, self._control = os.getpid(), None
            self._shared.clear()
        kombus: Any = self.client
        url = kombus.hostname or ""
        if "://" not in url:
            url = f"trovemq://{url or 'localhost'}:{kombus.port or 8081}"
        with translated():
            self._client = trovemq.sync.connect(url)  # kombu tries again
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Returns unacknowledged messages and disconnects. In a forked process the client is the parent's."""
        client, self._client = self._client, None
        if self._process_id != os.getpid():
            return
        super().close_connection(connection)
        control, self._control = self._control, None
        self._shared.clear()
        with suppress(TroveError):
            if control is not None:
                control.close()
            if client is not None:
                client.close()

    def verify_connection(self, connection: Any) -> bool:
        """Whether it is open, in this process."""
        return self._client is not None and self._process_id == os.getpid()

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Delivers the next message; waits for one, at most `timeout` seconds. Raises TimeoutError."""
        cycle: Any = self.cycle
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self.arrived.clear()
            try:
                cycle.get(self._deliver)
            except Empty:
                rest = self.polling_interval if until is None else until - time.monotonic()
                if rest <= 0:
                    raise TimeoutError from None
                # The program may free a place of its prefetch meanwhile, which no message announces.
                self.arrived.wait(min(rest, self.polling_interval))
            else:
                return

    # --- shared queues ------------------------------------------------------------------------------------

    def open_shared(self, queue: str) -> None:
        """Keeps the messages of the control topic for this queue from now on."""
        if queue not in self._shared:
            self._shared[queue] = deque(maxlen=SHARED_WAITING_MAX)
        if self._control is None:
            topic = self.settings.control_topic
            subscription = self.trovemq.subscribe(topic, CONTROL_GROUP, broadcast=True, start="latest")
            self._control = Reader(topic, subscription, self.arrived.set, ahead=256)

    def has_shared(self, queue: str) -> bool:
        """Whether the queue was declared here as a shared one."""
        return queue in self._shared

    def shared(self, queue: str, queues_of: Callable[[str, str], set[str]]) -> deque[Shared]:
        """The waiting messages of the queue. `queues_of`: the queues of an exchange and a routing key."""
        with suppress(Empty):
            while self._control is not None:
                self._distribute(self._control, queues_of)
        return self._shared.get(queue, deque())

    def close_shared(self, queue: str) -> None:
        """Drops the queue."""
        self._shared.pop(queue, None)

    def _distribute(self, control: Reader, queues_of: Callable[[str, str], set[str]]) -> None:
        try:
            message = control.fetch()
            payload = payload_of(message)
        except ValueError as error:
            _log.warning("a message of %s was skipped: %s", self.settings.control_topic, error)
            return
        where: Mapping[str, str] = payload["properties"].get("delivery_info", {})
        for queue in queues_of(where.get("exchange", ""), where.get("routing_key", "")) & self._shared.keys():
            waiting = self._shared[queue]
            if len(waiting) == SHARED_WAITING_MAX and queue not in self._overflowed:
                self._overflowed.add(queue)
                _log.warning("queue %s has %d waiting messages: its oldest are dropped", queue, len(waiting))
            waiting.append((payload, message))
