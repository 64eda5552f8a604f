"""The codec: records as they lie in the log, read and written in bulk. Synchronous, no clock, no network."""

from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.batch_encoder import BatchEncoder
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.encode import blank_record, encode_record
from trovemq_proto.records.hashes import index_hash, java_hash, java_hash_bytes
from trovemq_proto.records.hosts import format_host, pack_host
from trovemq_proto.records.ids import (
    UniqueKeyGenerator,
    decode_offset_msg_id,
    encode_offset_msg_id,
    looks_like_offset_msg_id,
)
from trovemq_proto.records.index_entries import IndexEntries
from trovemq_proto.records.layout import (
    BLANK_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_SIZE_MAX,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    RECORD_SIZE_MIN,
    RESERVED_PROPERTIES,
    SCHEDULE_TOPIC,
    TOPIC_SIZE_MAX,
)
from trovemq_proto.records.message import Message, decode_message, decode_received, decode_stored
from trovemq_proto.records.patch import patch_batch
from trovemq_proto.records.properties import (
    check_key,
    check_property,
    check_tag,
    check_unique_key,
    encode_properties,
    parse_properties,
)
from trovemq_proto.records.scan import scan_run
from trovemq_proto.records.validate import validate_batch

__all__ = [
    "BLANK_SIZE",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "PROPERTIES_SIZE_MAX",
    "PROPERTY_DELAY",
    "PROPERTY_KEYS",
    "PROPERTY_SHARDING_KEY",
    "PROPERTY_TAGS",
    "PROPERTY_UNIQ_KEY",
    "PROPERTY_WAIT",
    "RECORD_SIZE_MIN",
    "RESERVED_PROPERTIES",
    "SCHEDULE_TOPIC",
    "TOPIC_SIZE_MAX",
    "BatchEncoder",
    "IndexEntries",
    "Message",
    "RecordBatch",
    "RecordState",
    "UniqueKeyGenerator",
    "blank_record",
    "check_key",
    "check_property",
    "check_record",
    "check_tag",
    "check_unique_key",
    "decode_message",
    "decode_offset_msg_id",
    "decode_received",
    "decode_stored",
    "encode_offset_msg_id",
    "encode_properties",
    "encode_record",
    "format_host",
    "index_hash",
    "java_hash",
    "java_hash_bytes",
    "looks_like_offset_msg_id",
    "pack_host",
    "parse_properties",
    "patch_batch",
    "scan_run",
    "validate_batch",
]
