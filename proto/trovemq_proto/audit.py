"""Audit records: messages of a broker's internal topic. An act has two records, any other event one.

The topic has one queue. Body: a JSON object in UTF-8.

| member    | value                                                                                    |
|-----------|------------------------------------------------------------------------------------------|
| id        | of this record; after retention there may be two copies of one record                     |
| time      | epoch ms                                                                                 |
| kind      | `act`, `read` (an operator's look-up), `login`, `denied`                                 |
| phase     | `begun` or `ended` for an act; else ""                                                   |
| act       | for an act: the id of its first record                                                   |
| user      | the access key; "" if the caller has not proved it                                       |
| source    | the caller's address; of a call that a node has forwarded, with `through` and the node's |
|           | user and address: the node names the caller                                              |
| method    | the method that was called                                                               |
| resources | names of the topics, groups and so on that the call was about, and the changes of users, |
|           | rules and quotas                                                                         |
| outcome   | `OK`, or the error's name; "" when an act begins                                         |
| count     | how many events of this kind the record stands for, within a minute                      |

The message's key is the user, its tag the kind. It contains neither bodies nor secrets.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Final

from trovemq_proto.positions import EpochMs, QueueId

AUDIT_TOPIC: Final = "rmq_sys_trovemq_audit"
AUDIT_QUEUE_ID: Final = QueueId(0)

ACT: Final = "act"
READ: Final = "read"
LOGIN: Final = "login"
DENIED: Final = "denied"
KINDS: Final = (ACT, READ, LOGIN, DENIED)
BEGUN: Final = "begun"
ENDED: Final = "ended"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """The members of the table above."""

    id: str
    time: EpochMs
    kind: str
    user: str
    source: str
    method: str
    resources: str = ""
    outcome: str = ""
    phase: str = ""
    act: str = ""
    count: int = 1

    def encode(self) -> bytes:
        """The body."""
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":")).encode()


def decode_audit(body: bytes) -> AuditRecord | None:
    """The record of a body; None if the body is not one, or is of a later form that lacks a member."""
    try:
        found = json.loads(body)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    known = {field.name: found[field.name] for field in fields(AuditRecord) if field.name in found}
    try:
        record = AuditRecord(**known)
    except TypeError:
        return None
    values = asdict(record)
    numbers = (values.pop("time"), values.pop("count"))
    is_good = all(isinstance(one, str) for one in values.values())
    return record if is_good and all(isinstance(one, int) for one in numbers) else None
