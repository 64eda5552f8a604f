"""SendMessage requests: read into one command, by a fast reader or by protobuf. Nothing behind it knows by
which.

The fast reader takes requests in the form in which protobuf writes those of the official clients:

| bytes | field |
| --- | --- |
| 0x0a, size, Message: | messages: one |
| 0x0a, size, 0x12, size, text | topic, without a namespace |
| 0x1a, size, SystemProperties | see _REQUEST |
| 0x22, size, bytes | body, not empty |

Its texts are ASCII and pass the checks of send_checks.py. A request is read only if every size in it is that
of the bytes that were found: so no other reading of its bytes is possible. A message id has letters, digits,
`-` and `_` only: with more, the search for its end would take long in a hostile request. It takes half the
time of protobuf's parser and getters (bench/rocketmq_raw.py, send).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import md5, sha1
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from trovemq_broker.server.wire.resources import sendable_topic, topic_to_send
from trovemq_broker.server.wire.rocketmq_messages import (
    PROPERTY_BORN_HOST,
    PROPERTY_TRACE_CONTEXT,
    SYSTEM_TEXT_SIZE_MAX,
    duration_ms,
    stored_born_ms,
    timestamp_ms,
)
from trovemq_broker.server.wire.routes import AWAY_FIRST
from trovemq_broker.server.wire.send_checks import TEXTS_SIZE_MAX, are_legal, check_message, kind_of
from trovemq_broker.server.wire.statuses import request_of
from trovemq_daemon.calls import Call
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from trovemq_proto.records.keys import key_sizes
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.varints import write_varint
from trovemq_store.engine.steps import Steps, finished
from trovemq_store.topics.message_kinds import NORMAL

PRIORITY: Final = "PRIORITY"
DELAY: Final = "DELAY"
TRANSACTION: Final = "TRANSACTION"

MESSAGES_MAX: Final = 1_024  # of a request
STEP: Final = 32
"""The most messages that are read in one step; more of them need a task."""
GZIP_WINDOW: Final = 31  # zlib's wbits: a gzip header and trailer, the largest window

_REQUEST: Final = re.compile(
    rb"\x0a([\x80-\xff]{0,3}[\0-\x7f])"  # the message's size
    rb"\x0a(.)\x12(.)([!-~]{1,125})"  # topic
    rb"\x1a([\x80-\xff]?[\0-\x7f])"  # the size of the system properties
    rb"((?:\x0a(.)([!-{}~]{1,127}))?"  # tag
    rb"(?:\x12(.)([!-{}~]{1,127}))?"  # keys: one
    rb"\x1a(.)([0-9A-Za-z_-]{1,127})"  # message_id
    rb"(?:\x28\x01)?(?:\x30\x01)?"  # body_encoding IDENTITY, message_type NORMAL
    rb"\x3a(.)((?:\x08[\x80-\xff]{0,4}[\0-\x7f])?(?:\x10[\x80-\xff]{0,4}[\0-\x7f])?)"  # born_timestamp
    rb"(?:\x42(.)([ !#-~]{1,127}))?"  # born_host; with a `"`, it would be searched for in the body, too
    rb"(?:\x68[\x80-\xff]{0,4}[\0-\x7f])?)"  # queue_id: only sends of message groups read it
    rb"\x22([\x80-\xff]{0,3}[\0-\x7f])",  # the body's size
    re.DOTALL,
)
_size: Final = lru_cache(maxsize=4_096)(write_varint)
_NO_IMMUNITY_MS: Final = 0
_NO_TIME: Final = EpochMs(0)
_CANONICAL_TYPES: Final = (v2.NORMAL, v2.MESSAGE_TYPE_UNSPECIFIED)

Digest: TypeAlias = "tuple[v2.DigestType, str]"


class Encoding(NamedTuple):
    """The form of a body that is not stored as it was sent."""

    gzip: bool
    digest: Digest | None
    """Its type and text, of the bytes as they were sent."""
    read: Callable[[], bytes]
    """The bytes as they were sent: read one by one, so that a request of bombs takes no space twice."""


class SentMessage(NamedTuple):
    """One message, which has passed the checks of send_checks.py.

    kind: the type by its content, as topics name it. properties: the encoded block under which the store
    keeps id, keys, tag and all others. born_ms: as the sender states it; 0 if the record's form cannot have
    that. body: to store; empty with an encoding, from which stored_body() makes it.
    """

    message_id: str
    kind: str
    body: bytes
    properties: bytes
    born_ms: EpochMs
    group: str = ""
    deliver_ms: EpochMs = EpochMs(0)
    immunity_ms: int = _NO_IMMUNITY_MS
    encoding: Encoding | None = None


_NO_OTHERS: Final = tuple(SentMessage._field_defaults.values())


class Send(NamedTuple):
    """The messages of one request, which has at least one. topic: the stored name."""

    topic: str
    messages: Sequence[SentMessage]


# without a Python call for each
_new_message: Final = partial(tuple.__new__, SentMessage)
_new_send: Final = partial(tuple.__new__, Send)


class SendLimits(NamedTuple):
    """body_size_max: bytes. delivery_ms_max: the latest delivery time, epoch ms."""

    body_size_max: int
    delivery_ms_max: EpochMs


ReadSend: TypeAlias = "Callable[[SendLimits], Steps[Send]]"
"""Reads a command in steps. Raises TroveError of read_request()."""


def read_send(call: Call, limits: SendLimits) -> Send | None:
    """The command of a call; None if it has more than STEP messages: read_request() reads these.

    Raises TroveError REQUEST_ILLEGAL, and those of read_request().
    """
    send = fast_send(call.keep(), limits.body_size_max)
    if send is not None:
        return send
    request: service_pb2.SendMessageRequest = request_of(call, anonymous=True)
    if len(request.messages) > STEP:
        return None
    call.parsed = None  # a call that waits for a sync does not hold the bodies twice
    return finished(read_request(request, limits))


def fast_send(data: bytes, body_size_max: int) -> Send | None:
    """The command; None if the request has another form, or is to be refused."""
    found = _REQUEST.match(data)
    if found is None:
        return None
    (
        size, resource_size, name_size, name, system_size, system, tag_size, tag, key_size, key,
        id_size, message_id, time_size, time, host_size, host, body_size,
    ) = found.groups()  # fmt: skip
    body_at = found.end()
    texts_size = len(message_id)
    block = b"UNIQ_KEY\x01%b\x02" % message_id
    if key is not None:
        texts_size += len(key)
        block = b"%bKEYS\x01%b\x02" % (block, key)
        if key_size[0] != len(key):
            return None
    if tag is not None:
        texts_size += len(tag)
        block = b"%bTAGS\x01%b\x02" % (block, tag)
        if tag_size[0] != len(tag):
            return None
    if host is not None:
        block = b"%b__BORNHOST\x01%b\x02" % (block, host)
        if host_size[0] != len(host):
            return None
    name_length, body_length = len(name), len(data) - body_at
    if (
        name_size[0] != name_length
        or resource_size[0] != name_length + 2
        or id_size[0] != len(message_id)
        or time_size[0] != len(time)
        or system_size != _size(len(system))
        or body_size != _size(body_length)
        or size != _size(len(data) - 1 - len(size))
        or texts_size > TEXTS_SIZE_MAX
        or not 0 < body_length <= body_size_max
    ):
        return None
    topic = _known_topic(name)
    if topic is None:
        return None
    message = (message_id.decode(), NORMAL, data[body_at:], block, _time_ms(time), *_NO_OTHERS)
    return _new_send((topic, (_new_message(message),)))


@lru_cache(maxsize=16_384)
def _known_topic(name: bytes) -> str | None:
    """None if users may not send to it."""
    try:
        return sendable_topic(name.decode())
    except TroveError:
        return None


@lru_cache(maxsize=1_024)
def _time_ms(time: bytes) -> EpochMs:
    """Of the bytes of a Timestamp."""
    return stored_born_ms(timestamp_ms(Timestamp.FromString(time)), _NO_TIME)


def reading(request: service_pb2.SendMessageRequest) -> ReadSend:
    """Reads a request."""
    return partial(read_request, request)


def reading_of(call: Call) -> ReadSend:
    """Reads the request of a call. Raises TroveError REQUEST_ILLEGAL."""
    return reading(request_of(call))


# --- by protobuf -----------------------------------------------------------------------------------------
def read_request(request: service_pb2.SendMessageRequest, limits: SendLimits) -> Steps[Send]:
    """The command of a request, in steps of STEP messages.

    Raises TroveError BATCH_ILLEGAL, REQUEST_ILLEGAL, TOPIC_ILLEGAL, FIFO_BROKER_AWAY, and those of
    check_message().
    """
    messages = request.messages
    if not messages:
        raise TroveError(errors.BATCH_ILLEGAL, "a send needs at least one message")
    if len(messages) > MESSAGES_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{len(messages)} messages, the limit is {MESSAGES_MAX}")
    topic = ""
    found = []
    for number, message in enumerate(messages, 1):
        name = topic_to_send(message.topic)
        if topic and name != topic:
            raise TroveError(errors.BATCH_ILLEGAL, "the messages of one send have one topic")
        topic = name
        found.append(_canonical_message(message, limits.body_size_max) or _sent_message(message, limits))
        if not number % STEP:
            yield
    return Send(topic, found)


def _canonical_message(message: v2.Message, body_size_max: int) -> SentMessage | None:
    """A message that has nothing but a body, id, tag, keys and born host which pass all checks; None of any
    other. So the official clients' messages are."""
    system, body = message.system_properties, message.body
    has = system.HasField
    if (
        not 0 < len(body) <= body_size_max
        or message.user_properties
        or system.message_type not in _CANONICAL_TYPES
        or system.message_group
        or system.trace_context
        or system.body_encoding == v2.GZIP
        or has("body_digest")
        or has("delivery_timestamp")
        or has("priority")
        or has("orphaned_transaction_recovery_duration")
        or has("lite_topic")
    ):
        return None
    message_id, tag, keys = system.message_id, system.tag, system.keys
    if not are_legal(message_id, tag, keys):
        return None
    text = f"{PROPERTY_UNIQ_KEY}\x01{message_id}\x02"
    if keys and (joined := " ".join(keys)):
        text += f"{PROPERTY_KEYS}\x01{joined}\x02"
    if tag:
        text += f"{PROPERTY_TAGS}\x01{tag}\x02"
    if (host := system.born_host) and _storable(host):
        text += f"{PROPERTY_BORN_HOST}\x01{host}\x02"
    born_ms = stored_born_ms(timestamp_ms(system.born_timestamp), _NO_TIME)
    return _new_message((message_id, NORMAL, body, text.encode(), born_ms, *_NO_OTHERS))


