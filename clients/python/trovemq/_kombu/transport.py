"""The connection: a client of `trovemq.sync`, and a wait that messages end at once."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from contextlib import suppress
from importlib.metadata import version
from queue import Empty
from typing import Any, Final

from kombu.transport import base, virtual

import trovemq.sync
from trovemq._kombu.channel import Channel
from trovemq._kombu.failures import BrokerAwayError, translated
from trovemq._kombu.settings import Settings
from trovemq._kombu.shared import SharedQueues
from trovemq_proto.errors import TroveError

_SECRET: Final = re.compile(r"(?<=://)([^:@/]*):([^@/]*)@")
STOP_STEP: Final = 0.2


def is_stopping() -> bool:
    """Whether Celery ends the worker of this process: a signal sets that, and its loop reads it between two
    calls of `drain_events`, each of two seconds."""
    state = sys.modules.get("celery.worker.state")  # a program of kombu has none
    flags = getattr(state, "should_stop", None), getattr(state, "should_terminate", None)
    return any(flag is not None and flag is not False for flag in flags)


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
    recoverable_connection_errors = connection_errors
    """kombu connects again after these alone: another error, as that of an illegal URL, would stay."""

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
        self._shared: SharedQueues | None = None

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
            self._process_id, self._shared = os.getpid(), None
        with translated():
            self._client = trovemq.sync.connect(self._url())  # kombu tries again
        return super().establish_connection()

    def _url(self) -> str:
        kombus: Any = self.client
        url = str(kombus.hostname or "")
        return url if "://" in url else f"trovemq://{url or 'localhost'}:{kombus.port or 8081}"

    def close_connection(self, connection: Any) -> None:
        """Returns unacknowledged messages and disconnects. In a forked process the client is the parent's."""
        client, self._client = self._client, None
        if self._process_id != os.getpid():
            return
        super().close_connection(connection)
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.leave(self)
        if client is not None:
            with suppress(TroveError):
                client.close()

    def verify_connection(self, connection: Any) -> bool:
        """Whether it is open, in this process."""
        return self._client is not None and self._process_id == os.getpid()

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Delivers the next message; waits for one, at most `timeout` seconds, and less while Celery ends
        this worker. Raises TimeoutError."""
        cycle: Any = self.cycle
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self.arrived.clear()
            try:
                cycle.get(self._deliver)
            except Empty:
                rest = self.polling_interval if until is None else until - time.monotonic()
                if rest <= 0 or (until is not None and is_stopping()):
                    raise TimeoutError from None
                # The program may free a place of its prefetch meanwhile, which no message announces.
                self.arrived.wait(min(rest, self.polling_interval, STOP_STEP))
            else:
                return

    # --- shared queues ------------------------------------------------------------------------------------

    def open_shared(self, queue: str) -> None:
        """Keeps the messages of the control topic for this queue from now on."""
        if self._shared is None:
            topic = self.settings.control_topic
            self._shared = SharedQueues.entered(self._url(), topic, self, self.arrived.set)
        self._shared.declare(queue, self)

    @property
    def shared(self) -> SharedQueues | None:
        """The shared queues of this process; None before this connection has declared one."""
        return self._shared
