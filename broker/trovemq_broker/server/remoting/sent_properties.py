"""Properties that only a broker writes: they are removed from the messages of remoting clients.

A program that sends a message again sends all properties that it was given, also a broker's. So these are no
error, as they are for a client of v2, whose library hides them from programs; but none of them counts.
"""

from __future__ import annotations

import re
from typing import Final

from trovemq_proto.records import dead_letter_reason
from trovemq_proto.records.internal_properties import INTERNAL_PREFIX, TRANSIENT_PREFIX
from trovemq_proto.records.layout import PROPERTY_UNIQ_KEY

BROKERS_OWN: Final = (
    *("REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"),
    *("TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "TIMER_ROLL_LABEL", "TRAN_PREPARED_QUEUE_OFFSET"),
    *("TRANSACTION_CHECK_TIMES", "TRANS_OFFSET", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "POP_CK"),
    *("POP_CK_OFFSET", "1ST_POP_TIME", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH"),
    *("INNER_MULTI_QUEUE_OFFSET", "__CRC32#", *dead_letter_reason.PROPERTIES),
)
OF_RETRIES: Final = ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
"""A consumer writes these itself, in a message that it sends to its retry topic."""


def _pattern(*names: str) -> re.Pattern[bytes]:
    own = "|".join(re.escape(name) for name in names)
    prefixes = "|".join(re.escape(prefix) for prefix in (INTERNAL_PREFIX, TRANSIENT_PREFIX))
    no_key = rf"{PROPERTY_UNIQ_KEY}\x01"
    text = rf"(?:\A|(?<=\x02))(?:{no_key}|(?:{own}|(?:{prefixes})[^\x01\x02]*)\x01[^\x02]*)\x02"
    return re.compile(text.encode())


_ALWAYS: Final = _pattern(*BROKERS_OWN)
_OUTSIDE_OF_RETRIES: Final = _pattern(*BROKERS_OWN, *OF_RETRIES)


def of_client(block: bytes, *, is_retry: bool) -> bytes:
    """The properties that a client may write, and no empty unique key. `block`: ends with 0x02, if it has
    any. `is_retry`: of a message for a retry topic."""
    return (_ALWAYS if is_retry else _OUTSIDE_OF_RETRIES).sub(b"", block)