def _sent_message(message: v2.Message, limits: SendLimits) -> SentMessage:
    """Any message. Raises TroveError FIFO_BROKER_AWAY and those of check_message()."""
    check_message(message, *limits)
    system = message.system_properties
    if system.message_group and system.queue_id >= AWAY_FIRST:
        raise broker_away(message.topic.name)
    has = system.HasField
    message_id = system.message_id
    gzip, digest, encoding = system.body_encoding == v2.GZIP, None, None
    if has("body_digest"):
        digest = (system.body_digest.type, system.body_digest.checksum)
    if gzip or digest is not None:
        encoding = Encoding(gzip, digest, lambda: message.body)
    deliver_ms = timestamp_ms(system.delivery_timestamp) if has("delivery_timestamp") else EpochMs(0)
    immunity_ms = _NO_IMMUNITY_MS
    if has("orphaned_transaction_recovery_duration"):
        immunity_ms = duration_ms(system.orphaned_transaction_recovery_duration)
    return SentMessage(
        message_id,
        v2.MessageType.Name(kind_of(message)),
        message.body if encoding is None else b"",
        _properties(message_id, message.user_properties, system),
        stored_born_ms(timestamp_ms(system.born_timestamp), _NO_TIME),
        system.message_group,
        deliver_ms,
        immunity_ms,
        encoding,
    )


