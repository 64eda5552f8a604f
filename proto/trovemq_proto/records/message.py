"""One record, decoded: the form that consumers and queries return to the application."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.fields import queue_offset as stored_queue_offset
from trovemq_proto.records.hosts import format_host
from trovemq_proto.records.ids import encode_offset_msg_id
from trovemq_proto.records.internal_properties import (
    INTERNAL_PREFIX,
    is_internal,
    is_reserved,
    without_internal,
)
from trovemq_proto.records.layout import (
    BODY_AT,
    BODY_SIZE_MAX_DEFAULT,
    BORN_HOST_AT,
    HEADERS,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECONSUME_TIMES_AT,
    STORE_HOST_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_COMPRESSED,
    born_shift,
    header_shift,
    host_bits,
)
from trovemq_proto.records.properties import parse_properties


class _Parts:
    """Where the parts of a record lie, beside the fields of its message."""

    __slots__ = ("_fields",)
    _fields: RecordFields


@dataclass(frozen=True, slots=True)
class Message(_Parts):
    """A record's fields. Timestamps are epoch ms, offsets and sizes as stored, magic_code is signed.

    `body` is as the application gave it, `stored_body` as it lies in the record (compressed, perhaps);
    `record` has the bytes of the whole record. `body_error` says why `body` is empty if `stored_body` cannot
    be inflated; "" otherwise.

    A message that build_message() made has few of these values: the others are read from the record when they
    are asked for.
    """

    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    store_size: int
    flag: int
    sys_flag: int
    born_timestamp: EpochMs
    born_host: str
    store_timestamp: EpochMs
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    magic_code: int
    properties: dict[str, str]
    body: bytes
    stored_body: bytes
    record: bytes
    body_error: str = ""

    if not TYPE_CHECKING:  # else every misspelt name would be right

        def __getattr__(self, name: str) -> Any:
            """Reads a field that has no value yet."""
            if (read := _READERS.get(name)) is not None:
                _set(self, name, read(self))
            elif name in _HEADER_FIELDS:
                _read_header(self)
            else:
                raise AttributeError(f"a message has no {name!r}", name=name, obj=self)
            return getattr(self, name)

    @property
    def keys(self) -> tuple[str, ...]:
        """The user's keys, without empty ones, in order."""
        return tuple(key for key in self.properties.get(PROPERTY_KEYS, "").split(" ") if key)

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(PROPERTY_UNIQ_KEY)

    @property
    def user_properties(self) -> dict[str, str]:
        """The sender's own properties: they may be sent again as they are."""
        return {name: value for name, value in self.properties.items() if not is_reserved(name)}

    @property
    def packed_born_host(self) -> bytes:
        """BORNHOST as it is stored; its text may be one that is not an address."""
        return self.record[BORN_HOST_AT : STORE_TIMESTAMP_AT + born_shift(self.sys_flag)]

    @property
    def packed_store_host(self) -> bytes:
        begin = STORE_HOST_AT + born_shift(self.sys_flag)
        return self.record[begin : RECONSUME_TIMES_AT + header_shift(self.sys_flag)]

    @property
    def property_block(self) -> bytes:
        """The properties as they are stored."""
        fields = read_fields(self.record, 0, len(self.record))
        assert fields is not None, "the record of a message is well formed"
        assert fields.size == len(self.record), "a message has the whole record, and no more"
        return self.record[fields.property_position :]

    @property
    def offset_msg_id(self) -> str:
        """Where the message lies: its store host and physical offset."""
        return encode_offset_msg_id(self.packed_store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The unique key, or the offsetMsgId of a message without one."""
        return self.unique_key or self.offset_msg_id

    def to_manifest(self) -> dict[str, object]:
        """The message as JSON-ready data, with names and types as the golden manifests have them."""
        manifest: dict[str, object] = {
            "topic": self.topic,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "commitLogOffset": self.physical_offset,
            "storeSize": self.store_size,
            "msgId": self.message_id,
            "offsetMsgId": self.offset_msg_id,
            "uniqKey": self.unique_key,
            "keys": self.properties.get(PROPERTY_KEYS),
            "tags": self.tags,
            "flag": self.flag,
            "sysFlag": self.sys_flag,
            "bornTimestamp": self.born_timestamp,
            "bornHost": self.born_host,
            "storeTimestamp": self.store_timestamp,
            "storeHost": self.store_host,
            "reconsumeTimes": self.reconsume_times,
            "preparedTransactionOffset": self.prepared_transaction_offset,
            "bodyCRC": self.body_crc,
            "magicCode": self.magic_code,
            "properties": dict(sorted(self.properties.items())),
            "body": b64encode(self.body).decode(),
        }
        if self.stored_body != self.body:
            manifest["storedBody"] = b64encode(self.stored_body).decode()
        if self.body_error:
            manifest["bodyError"] = self.body_error
        return manifest | {"recordSha256": sha256(self.record).hexdigest()}


_set: Final = object.__setattr__
_INTERNAL: Final = INTERNAL_PREFIX.encode()
_HEADER_FIELDS: Final = frozenset(
    {
        "queue_id",
        "physical_offset",
        "store_size",
        "flag",
        "born_timestamp",
        "store_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
        "body_crc",
        "magic_code",
    }
)


def decode_message(
    record: bytes | bytearray | memoryview,
    *,
    queue_offset: QueueOffset | None = None,
    body_size_max: int = BODY_SIZE_MAX_DEFAULT,
) -> Message:
    """Decodes the bytes of exactly one record.

    queue_offset replaces the record's own. Raises TroveError RECORD_DAMAGED (not well formed, CRC wrong, or
    a body that inflates to more than body_size_max bytes) and COMPRESSION_UNSUPPORTED.
    """
    data = bytes(record)
    return build_message(data, _checked_fields(data), queue_offset, body_size_max)


def decode_received(
    record: bytes | bytearray | memoryview, *, queue_offset: QueueOffset | None = None
) -> Message:
    """The message of a record in the form for a program (received). Raises TroveError RECORD_DAMAGED: not
    well formed, CRC wrong."""
    data = bytes(record)
    return received(build_message(data, _checked_fields(data), queue_offset, inflate=False))


def received_of(
    data: bytes | bytearray | memoryview, fields: RecordFields, queue_offset: QueueOffset | None
) -> Message:
    """decode_received() of the record that has these fields in `data`."""
    at, size, *_ = fields
    record = bytes(data[at : at + size])
    if at:
        at, size, sys_flag, body_at, body_size, topic_at, topic_size, property_at, property_size = fields
        places = (body_at - at, body_size, topic_at - at, topic_size, property_at - at, property_size)
        fields = RecordFields(0, size, sys_flag, *places)
    _check_crc(record, fields)
    return received(build_message(record, fields, queue_offset, inflate=False))


def received(stored: Message) -> Message:
    """The form for a program of a message that was decoded with its stored body: inflated if that is
    possible, otherwise with `body_error`; without TroveMQ's own properties."""
    message = stored
    after_body = BODY_AT + len(stored.body)  # or before its end: the properties lie beyond
    if stored.record.find(_INTERNAL, after_body) >= 0 and any(map(is_internal, stored.properties)):
        message = replace(message, properties=without_internal(stored.properties))
    if stored.sys_flag & SYS_FLAG_COMPRESSED:
        body, error = b"", ""
        try:
            body = inflate_body(stored.stored_body, stored.sys_flag, BODY_SIZE_MAX_DEFAULT)
        except TroveError as failure:
            error = failure.message
        message = replace(message, body=body, body_error=error)
    return message


