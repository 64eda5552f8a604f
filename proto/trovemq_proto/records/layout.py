"""The record as it lies in the commit log: sizes, positions, magic codes, flags and property names.

All integers are big-endian two's complement. A host is 4 (IPv4) or 16 (IPv6) address bytes and an i32 port;
each IPv6 host moves the later fields by 12 bytes. Positions below are those of two IPv4 hosts.

| offset | width  | field                     | notes                                                    |
|--------|--------|---------------------------|----------------------------------------------------------|
| 0      | i32    | TOTALSIZE                 | the whole record                                         |
| 4      | i32    | MAGICCODE                 | v1, v2 (topics over 127 characters) or blank             |
| 8      | i32    | BODYCRC                   | CRC-32 of the stored body & 0x7FFFFFFF                   |
| 12     | i32    | QUEUEID                   |                                                          |
| 16     | i32    | FLAG                      | the application's, opaque                                |
| 20     | i64    | QUEUEOFFSET               | position in the queue                                    |
| 28     | i64    | PHYSICALOFFSET            | position in the log                                      |
| 36     | i32    | SYSFLAG                   | bits below                                               |
| 40     | i64    | BORNTIMESTAMP             | epoch ms, the client's clock                             |
| 48     | 8, 20  | BORNHOST                  |                                                          |
| 56     | i64    | STORETIMESTAMP            | epoch ms, the broker's clock                             |
| 64     | 8, 20  | STOREHOST                 |                                                          |
| 72     | i32    | RECONSUMETIMES            |                                                          |
| 76     | i64    | PREPAREDTRANSACTIONOFFSET |                                                          |
| 84     | i32, n | BODY                      |                                                          |
| 88 + n | i8, n  | TOPIC                     | v2: i16, n; the v1 length byte is signed: at most 127    |
| ...    | i16, n | PROPERTIES                | `name 0x01 value 0x02` repeated, at most 32,767 bytes;   |
|        |        |                           | the last may be the whole record's CRC (record_crc.py)   |

A blank record ends a segment: i32 bytes up to the segment's end, i32 blank magic; the rest is undefined.
Source: RocketMQ 5.4.0, MessageExtEncoder, MessageDecoder, CommitLog.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
MAGIC_BLANK_BYTES: Final = MAGIC_BLANK.to_bytes(4)
MAGIC_V1_BYTES: Final = MAGIC_V1.to_bytes(4)
MAGIC_V2_BYTES: Final = MAGIC_V2.to_bytes(4)

HOST_SIZE_IPV4: Final = 8
HOST_SIZE_IPV6: Final = 20
HOST_SIZE_EXTRA: Final = HOST_SIZE_IPV6 - HOST_SIZE_IPV4

# Positions in the record; those after BORNHOST hold for IPv4 hosts (see header_shift).
TOTAL_SIZE_AT: Final = 0
MAGIC_AT: Final = TOTAL_SIZE_AT + 4
BODY_CRC_AT: Final = MAGIC_AT + 4
QUEUE_ID_AT: Final = BODY_CRC_AT + 4
FLAG_AT: Final = QUEUE_ID_AT + 4
QUEUE_OFFSET_AT: Final = FLAG_AT + 4
PHYSICAL_OFFSET_AT: Final = QUEUE_OFFSET_AT + 8
SYS_FLAG_AT: Final = PHYSICAL_OFFSET_AT + 8
BORN_TIMESTAMP_AT: Final = SYS_FLAG_AT + 4
BORN_HOST_AT: Final = BORN_TIMESTAMP_AT + 8
STORE_TIMESTAMP_AT: Final = BORN_HOST_AT + HOST_SIZE_IPV4
STORE_HOST_AT: Final = STORE_TIMESTAMP_AT + 8
STORE_TIMESTAMP_END: Final = STORE_HOST_AT + HOST_SIZE_EXTRA  # with either form of BORNHOST
RECONSUME_TIMES_AT: Final = STORE_HOST_AT + HOST_SIZE_IPV4
PREPARED_OFFSET_AT: Final = RECONSUME_TIMES_AT + 4
BODY_SIZE_AT: Final = PREPARED_OFFSET_AT + 8
BODY_AT: Final = BODY_SIZE_AT + 4

RECORD_SIZE_MIN: Final = BODY_AT + 1 + 2
"""A v1 record with IPv4 hosts, an empty body, topic and property block: 91 bytes."""
BLANK_SIZE: Final = 8
CRC_MASK: Final = 0x7FFFFFFF
"""The bits of a CRC-32 that a record holds."""
PROPERTIES_SIZE_MAX: Final = 32_767
TOPIC_SIZE_MAX: Final = 127
TOPIC_SIZE_MAX_V2: Final = 255
BODY_SIZE_MAX_DEFAULT: Final = 64 << 20

SYS_FLAG_COMPRESSED: Final = 0x1
SYS_FLAG_MULTI_TAGS: Final = 0x2
SYS_FLAG_TRANSACTION_MASK: Final = 0xC
SYS_FLAG_TRANSACTION_PREPARED: Final = 0x4
SYS_FLAG_TRANSACTION_COMMIT: Final = 0x8
SYS_FLAG_TRANSACTION_ROLLBACK: Final = 0xC
SYS_FLAG_BORN_HOST_IPV6: Final = 0x10
SYS_FLAG_STORE_HOST_IPV6: Final = 0x20
SYS_FLAG_INNER_BATCH_MASK: Final = 0xC0
SYS_FLAG_COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

NAME_END: Final = 0x01
"""Ends a property's name."""
VALUE_END: Final = 0x02
"""Ends a property's value."""

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_TRANSACTION: Final = "TRAN_MSG"
PROPERTY_DEAD_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DEAD_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
PROPERTY_DEAD_REASON: Final = "DLQ_ORIGIN_REASON"
PROPERTY_DEAD_ERROR: Final = "DLQ_ORIGIN_ERROR"
PROPERTY_DEAD_TEXT: Final = "DLQ_ORIGIN_TEXT"
PROPERTY_DEAD_TIMES: Final = "DLQ_ORIGIN_TIMES"
PROPERTY_CRC: Final = "__CRC32#"
PROPERTY_TX_ID: Final = "TROVEMQ_TX_ID"
PROPERTY_TX_NUMBER: Final = "TROVEMQ_TX_NUMBER"
PROPERTY_TX_COUNT: Final = "TROVEMQ_TX_COUNT"
PROPERTY_TX_BEGIN: Final = "TROVEMQ_TX_BEGIN"
PROPERTY_PRODUCER: Final = "TROVEMQ_PRODUCER"
PROPERTY_SEQUENCE: Final = "TROVEMQ_SEQUENCE"
PROPERTY_KEY_SIZES: Final = "TROVEMQ_KEY_SIZES"
PROPERTY_WITHDRAWN: Final = "TROVEMQ_WITHDRAWN"
PROPERTY_WITHDRAWN_TOPIC: Final = "TROVEMQ_WITHDRAWN_TOPIC"
PROPERTY_RESENT: Final = "TROVEMQ_RESENT"