def broker_away(topic: str) -> TroveError:
    """FIFO_BROKER_AWAY."""
    text = (
        f"the broker of this message group of topic {topic} is away: start it, and send again; to use other"
        f" brokers: trovemq topic spread {topic} --brokers …"
    )
    return TroveError(errors.FIFO_BROKER_AWAY, text, topic=topic)


def _properties(message_id: str, user: Mapping[str, str], system: v2.SystemProperties) -> bytes:
    """The property block, under the names with which RocketMQ stores the system properties. The record's born
    host is the peer's address; the address that the sender names is a property."""
    found = {PROPERTY_UNIQ_KEY: message_id}
    if system.keys and (keys := " ".join(system.keys)):
        found[PROPERTY_KEYS] = keys
    if tag := system.tag:
        found[PROPERTY_TAGS] = tag
    if user:  # the stored form has no empty names and values
        found.update({name: value for name, value in user.items() if name and value})
    if system.keys and (sizes := key_sizes(system.keys)):
        found[PROPERTY_KEY_SIZES] = sizes
    if group := system.message_group:
        found[PROPERTY_SHARDING_KEY] = group
    if system.HasField("priority"):
        found[PROPERTY_PRIORITY] = str(system.priority)
    if (host := system.born_host) and _storable(host):
        found[PROPERTY_BORN_HOST] = host
    if (context := system.trace_context) and _storable(context):
        found[PROPERTY_TRACE_CONTEXT] = context
    return "".join([f"{name}\x01{value}\x02" for name, value in found.items()]).encode()


