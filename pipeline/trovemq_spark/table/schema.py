"""The table of a topic or a commit log: its columns, their types in Arrow and in Spark, and narrowing.

| column                    | type               | notes                                                     |
|---------------------------|--------------------|-----------------------------------------------------------|
| topic                     | string             |                                                           |
| brokerName                | string             | null in `trovemq-log` without the option brokerName       |
| queueId                   | int                |                                                           |
| queueOffset               | bigint             | null in a row of the column `damage`                      |
| physicalOffset            | bigint             | place in the log, bytes                                   |
| size                      | int                | of the record, bytes                                      |
| keys, tags, messageId     | string             | null if it has none; keys separated by a space            |
| offsetMsgId               | string             | offsetMsgId: hexadecimal store host and physical offset   |
| body                      | binary             | as the application sent it (decompressed)                 |
| properties                | map<string,string> | all properties except RocketMQ's CRC of the record        |
| bornTimestamp             | timestamp          | UTC                                                       |
| storeTimestamp            | timestamp          | UTC                                                       |
| with includeHeader = true:                                                                                 |
| bornHost, storeHost       | string             | `a.b.c.d:port`, `[ipv6]:port`                             |
| flag, sysFlag             | int                |                                                           |
| bodyCRC                   | bigint             | of the stored body, 0..2**31-1                            |
| reconsumeTimes            | int                |                                                           |
| preparedTransactionOffset | bigint             |                                                           |
| with mode = permissive:                                                                                    |
| damage                    | string             | the reason for no message at physicalOffset; else null    |

Spark checks only the first Arrow batch of a partition against the schema, so every batch must have exactly
the types below (timestamps in microseconds UTC, no large_ types, no dictionaries).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES_TYPE: Final = pa.map_(pa.string(), pa.string())

BASE_COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "size": pa.int32(),
    "keys": pa.string(),
    "tags": pa.string(),
    "messageId": pa.string(),
    "offsetMsgId": pa.string(),
    "body": pa.binary(),
    "properties": PROPERTIES_TYPE,
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
}
HEADER_COLUMNS: Final[dict[str, pa.DataType]] = {
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bodyCRC": pa.int64(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
}
DAMAGE_COLUMN: Final = "damage"
ALL_COLUMNS: Final = BASE_COLUMNS | HEADER_COLUMNS | {DAMAGE_COLUMN: pa.string()}


def column_names(*, header: bool = False, damage: bool = False, properties: bool = True) -> list[str]:
    """The names of the table's columns, in order."""
    names = [name for name in BASE_COLUMNS if properties or name != "properties"]
    names += list(HEADER_COLUMNS) if header else []
    return [*names, DAMAGE_COLUMN] if damage else names


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns. KeyError for a name that is not a column."""
    return pa.schema([pa.field(name, ALL_COLUMNS[name]) for name in names])


def spark_schema(names: Sequence[str]) -> StructType:
    """The Spark schema of these columns. KeyError for a name that is not a column."""
    from pyspark.sql import types

    spark_types: dict[pa.DataType, types.DataType] = {
        pa.string(): types.StringType(),
        pa.int32(): types.IntegerType(),
        pa.int64(): types.LongType(),
        pa.binary(): types.BinaryType(),
        TIMESTAMP: types.TimestampType(),
        PROPERTIES_TYPE: types.MapType(types.StringType(), types.StringType()),
    }
    return types.StructType([types.StructField(name, spark_types[ALL_COLUMNS[name]]) for name in names])
