"""The codec: records as they lie in the log, read and written in bulk. Synchronous, no clock, no network.

A name is imported when it is first used: one record is read without NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from trovemq_proto.numpy_extra import NUMPY_MISSING

if TYPE_CHECKING:
    from trovemq_proto.records.batch import RecordBatch
    from trovemq_proto.records.batch_encoder import BatchEncoder
    from trovemq_proto.records.check import RecordState, check_record
    from trovemq_proto.records.encode import SingleRecords, blank_record, encode_record
    from trovemq_proto.records.hashes import index_hash, java_hash, java_hash_bytes
    from trovemq_proto.records.hosts import format_host, pack_host
    from trovemq_proto.records.ids import decode_offset_msg_id, encode_offset_msg_id, looks_like_offset_msg_id
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
    from trovemq_proto.records.unique_keys import UniqueKeyGenerator
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
    "SingleRecords",
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

# Where each name lives; the imports above say the same to type checkers, and a test compares them.
_MODULES: Final = {
    "batch": ("RecordBatch",),
    "batch_encoder": ("BatchEncoder",),
    "check": (
        "RecordState",
        "check_record",
    ),
    "encode": (
        "SingleRecords",
        "blank_record",
        "encode_record",
    ),
    "hashes": (
        "index_hash",
        "java_hash",
        "java_hash_bytes",
    ),
    "hosts": (
        "format_host",
        "pack_host",
    ),
    "ids": (
        "decode_offset_msg_id",
        "encode_offset_msg_id",
        "looks_like_offset_msg_id",
    ),
    "index_entries": ("IndexEntries",),
    "layout": (
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
    ),
    "message": (
        "Message",
        "decode_message",
        "decode_received",
        "decode_stored",
    ),
    "patch": ("patch_batch",),
    "properties": (
        "check_key",
        "check_property",
        "check_tag",
        "check_unique_key",
        "encode_properties",
        "parse_properties",
    ),
    "scan": ("scan_run",),
    "unique_keys": ("UniqueKeyGenerator",),
    "validate": ("validate_batch",),
}
_MODULE_OF: Final = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        """A public name, imported at its first use (PEP 562)."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(_MODULE_OF[name])
        except ModuleNotFoundError as error:
            if error.name != "numpy":
                raise
            raise ImportError(f"{name} {NUMPY_MISSING}") from None
        value: object = getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
