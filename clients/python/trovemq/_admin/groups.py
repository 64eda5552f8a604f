"""Consumer groups: on every broker, or on the one that is named."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from trovemq._admin.creations import Created, found_there, groups_created
from trovemq._common.arguments import check_numbers, check_text, check_type
from trovemq._consume.first_contact import FirstContact
from trovemq._net.all_brokers import NOT_ANSWERED, ask_brokers, lost_names
from trovemq._net.connections import ConnectionPool
from trovemq._wire.groups import GroupCalls
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import BrokerInfo
from trovemq.models.group import (
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
from trovemq.starts import Start, check_start
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

DEAD_LETTER_PREFIX: Final = "%DLQ%"
RESEND_MAX: Final = 1_000  # of one call
CLIENT_ANSWER_MS_DEFAULT: Final = 5_000
CLIENT_ANSWER_MS_MAX: Final = 60_000
_ELSEWHERE: Final = (
    errors.CONSUMER_NOT_ONLINE,
    errors.MESSAGE_NOT_FOUND,
    errors.GROUP_NOT_FOUND,
    errors.BROKER_UNREACHABLE,
)
_OFFSET_MAX: Final = (1 << 63) - 1
_ABSENT: Final = (errors.GROUP_NOT_FOUND, errors.TOPIC_NOT_FOUND)

_Result = TypeVar("_Result")


class Groups:
    """Administration of consumer groups; `Client.admin.groups`.

    If `broker` is None, every live broker is called; each broker has its own copy of a group. A broker that
    is away hides no other: the result names it, as `missing` of a read and as `pending` of a change. Of
    brokers that share the cluster's configuration one is called for a change of a group, and all make it. All
    calls raise TroveError; after another failure of one broker the changes on others stay.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    # --- the groups themselves ------------------------------------------------------------------------

    async def create(
        self,
        group: str,
        settings: GroupSettings | None = None,
        *,
        broker: str | None = None,
        exist_ok: bool = False,
    ) -> BrokerAnswers[GroupDescription]:
        """Creates a group, durably.

        Args:
            group: 1 to 120 characters of letters, digits, %, |, - and _.
            settings: Its settings; None for the defaults.
            broker: The broker; None for all.
            exist_ok: A group of that name is not an error; it keeps its settings.

        Returns:
            The group as each broker describes it. Where some brokers had it with these settings, it is made
            on the others, and `existing` names those that had it.

        Raises:
            TroveError: GROUP_EXISTS if every broker has it; GROUP_SETTINGS_DIFFER if it was made on some, and
                others have it with other settings; GROUP_ILLEGAL, REQUEST_ILLEGAL, LIMIT_EXCEEDED, …
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        wanted = checked_settings(GroupSettings() if settings is None else settings)

        async def create(calls: GroupCalls) -> Created[GroupDescription]:
            try:
                return Created(await calls.create(group, wanted))
            except TroveError as error:
                if error.spec is not errors.GROUP_EXISTS:
                    raise
                return await found_there(lambda: calls.describe(group), error)

        found = await self._ask(
            broker, create, change=True, shared=True, pending_of=lambda one: one.found.pending
        )
        return groups_created(group, found, exist_ok=exist_ok)

    async def alter(
        self, group: str, settings: GroupSettings, *, broker: str | None = None
    ) -> BrokerAnswers[GroupDescription]:
        """Replaces all settings of a group, on every broker that has it. Raises GROUP_NOT_FOUND, …"""
        check_text("group", group, errors.GROUP_ILLEGAL)
        wanted = checked_settings(settings)
        return await self._ask(
            broker,
            lambda calls: calls.alter(group, wanted),
            _ABSENT,
            change=True,
            shared=True,
            pending_of=lambda found: found.pending,
        )

    async def delete(self, group: str, *, broker: str | None = None) -> BrokerAnswers[str]:
        """Deletes a group, its offsets and its messages in flight; its dead letters stay.

        Returns:
            The brokers that had it; of those that share a configuration, the one that was asked.

        Raises:
            TroveError: GROUP_NOT_FOUND if no broker has it.
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        answers = await self._ask(
            broker,
            lambda calls: calls.delete(group),
            _ABSENT,
            change=True,
            shared=True,
            pending_of=lambda deletion: deletion[1],
        )
        return answers.of(name for name, _ in answers)

    async def list_all(self, *, broker: str | None = None) -> BrokerAnswers[GroupDescription]:
        """Every group of every broker; a group on two brokers is listed twice."""
        lists = await self._ask(broker, lambda calls: calls.list_all())
        return lists.of(group for groups in lists for group in groups)

    async def describe(self, group: str, *, broker: str | None = None) -> BrokerAnswers[GroupDescription]:
        """The group on each broker that knows it. Raises TroveError GROUP_NOT_FOUND."""
        check_text("group", group, errors.GROUP_ILLEGAL)
        return await self._ask(broker, lambda calls: calls.describe(group), _ABSENT)

    async def members(self, group: str, *, broker: str | None = None) -> BrokerAnswers[GroupMember]:
        """The connected consumers of the group; one that is connected to two brokers is listed twice.

        Raises TroveError GROUP_NOT_FOUND."""
        check_text("group", group, errors.GROUP_ILLEGAL)
        lists = await self._ask(broker, lambda calls: calls.members(group), _ABSENT)
        return lists.of(member for members in lists for member in members)

    # --- how far they are -----------------------------------------------------------------------------

    async def lag(
        self, group: str, topic: str | None = None, *, broker: str | None = None
    ) -> BrokerAnswers[QueueLag]:
        """The lag of the group, queue by queue, of one topic or of all that it reads.

        Raises TroveError GROUP_NOT_FOUND, TOPIC_NOT_FOUND."""
        check_text("group", group, errors.GROUP_ILLEGAL)
        lists = await self._ask(
            broker, lambda calls: calls.lag(group, topic or ""), _ABSENT, topic=topic or ""
        )
        return lists.of(queue for queues in lists for queue in queues)

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        queue_id: int | None = None,
        timestamp: int | None = None,
        offset: int | None = None,
        to_earliest: bool = False,
        to_latest: bool = False,
        to_min: bool = False,
        to_max: bool = False,
        preview: bool = False,
        only_new: bool = False,
        broker: str | None = None,
    ) -> BrokerAnswers[GroupReset]:
        """Sets where the group continues, in every queue of a topic or in one. Its messages in flight are
        forgotten.

        Args:
            group: The consumer group.
            topic: The topic.
            queue_id: One queue; None for all.
            timestamp: Epoch ms: to the first message stored at or after it.
            offset: To this offset.
            to_earliest: To the queue's first message.
            to_latest: To the queue's end.
            to_min: The former name of `to_earliest`, until the first release.
            to_max: The former name of `to_latest`, until then.
            preview: Only returns the changes.
            only_new: Leaves out queues that the group has read or has an offset for; the group need not
                exist. Where `queue_id` is None and it has an offset of another queue on the broker, the
                queues came later, and are set to their first message.
            broker: The broker; None for every one that has the topic.

        Raises:
            TroveError: REQUEST_ILLEGAL unless exactly one of the four targets is given; GROUP_NOT_FOUND,
                TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, OFFSET_OUT_OF_RANGE, …
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        target = reset_target(timestamp, offset, to_earliest or to_min, to_latest or to_max)
        if queue_id is None:
            brokers = self._pool.routes.brokers_of(topic, broker)
        else:
            brokers = [self._pool.routes.broker_of_queue(topic, queue_id, broker)]
        lists = await ask_brokers(
            self._pool,
            brokers,
            lambda info: self._calls(info).reset(group, topic, queue_id, target, preview, only_new),
            broker=broker,
            topic=topic,
            absent=_ABSENT,
            change=not preview,
        )
        return lists.of(entry for entries in lists for entry in entries)

    async def start(self, group: str, topic: str, start: Start) -> list[GroupReset]:
        """Sets where the group begins in a topic that it has never read.

        If it has read any queue of the topic on any broker, it begins at the first message of the others; so
        it does if a broker that has the topic cannot be asked. If several members call this at once, the
        first one counts. Raises TroveError GROUP_NOT_FOUND, TOPIC_NOT_FOUND, …
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        check_start(start)
        return await FirstContact(self._pool, self.reset, group, topic, start).begin()

    # --- dead letters ---------------------------------------------------------------------------------

    async def dead_letters(
        self, group: str, *, offset: int = 0, broker: str | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """The group's dead letters from an offset on, broker by broker, oldest first; none if the group has
        none.

        Raises TroveError GROUP_NOT_FOUND if no broker knows the group; BROKER_UNREACHABLE after the letters
        of the others if a broker is away. Damaged records are left out."""
        check_text("group", group, errors.GROUP_ILLEGAL)
        found, away = False, await lost_names(self._pool) if broker is None else set()
        for info in self._pool.routes.brokers(broker):
            async with aclosing(self._dead_letters_of(info, group, offset)) as letters:
                try:
                    async for letter in letters:
                        found = True
                        yield letter
                except TroveError as error:
                    if error.spec not in NOT_ANSWERED or broker is not None:
                        raise
                    away.add(info.name)
        if away:
            names = ", ".join(sorted(away))
            text = f"these are not all dead letters: no answer from {names}"
            raise TroveError(errors.BROKER_UNREACHABLE, text, brokers=names)
        if not found:
            await self.describe(group, broker=broker)

    async def _dead_letters_of(
        self, info: BrokerInfo, group: str, offset: int
    ) -> AsyncGenerator[DeadLetter, None]:
        from trovemq._consume.puller import Puller, PullRequest

        topic = DEAD_LETTER_PREFIX + group
        try:
            (queue,) = await self._pool.connection(info).queue_offsets(topic, (0,), info.name)
        except TroveError as error:
            if error.spec is errors.TOPIC_NOT_FOUND:
                return
            raise
        first = max(offset, queue.min_offset)
        if first >= queue.max_offset:
            return
        request = PullRequest(topic, 0, first, 1 << 20, (), 1, False, 0, info.name)
        async with aclosing(Puller(self._pool, request).batches()) as batches:
            async for batch in batches:
                for message in batch.messages():
                    yield DeadLetter(info.name, message.queue_offset, message)

    async def resend_dead_letters(
        self, group: str, offsets: Sequence[int], *, broker: str | None = None
    ) -> list[ResentDeadLetter]:
        """Sends dead letters to their original topic again, with their keys, tags, properties and message id.

        Each is sent once: a letter that was sent before has `again` in its result, which names that copy.
        (This needs a message id, and a broker with a key index, which is the default.) The dead letters
        themselves stay. A letter that cannot be sent has its error in its own result.

        Args:
            group: The group.
            offsets: Their queue offsets in `%DLQ%group`, 1 to 1,000.
            broker: The broker that has them; needed if there are several.

        Raises:
            TroveError: REQUEST_ILLEGAL, TOPIC_NOT_FOUND (the group has no dead letters), BROKER_AMBIGUOUS, …
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        return await self._letter_calls(group, offsets, broker).resend(group, offsets)

    async def resent_dead_letters(
        self, group: str, offsets: Sequence[int], *, broker: str | None = None
    ) -> list[ResentDeadLetter]:
        """The dead letters that were resent already, with the place of each copy; the others are left out.

        Args:
            group: The group.
            offsets: Queue offsets in `%DLQ%group`, 1 to 1,000.
            broker: The broker that has them; needed if there are several.

        Raises:
            TroveError: REQUEST_ILLEGAL, TOPIC_NOT_FOUND (the group has no dead letters), BROKER_AMBIGUOUS, …
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        return await self._letter_calls(group, offsets, broker).resent(group, offsets)

    def _letter_calls(self, group: str, offsets: Sequence[int], broker: str | None) -> GroupCalls:
        if not 1 <= len(offsets) <= RESEND_MAX:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{len(offsets)} offsets; give 1 to {RESEND_MAX}")
        if wrong := [offset for offset in offsets if not 0 <= offset <= _OFFSET_MAX]:
            raise TroveError(errors.REQUEST_ILLEGAL, f"offset {wrong[0]} is none", field="offsets")
        return self._calls(self._pool.routes.broker_of_queue(DEAD_LETTER_PREFIX + group, 0, broker))

    # --- commands to consumers ------------------------------------------------------------------------

    async def consume_directly(
        self,
        client_id: str,
        group: str,
        message: str,
        *,
        topic: str | None = None,
        timeout_ms: int = CLIENT_ANSWER_MS_DEFAULT,
        broker: str | None = None,
    ) -> DirectConsumption:
        """Has one consumer consume one message now and returns its answer; offsets and attempts stay.

        Args:
            client_id: The consumer's client id (`members`).
            group: Its group.
            message: An offsetMsgId, or a message id.
            topic: Narrows a message id to one topic.
            timeout_ms: How long the client may take, 1 to 60,000.
            broker: Asks this broker only.

        Raises:
            TroveError: CONSUMER_NOT_ONLINE, CONSUME_MSG_TIMEOUT, NOT_IMPLEMENTED, MESSAGE_NOT_FOUND, …
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        _check_timeout(timeout_ms)
        return await self._first_answer(
            broker,
            lambda calls: calls.consume_directly(client_id, group, message, topic or "", timeout_ms),
        )

    async def stack_trace(
        self,
        client_id: str,
        group: str,
        *,
        timeout_ms: int = CLIENT_ANSWER_MS_DEFAULT,
        broker: str | None = None,
    ) -> str:
        """The stack traces of a consumer's threads, in its own words; `timeout_ms`: how long the client may
        take, 1 to 60,000. Raises TroveError CONSUMER_NOT_ONLINE, CONSUME_MSG_TIMEOUT, NOT_IMPLEMENTED, …"""
        check_text("group", group, errors.GROUP_ILLEGAL)
        _check_timeout(timeout_ms)
        return await self._first_answer(broker, lambda calls: calls.stack_trace(client_id, group, timeout_ms))

    async def _first_answer(
        self, broker: str | None, ask: Callable[[GroupCalls], Awaitable[_Result]]
    ) -> _Result:
        """Asks one broker after the other, because the client must answer once: after a time-out no other one
        is asked. Of several failures the most specific one is raised."""
        failure: TroveError | None = None
        for info in self._pool.routes.brokers(broker):
            try:
                return await ask(self._calls(info))
            except TroveError as error:
                if error.spec not in _ELSEWHERE:
                    raise
                if failure is None or failure.spec is errors.CONSUMER_NOT_ONLINE:
                    failure = error
        assert failure is not None, "there is a broker"
        raise failure

    # --- delayed messages -----------------------------------------------------------------------------

    async def find_delayed(
        self, topic: str, key: str, *, broker: str | None = None
    ) -> tuple[BrokerAnswers[DelayedMessage], bool]:
        """The messages with a key (or message id) that wait for their delivery time, soonest first.

        Returns:
            The messages, and whether these are all.

        Raises:
            TroveError: TOPIC_NOT_FOUND, INDEX_DISABLED.
        """
        brokers = await self._pool.relays.brokers(broker, topic)
        answers = await ask_brokers(
            self._pool,
            brokers,
            lambda info: self._calls(info).find_delayed(topic, key),
            broker=broker,
            topic=topic,
            absent=(errors.TOPIC_NOT_FOUND,),
        )
        found = answers.of(message for messages, _ in answers for message in messages)
        found.sort(key=lambda one: one.delivery_timestamp)
        return found, all(whole for _, whole in answers) and not answers.missing

    async def _ask(
        self,
        broker: str | None,
        ask: Callable[[GroupCalls], Awaitable[_Result]],
        absent: Sequence[errors.ErrorSpec] = (),
        *,
        topic: str = "",
        change: bool = False,
        shared: bool = False,
        pending_of: Callable[[_Result], Iterable[str]] = lambda _answer: (),
    ) -> BrokerAnswers[_Result]:
        """The answers of the brokers that have it."""
        return await ask_brokers(
            self._pool,
            self._pool.routes.brokers(broker),
            lambda info: ask(self._calls(info)),
            broker=broker,
            topic=topic,
            absent=absent,
            change=change,
            shared=shared,
            pending_of=pending_of,
        )

    def _calls(self, info: BrokerInfo) -> GroupCalls:
        return GroupCalls(self._pool.connection(info), info.name)


def reset_target(
    timestamp: int | None, offset: int | None, to_earliest: bool, to_latest: bool
) -> dict[str, Any]:
    """The given target, as the wire has it. Raises TroveError REQUEST_ILLEGAL unless it is exactly one."""
    targets: dict[str, int | bool | None] = {
        "timestamp": timestamp,
        "offset": offset,
        "to_min": to_earliest or None,
        "to_max": to_latest or None,
    }
    target = {name: value for name, value in targets.items() if value is not None}
    if len(target) != 1:
        raise TroveError(
            errors.REQUEST_ILLEGAL, "give exactly one of timestamp, offset, to_earliest, to_latest"
        )
    return target


def checked_settings(settings: GroupSettings) -> GroupSettings:
    """The settings. Raises TroveError REQUEST_ILLEGAL for values that the wire cannot carry."""
    check_type("settings", settings, GroupSettings)
    check_numbers(retry_max=settings.retry_max)
    if not 0 <= settings.retry_max < 1 << 31:
        text = f"retry_max={settings.retry_max} is not in 0..{(1 << 31) - 1}"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field="retry_max")
    times = (*settings.backoff_ms, settings.backoff_initial_ms, settings.backoff_max_ms)
    if wrong := [time for time in times if not 0 <= time <= _OFFSET_MAX]:
        raise TroveError(errors.REQUEST_ILLEGAL, f"a back-off of {wrong[0]} ms", field="backoff_ms")
    if settings.exponential and settings.backoff_ms:
        text = "a back-off is given by steps or is exponential, not both"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field="backoff_ms")
    return settings


def _check_timeout(timeout_ms: int) -> None:
    if not 1 <= timeout_ms <= CLIENT_ANSWER_MS_MAX:
        text = f"timeout_ms={timeout_ms} is not in 1..{CLIENT_ANSWER_MS_MAX}"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field="timeout_ms")
