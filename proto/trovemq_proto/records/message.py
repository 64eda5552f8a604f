"""One record, decoded: the form that consumers and queries return to the application."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, replace
from hashlib import sha256

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.hosts import format_host
from trovemq_proto.records.ids import encode_offset_msg_id
from trovemq_proto.records.internal_properties import is_internal, is_reserved, without_internal
from trovemq_proto.records.layout import (
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


@dataclass(frozen=True, slots=True)
class Message:
    """A record's fields. Timestamps are epoch ms, offsets and sizes as stored, magic_code is signed.

    `body` is as the application gave it, `stored_body` as it lies in the record (compressed, perhaps);
    `record` has the bytes of the whole record. `body_error` says why `body` is empty if `stored_body` cannot
    be inflated; "" otherwise.
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
    """As decode_message, for a program: see received()."""
    data = bytes(record)
    return received(build_message(data, _checked_fields(data), queue_offset, inflate=False))


def received(stored: Message) -> Message:
    """The form for a program of a message that was decoded with its stored body: inflated if that is
    possible, otherwise with `body_error`; without TroveMQ's own properties."""
    message = stored
    if any(map(is_internal, stored.properties)):
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
    """As decode_message, with `body` as it lies in the record. For code that copies or examines a record: a
    body that cannot be inflated here must not stop that. RECORD_DAMAGED: not well formed, CRC wrong."""
    data = bytes(record)
    return build_message(data, _checked_fields(data), inflate=False)


def _checked_fields(data: bytes) -> RecordFields:
    fields = read_fields(data, 0, len(data))
    if fields is None or fields.size != len(data):
        raise TroveError(errors.RECORD_DAMAGED, f"the {len(data)} bytes are not a well-formed record")
    if not crc_matches(data, fields):
        raise TroveError(errors.RECORD_DAMAGED, "the record does not have the CRC that it states")
    return fields


def build_message(
    data: bytes,
    fields: RecordFields,
    queue_offset: QueueOffset | None = None,
    body_size_max: int = BODY_SIZE_MAX_DEFAULT,
    *,
    inflate: bool = True,
) -> Message:
    """The message of a well-formed record whose CRC has been checked; `fields` are positions in `data`."""
    _, _, sys_flag, body_at, body_size, topic_at, topic_size, properties_at, _ = fields
    (
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        stored_queue_offset,
        physical_offset,
        _,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_offset,
        _,
    ) = HEADERS[host_bits(sys_flag)].unpack_from(data)
    stored_body = data[body_at : body_at + body_size]
    compressed = inflate and sys_flag & SYS_FLAG_COMPRESSED
    return Message(
        data[topic_at : topic_at + topic_size].decode("utf-8", "replace"),
        queue_id,
        stored_queue_offset if queue_offset is None else queue_offset,
        physical_offset,
        size,
        flag,
        sys_flag,
        born_timestamp,
        format_host(born_host),
        store_timestamp,
        format_host(store_host),
        reconsume_times,
        prepared_offset,
        body_crc,
        magic,
        parse_properties(data[properties_at:]),
        inflate_body(stored_body, sys_flag, body_size_max) if compressed else stored_body,
        stored_body,
        data,
    )