def decode_stored(record: bytes | bytearray | memoryview) -> Message:
    """The message of a record, with `body` as it lies in the record, for code that copies or examines
    records: a body that cannot be inflated here must not stop that. Raises TroveError RECORD_DAMAGED: not
    well formed, CRC wrong."""
    data = bytes(record)
    return build_message(data, _checked_fields(data), inflate=False)


def _checked_fields(data: bytes) -> RecordFields:
    fields = read_fields(data, 0, len(data))
    if fields is None or fields.size != len(data):
        raise DamagedError(errors.RECORD_DAMAGED, f"the {len(data)} bytes are not a well-formed record")
    _check_crc(data, fields)
    return fields


def _check_crc(data: bytes, fields: RecordFields) -> None:
    if not crc_matches(data, fields):
        raise DamagedError(errors.RECORD_DAMAGED, "the record does not have the CRC that it states")


def build_message(
    data: bytes,
    fields: RecordFields,
    queue_offset: QueueOffset | None = None,
    body_size_max: int = BODY_SIZE_MAX_DEFAULT,
    *,
    inflate: bool = True,
) -> Message:
    """The message of a well-formed record whose CRC has been checked; `fields` are positions in `data`."""
    sys_flag, body_at = fields.sys_flag, fields.body_position
    body = data[body_at : body_at + fields.body_size]
    if inflate and sys_flag & SYS_FLAG_COMPRESSED:
        body = inflate_body(body, sys_flag, body_size_max)
    message = Message.__new__(Message)
    _set(message, "_fields", fields)
    _set(message, "record", data)
    _set(message, "body", body)
    _set(message, "sys_flag", sys_flag)
    _set(message, "queue_offset", stored_queue_offset(data, 0) if queue_offset is None else queue_offset)
    return message


def _read_topic(message: Message) -> str:
    at, size = message._fields.topic_position, message._fields.topic_size
    return message.record[at : at + size].decode("utf-8", "replace")


def _read_properties(message: Message) -> dict[str, str]:
    return parse_properties(message.record[message._fields.property_position :])


def _read_stored_body(message: Message) -> bytes:
    at, size = message._fields.body_position, message._fields.body_size
    return message.record[at : at + size]


def _read_header(message: Message) -> None:
    """Sets the numbers of the header."""
    (
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        _,
        physical_offset,
        _,
        born_timestamp,
        _,
        store_timestamp,
        _,
        reconsume_times,
        prepared_offset,
        _,
    ) = HEADERS[host_bits(message.sys_flag)].unpack_from(message.record)
    _set(message, "queue_id", queue_id)
    _set(message, "physical_offset", physical_offset)
    _set(message, "store_size", size)
    _set(message, "flag", flag)
    _set(message, "born_timestamp", born_timestamp)
    _set(message, "store_timestamp", store_timestamp)
    _set(message, "reconsume_times", reconsume_times)
    _set(message, "prepared_transaction_offset", prepared_offset)
    _set(message, "body_crc", body_crc)
    _set(message, "magic_code", magic)


_READERS: Final[dict[str, Callable[[Message], object]]] = {
    "topic": _read_topic,
    "properties": _read_properties,
    "stored_body": _read_stored_body,
    "born_host": lambda message: format_host(message.packed_born_host),
    "store_host": lambda message: format_host(message.packed_store_host),
    "body_error": lambda _message: "",
}
