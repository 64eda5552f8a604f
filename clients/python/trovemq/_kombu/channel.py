"""The channel: queues as topics, and the leases of their messages."""

from __future__ import annotations

import base64
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from queue import Empty
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.virtual.exchange import FanoutExchange

from trovemq._kombu.envelope import Payload, arguments_of, body_of, is_expired, payload_of
from trovemq._kombu.failures import translated
from trovemq._kombu.names import is_shared_name, topic_of
from trovemq._kombu.qos import QoS
from trovemq._kombu.readers import Reader
from trovemq._kombu.shared import SharedQueues
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

MIXED: Final = "MIXED"
"""The type of topics that take delayed messages and priorities."""
UNROUTED_MAX: Final = 1_000
_WAIT_STEP: Final = 0.05
_ABSENT: Final = (errors.TOPIC_NOT_FOUND, errors.GROUP_NOT_FOUND)


class Channel(virtual.Channel):
    """A channel of the transport. Exchanges and bindings are those that this process has declared; queues
    are topics, or share the control topic (`trovemq._kombu.names`)."""

    supports_fanout = True
    do_restore = True

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._readers: dict[str, Reader] = {}
        self._ended: list[Reader] = []
        self._no_ack: set[str] = set()
        self._unrouted: set[str] = set()  # exchanges of which the log has said so

    @property
    def qos(self) -> QoS:
        """The channel's unacknowledged messages."""
        if self._qos is None:
            settings = self.connection.settings
            self._qos = QoS(
                renew_after=settings.renew_after,
                renewed_lease=settings.renewed_lease,
                settled=self.connection.arrived.set,
            )
        qos: QoS = self._qos
        return qos

    # --- queues -------------------------------------------------------------------------------------------

    def _topic(self, queue: str) -> str:
        return topic_of(queue, self.connection.settings.topic_prefix)

    @contextmanager
    def _on(self, topic: str, *, shared: bool = False) -> Iterator[None]:
        """Calls that need the topic: `translated`, with a remedy if it does not exist and is not created."""
        try:
            with translated():
                yield
        except TroveError as error:
            if error.spec is not errors.TOPIC_NOT_FOUND or self.connection.settings.create_topics:
                raise
            made = f"trovemq topic create {topic}" + ("" if shared else f" --type {MIXED} --order priority")
            text = f"topic {topic} does not exist, and create_topics is False: {made}"
            raise TroveError(errors.TOPIC_NOT_FOUND, text, topic=topic) from error.__cause__

    def _is_shared(self, queue: str) -> bool:
        return is_shared_name(queue) or self._has_shared(queue)

    def _has_shared(self, queue: str) -> bool:
        shared: SharedQueues | None = self.connection.shared
        return shared is not None and shared.has(queue)

    def _new_queue(self, queue: str, **options: Any) -> None:
        passes = bool(options.get("auto_delete") or options.get("exclusive"))
        if passes or queue.endswith(".pidbox"):  # which a setting makes durable
            topic = self.connection.settings.control_topic
            self._create(topic, shared=True)
            with self._on(topic, shared=True):
                self.connection.open_shared(queue)
        elif is_shared_name(queue):
            text = (
                f"the queue {queue!r} has the name of a reply queue (a UUID, celeryev…), and is to be kept:"
                " give it another name, or declare it with auto_delete"
            )
            raise TroveError(errors.TOPIC_ILLEGAL, text, queue=queue)
        else:
            self._create(self._topic(queue))

    def _create(self, topic: str, *, shared: bool = False) -> None:
        connection = self.connection
        if topic in connection.topics or not connection.settings.create_topics:
            return
        with translated():
            made = connection.trovemq.admin.create_topic(
                topic,
                queue_count=1 if shared else connection.settings.queue_count,
                message_type="NORMAL" if shared else MIXED,
                options=None if shared else {"order": "priority"},
                exist_ok=True,
            )
        for one in made:
            if not shared and one.message_type not in (MIXED, "UNSPECIFIED"):
                text = (
                    f"topic {topic} is of type {one.message_type}, which takes no tasks with a time: name"
                    f" another queue, set topic_prefix, or trovemq topic alter {topic} --type {MIXED}"
                )
                raise TroveError(errors.MESSAGE_TYPE_CONFLICT, text, topic=topic)
        connection.topics.add(topic)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        if self._is_shared(queue):
            return self._has_shared(queue)
        try:
            with translated():
                self.connection.trovemq.admin.describe_topic(self._topic(queue))
        except TroveError as error:
            if error.spec is errors.TOPIC_NOT_FOUND:
                return False
            raise
        return True

    def _size(self, queue: str) -> int:
        if self._is_shared(queue):
            shared: SharedQueues | None = self.connection.shared
            with translated():
                return 0 if shared is None else shared.size(queue, self._queues_of)
        client, topic = self.connection.trovemq, self._topic(queue)
        with translated():
            try:
                return sum(one.lag for one in client.admin.groups.lag(self.connection.settings.group, topic))
            except TroveError as error:
                if error.spec not in _ABSENT:
                    raise
            try:
                return sum(one.max_offset - one.min_offset for one in client.queue_offsets(topic))
            except TroveError as error:
                if error.spec not in _ABSENT:
                    raise
        return 0

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        if self._is_shared(queue):
            if self.connection.shared is not None:
                self.connection.shared.clear(queue)
            return size
        with translated():
            try:
                self.connection.trovemq.admin.groups.reset(
                    self.connection.settings.group, self._topic(queue), to_latest=True
                )
            except TroveError as error:
                if error.spec not in _ABSENT:
                    raise
        return size

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self.qos.return_all(self._end_reader(queue))
        self._close_ended()
        if self._is_shared(queue):
            if self.connection.shared is not None:
                self.connection.shared.delete(queue)
            return
        topic = self._topic(queue)
        self.connection.topics.discard(topic)
        with translated():
            try:
                self.connection.trovemq.admin.delete_topic(topic)
            except TroveError as error:
                if error.spec not in _ABSENT:
                    raise

    def _queue_bind(self, *args: Any) -> None:
        """The binding is in `state`, where this process finds it."""

    # --- publishing ---------------------------------------------------------------------------------------

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Text stays as it is, so that other programs and people can read it; bytes become base64."""
        if isinstance(body, str):
            return body, "utf-8"
        return base64.b64encode(bytes(body)).decode(), "base64"

    def basic_publish(self, message: Payload, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Sends it to each queue; it is on the broker's disk when this returns."""
        self._inplace_augment_message(message, exchange, routing_key)
        queues = self._queues_of(exchange, routing_key)
        kept = [queue for queue in queues if not self._is_shared(queue)]
        for queue in kept:
            self._put(queue, message)
        if len(kept) < len(queues) or self._is_shared_exchange(exchange):
            self._put_shared(message)
        elif not queues and exchange not in self._unrouted and len(self._unrouted) < UNROUTED_MAX:
            self._unrouted.add(exchange)
            text = (
                "messages to exchange %r with key %r are dropped: this process has declared no queue for them"
            )
            _log.warning(text, exchange, routing_key)

    def _put(self, queue: str, message: Payload, **kwargs: Any) -> None:
        topic, arguments = self._topic(queue), arguments_of(message, datetime.now(UTC))
        with self._on(topic):
            try:
                self.connection.trovemq.send(topic, body_of(message), **arguments)
            except TroveError as error:
                if error.spec is not errors.TOPIC_NOT_FOUND or not self.connection.settings.create_topics:
                    raise
                self.connection.topics.discard(topic)
                self._create(topic)
                self.connection.trovemq.send(topic, body_of(message), **arguments)

    def _put_shared(self, message: Payload) -> None:
        topic = self.connection.settings.control_topic
        self._create(topic, shared=True)
        with self._on(topic, shared=True):
            self.connection.trovemq.send(topic, body_of(message))

    def _is_shared_exchange(self, exchange: str) -> bool:
        """Whether queues of other processes may be bound to it."""
        if not exchange:
            return False
        settings = self.connection.settings
        named = exchange == settings.event_exchange or exchange.endswith(".pidbox")
        return named or isinstance(self.typeof(exchange), FanoutExchange)

    def _queues_of(self, exchange: str, routing_key: str) -> set[str]:
        """The queues that this process knows for them."""
        if not exchange:
            return {routing_key}
        table = self.state.exchanges.get(exchange, {}).get("table", ())
        kind = self.typeof(exchange).type
        return {
            queue
            for key, pattern, queue in list(table)
            if kind == "fanout"
            or (kind == "direct" and key == routing_key)
            or (kind == "topic" and re.match(pattern, routing_key or ""))
        }

    # --- consuming ----------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        """Begins to receive from the queue."""
        if no_ack:
            self._no_ack.add(queue)
        if not self._is_shared(queue):
            self._reader(queue)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ends receiving, when no other consumer of the channel has the queue. Messages that were delivered
        can be acknowledged until the channel is closed."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._no_ack.discard(queue)
            self.qos.return_all(self._end_reader(queue))
            self._close_ended()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """The next message; None if there is none within `get_timeout`."""
        if not self._is_shared(queue):
            self._reader(queue)
        until = time.monotonic() + self.connection.settings.get_timeout
        while True:
            self.connection.arrived.clear()
            try:
                payload = self._get(queue)
            except Empty:
                rest = until - time.monotonic()
                if rest <= 0:
                    return None
                self.connection.arrived.wait(min(rest, _WAIT_STEP))
            else:
                message = self.Message(payload, channel=self)
                if no_ack:
                    self.qos.unlease(message.delivery_tag)
                else:
                    self.qos.append(message, message.delivery_tag)
                return message

    def _reader(self, queue: str) -> Reader:
        reader = self._readers.get(queue)
        if reader is None:
            settings, topic = self.connection.settings, self._topic(queue)
            with self._on(topic):
                subscription = self.connection.trovemq.subscribe(
                    topic, settings.group, prefetch=settings.read_ahead, start="earliest"
                )
                reader = Reader(topic, subscription, self.connection.arrived.set)
            self._readers[queue] = reader
        return reader

    def _get(self, queue: str, timeout: float | None = None) -> Payload:
        if self._is_shared(queue):
            return self._get_shared(queue)
        with translated():
            message: Any = self._reader(queue).fetch()
        try:
            payload = payload_of(message)
        except ValueError as error:
            _log.error("%s in topic %s is a dead letter now: %s", message.message_id, message.topic, error)
            self.qos.settle(partial(message.dead_letter, str(error)))
            raise Empty from None
        if is_expired(payload, message, int(time.time() * 1000)):
            message.consumed()
            raise Empty
        tag = payload["properties"]["delivery_tag"] = self._next_delivery_tag()
        self.qos.lease(tag, message)
        if queue in self._no_ack:
            self.qos.unlease(tag)
        return payload

    def _get_shared(self, queue: str) -> Payload:
        shared: SharedQueues | None = self.connection.shared
        while shared is not None:
            with translated():
                payload, record = shared.pop(queue, self._queues_of)
            if not is_expired(payload, record, int(time.time() * 1000)):
                return payload
        raise Empty

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> Any:
        """Delivers one message. Raises Empty if there is none, or as many as allowed are unacknowledged."""
        self._close_ended()
        return super().drain_events(timeout=timeout, callback=callback)

    def _end_reader(self, queue: str) -> list[Any]:
        """Receives no more from the queue; returns the messages that were received ahead, to be returned. The
        subscription stays open until its messages are settled."""
        reader = self._readers.pop(queue, None)
        if reader is None:
            return []
        self._ended.append(reader)
        return list(reader.end())

    def _close_ended(self, *, all_of_them: bool = False) -> None:
        settled = [one for one in self._ended if all_of_them or not self.qos.holds(one.topic)]
        self._ended = [one for one in self._ended if one not in settled]
        Reader.close_all(settled)

    def close(self) -> None:
        """Returns unacknowledged messages, and those that were received ahead."""
        if self.closed:
            return
        self.qos.close([message for queue in list(self._readers) for message in self._end_reader(queue)])
        self._close_ended(all_of_them=True)
        super().close()
