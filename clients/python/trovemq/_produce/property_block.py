"""The encoded properties of one message, each checked."""

from __future__ import annotations

from collections.abc import Mapping

from trovemq._common.arguments import check_text
from trovemq._produce.unique_keys import next_unique_key
from trovemq.send_arguments import Keys
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import PROPERTY_SHARDING_KEY, PROPERTY_UNIQ_KEY, encode_properties
from trovemq_proto.records.internal_properties import Writer
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.records.priorities import check_priority as stored_form
from trovemq_proto.records.properties import message_properties
from trovemq_proto.records.unique_keys import UNIQUE_KEY_SIZE

MESSAGE_GROUP_SIZE_MAX = 63  # bytes
UNIQUE_KEY_NAME = PROPERTY_UNIQ_KEY.encode()
GROUP_NAME = PROPERTY_SHARDING_KEY.encode()
BARE_BLOCK_SIZE = len(UNIQUE_KEY_NAME) + UNIQUE_KEY_SIZE + 2
"""The bytes of the properties of a message that has a message id only."""


def property_block(
    keys: Keys = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    message_id: str | None = None,
    message_group: str | None = None,
    priority: int | None = None,
    writer: Writer = Writer.USER,
) -> tuple[str, bytes]:
    """A message's UNIQ_KEY and its encoded properties, each checked. Raises TroveError for a wrong one."""
    found: dict[str, str] = {}
    if message_id is None:  # a generated one needs no check
        message_id = next_unique_key()
        if keys is None and tag is None and properties is None and message_group is None and priority is None:
            return message_id, b"%s\x01%s\x02" % (UNIQUE_KEY_NAME, message_id.encode())
        found = {PROPERTY_UNIQ_KEY: message_id}
        found |= message_properties(None, keys, tag, properties, writer)
    else:
        found = message_properties(message_id, keys, tag, properties, writer)
    if message_group is not None:
        found[PROPERTY_SHARDING_KEY] = check_message_group(message_group)
    if priority is not None:
        found[PROPERTY_PRIORITY] = check_priority(priority, message_group)
    return message_id, encode_properties(found)


def check_priority(priority: int, message_group: str | None) -> str:
    """The priority as it is stored. Raises TroveError PROPERTY_ILLEGAL, REQUEST_ILLEGAL."""
    if message_group is not None:
        text = "give a priority or a message group, whose order is that of sending; not both"
        raise TroveError(errors.REQUEST_ILLEGAL, text)
    return stored_form(priority)


def check_message_group(group: str) -> str:
    """The group itself. Raises TroveError MESSAGE_GROUP_ILLEGAL."""
    check_text("message_group", group, errors.MESSAGE_GROUP_ILLEGAL)
    size = len(group.encode("utf-8", "surrogatepass"))
    if not group.strip() or size > MESSAGE_GROUP_SIZE_MAX or not group.isprintable():
        raise TroveError(
            errors.MESSAGE_GROUP_ILLEGAL,
            f"the message group {group[:80]!r} is blank, longer than {MESSAGE_GROUP_SIZE_MAX} bytes or has a"
            " control character",
        )
    return group
