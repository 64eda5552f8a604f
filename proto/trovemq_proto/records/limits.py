"""Limits of fields of a record that a client may send."""

from __future__ import annotations

from typing import Final

from trovemq_proto.records.layout import (
    COMPRESSION_ZLIB,
    SYS_FLAG_BORN_HOST_IPV6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_STORE_HOST_IPV6,
)

SYS_FLAGS_ALLOWED: Final = (
    SYS_FLAG_COMPRESSED
    | SYS_FLAG_MULTI_TAGS
    | SYS_FLAG_BORN_HOST_IPV6
    | SYS_FLAG_STORE_HOST_IPV6
    | COMPRESSION_ZLIB
)
"""The bits that a client may set: no transaction bits, no inner batches."""
BORN_TIMESTAMP_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: the last that protobuf's Timestamp, and Spark, have."""
PORT_MAX: Final = 65_535