CRC_PROPERTY_PREFIX: Final = PROPERTY_CRC.encode() + bytes([NAME_END])
CRC_PROPERTY_DIGITS: Final = 10
CRC_PROPERTY_SIZE: Final = len(CRC_PROPERTY_PREFIX) + CRC_PROPERTY_DIGITS + 1
CRC_PROPERTY_EMPTY: Final = CRC_PROPERTY_PREFIX + b"0" * CRC_PROPERTY_DIGITS + bytes([VALUE_END])
"""The 20 bytes that the encoder reserves and the broker fills."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS_SECONDS: Final = (
    1,
    5,
    10,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1200,
    1800,
    3600,
    7200,
)
"""RocketMQ's messageDelayLevel: level 1 is the first."""

RESERVED_PROPERTIES: Final = frozenset(
    """
    KEYS TAGS UNIQ_KEY WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP __transactionId__
    TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS ORIGIN_MESSAGE_ID
    MAX_RECONSUME_TIMES RECONSUME_TIME CONSUME_START_TIME DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID
    DLQ_ORIGIN_REASON DLQ_ORIGIN_ERROR DLQ_ORIGIN_TEXT DLQ_ORIGIN_TIMES
    TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL TIMER_ROLL_LABEL __SHARDINGKEY CLUSTER MSG_REGION
    TRACE_ON INNER_NUM INNER_BASE INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET POP_CK POP_CK_OFFSET
    1ST_POP_TIME MSG_TYPE CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME
    _SYS_MSG_PRIORITY_ ORIGIN_GROUP TRANS_OFFSET E_T INSTANCE_ID BUYER_ID TRANSFER_FLAG CORRECTION_FLAG
    MQ2_FLAG EXTEND_UNIQ_INFO DUP_INFO TRACE_CONTEXT __BORNHOST BORN_TIMESTAMP PROPERTY_FORWARD_QUEUE_ID
    REDIRECT MIN_OFFSET MAX_OFFSET __CRC32#
    """.split()  # noqa: SIM905 - a list of fifty quoted names is harder to read
)
"""Names with a meaning of RocketMQ's own; internal_properties.is_reserved() knows ours, too."""


def _header(host_bits: int) -> Struct:
    born = HOST_SIZE_IPV6 if host_bits & 1 else HOST_SIZE_IPV4
    store = HOST_SIZE_IPV6 if host_bits & 2 else HOST_SIZE_IPV4
    return Struct(f">iiiiiqqiq{born}sq{store}siqi")


HEADERS: Final = tuple(_header(host_bits) for host_bits in range(4))
"""TOTALSIZE up to the body's length, one form for each value of host_bits()."""


def host_bits(sys_flag: int) -> int:
    """Index into HEADERS: bit 0 when the born host is IPv6, bit 1 when the store host is."""
    return sys_flag >> 4 & 3


def header_shift(sys_flag: int) -> int:
    """Bytes by which IPv6 hosts move RECONSUMETIMES and the later fields (0, 12 or 24)."""
    return HOST_SIZE_EXTRA * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))


def born_shift(sys_flag: int) -> int:
    """Bytes by which an IPv6 born host moves STORETIMESTAMP and STOREHOST (0 or 12)."""
    return HOST_SIZE_EXTRA * (sys_flag >> 4 & 1)


def magic_of_topic(topic: str) -> int:
    """v2 when the topic has more than 127 UTF-16 units, else v1."""
    return MAGIC_V2 if len(topic.encode("utf-16-be", "surrogatepass")) // 2 > TOPIC_SIZE_MAX else MAGIC_V1
