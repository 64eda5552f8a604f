"""The calls about consumer groups that the command line makes, answered from memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.group import (
    BACKOFF_MS_DEFAULT,
    DeadLetter,
    DelayedMessage,
    DirectConsumption,
    GroupDescription,
    GroupMember,
    GroupReset,
    GroupSettings,
    QueueLag,
    ResentDeadLetter,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import decode_message, encode_record

OK = DirectConsumption("OK", "", "broker-a")


def dead_letter(broker: str, offset: int, properties: Mapping[str, str]) -> DeadLetter:
    record = encode_record(
        "%DLQ%billing",
        b"bad",
        queue_offset=offset,
        reconsume_times=16,
        properties={"UNIQ_KEY": f"U{offset}", **properties},
        store_timestamp=1_700_000_000_000 + offset,
    )
    return DeadLetter(broker, offset, decode_message(record))


@dataclass
class FakeGroups:
    """The groups of one broker, or of each of `brokers`; every call is recorded in `calls`."""

    brokers: tuple[str, ...] = ("broker-a",)
    groups: dict[tuple[str, str], GroupSettings] = field(default_factory=dict)  # by (broker, group)
    letters: list[DeadLetter] = field(default_factory=list)
    letters_missing: str = ""
    """The brokers whose letters are not among them."""
    lags: list[QueueLag] = field(default_factory=list)
    delayed: list[DelayedMessage] = field(default_factory=list)
    delayed_complete: bool = True
    online: dict[str, GroupMember] = field(default_factory=dict)
    answer: DirectConsumption | TroveError = OK
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def _at(self, broker: str | None) -> list[str]:
        return [name for name in self.brokers if broker in (None, name)]

    def _description(self, broker: str, group: str) -> GroupDescription:
        settings = self.groups[broker, group]
        if not settings.exponential and not settings.backoff_ms:
            settings = replace(settings, backoff_ms=BACKOFF_MS_DEFAULT)
        return GroupDescription(
            group, settings, len(self.online), ("orders",), broker, unordered_topics=self.unordered_topics
        )

    def _having(self, group: str, broker: str | None) -> list[str]:
        having = [name for name in self._at(broker) if (name, group) in self.groups]
        if not having:
            raise TroveError(errors.GROUP_NOT_FOUND, f"group {group} is not known here", group=group)
        return having

    unordered_topics: tuple[str, ...] = ()

    async def create(
        self,
        group: str,
        settings: GroupSettings | None = None,
        *,
        broker: str | None = None,
        exist_ok: bool = False,
    ) -> BrokerAnswers[GroupDescription]:
        self.calls.append(("create", {"group": group, "settings": settings, "broker": broker}))
        for name in self._at(broker):
            if (name, group) in self.groups:
                if exist_ok:
                    continue
                raise TroveError(errors.GROUP_EXISTS, f"group {group} exists already", group=group)
            self.groups[name, group] = settings or GroupSettings()
        return BrokerAnswers(self._description(name, group) for name in self._at(broker))

    async def alter(
        self, group: str, settings: GroupSettings, *, broker: str | None = None
    ) -> BrokerAnswers[GroupDescription]:
        self.calls.append(("alter", {"group": group, "settings": settings, "broker": broker}))
        having = self._having(group, broker)
        for name in having:
            self.groups[name, group] = settings
        return BrokerAnswers(self._description(name, group) for name in having)

    async def delete(self, group: str, *, broker: str | None = None) -> BrokerAnswers[str]:
        having = self._having(group, broker)
        for name in having:
            del self.groups[name, group]
        return BrokerAnswers(having)

    async def list_all(self, *, broker: str | None = None) -> BrokerAnswers[GroupDescription]:
        return BrokerAnswers(self._description(*key) for key in self.groups if key[0] in self._at(broker))

    async def describe(self, group: str, *, broker: str | None = None) -> BrokerAnswers[GroupDescription]:
        return BrokerAnswers(self._description(name, group) for name in self._having(group, broker))

    async def members(self, group: str, *, broker: str | None = None) -> list[GroupMember]:
        self._having(group, broker)
        return list(self.online.values())

    async def lag(self, group: str, topic: str | None = None, *, broker: str | None = None) -> list[QueueLag]:
        self._having(group, broker)
        return [queue for queue in self.lags if topic in (None, queue.topic)]

    async def reset(self, group: str, topic: str, **options: Any) -> BrokerAnswers[GroupReset]:
        self.calls.append(("reset", {"group": group, "topic": topic, **options}))
        return BrokerAnswers(
            GroupReset("broker-a", queue_id, None if queue_id else 3, 7, 2) for queue_id in (0, 1)
        )

    async def dead_letters(
        self, _group: str, *, offset: int = 0, broker: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        for letter in self.letters:
            if letter.offset >= offset and letter.broker in self._at(broker):
                yield letter
        if self.letters_missing:
            raise TroveError(errors.BROKER_UNREACHABLE, "not all", brokers=self.letters_missing)

    async def resend_dead_letters(
        self, group: str, offsets: Sequence[int], *, broker: str | None = None
    ) -> list[ResentDeadLetter]:
        self.calls.append(("resend", {"group": group, "offsets": list(offsets), "broker": broker}))
        if broker is None and len(self.brokers) > 1:
            raise TroveError(errors.BROKER_AMBIGUOUS, f"it may be on {', '.join(self.brokers)}")
        there = {letter.offset for letter in self.letters}
        name = broker or self.brokers[0]
        return [
            ResentDeadLetter(name, offset, "orders", "AB" * 16)
            if offset in there
            else ResentDeadLetter(name, offset, "", "", "OFFSET_OUT_OF_RANGE", f"offset {offset}")
            for offset in offsets
        ]

    async def resent_dead_letters(
        self, _group: str, offsets: Sequence[int], *, broker: str | None = None
    ) -> list[ResentDeadLetter]:
        name = broker or self.brokers[0]
        return [
            ResentDeadLetter(name, offset, "orders", "CD" * 16, again=True)
            for offset in offsets
            if offset == 8
        ]

    async def consume_directly(
        self, client_id: str, group: str, message: str, **options: Any
    ) -> DirectConsumption:
        self.calls.append(
            ("consume_directly", {"client_id": client_id, "group": group, "message": message, **options})
        )
        if isinstance(self.answer, TroveError):
            raise self.answer
        return self.answer

    async def stack_trace(self, client_id: str, group: str, **options: Any) -> str:
        self.calls.append(("stack_trace", {"client_id": client_id, "group": group, **options}))
        return "main:\n  work\x1b[31m\n"

    async def find_delayed(
        self, topic: str, key: str, *, broker: str | None = None
    ) -> tuple[list[DelayedMessage], bool]:
        self.calls.append(("find_delayed", {"topic": topic, "key": key, "broker": broker}))
        return self.delayed, self.delayed_complete