def _storable(text: str) -> bool:
    """Whether the record's form can have the text; informative texts that it cannot have are omitted."""
    return len(text) <= SYSTEM_TEXT_SIZE_MAX and text.isprintable()


# --- bodies ----------------------------------------------------------------------------------------------
def stored_body(message: SentMessage, body_size_max: int) -> bytes:
    """The body to store.

    Raises TroveError BATCH_ILLEGAL: it does not match its digest or its encoding; MESSAGE_SIZE_EXCEEDED: it
    inflates to more than `body_size_max` bytes.
    """
    if message.encoding is None:
        return message.body
    gzip, digest, read = message.encoding
    body = read()
    if digest is not None:
        _check_digest(body, *digest)
    return _gunzip(body, body_size_max) if gzip else body


def _check_digest(body: bytes, kind: v2.DigestType, checksum: str) -> None:
    """Compares the digest, except CRC32, which clients write in three forms."""
    if kind == v2.MD5:
        found = md5(body, usedforsecurity=False).hexdigest()
    elif kind == v2.SHA1:
        found = sha1(body, usedforsecurity=False).hexdigest()
    else:
        return
    if checksum.lower() != found:
        raise TroveError(errors.BATCH_ILLEGAL, "the body does not have the digest that the message states")


def _gunzip(body: bytes, body_size_max: int) -> bytes:
    inflater = zlib.decompressobj(GZIP_WINDOW)
    try:
        inflated = inflater.decompress(body, body_size_max + 1)
    except zlib.error as error:
        raise TroveError(errors.BATCH_ILLEGAL, f"the body is said to be gzip, and is not: {error}") from error
    if len(inflated) > body_size_max:
        raise TroveError(
            errors.MESSAGE_SIZE_EXCEEDED, f"the body inflates to more than {body_size_max} bytes"
        )
    if not inflater.eof:
        raise TroveError(errors.BATCH_ILLEGAL, "the gzip body is cut short")
    return inflated
