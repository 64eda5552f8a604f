"""Reads the requests of GroupService as commands, and makes its replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_broker.fetch.offsets import ResetEntry, ResetTarget
from trovemq_broker.groups.dead_letters import Resent
from trovemq_broker.groups.lag.filtered import QueueLag
from trovemq_broker.server.wire.client_commands import Answer
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_broker.server.wire.resets import offset_or_none, reset_queue, reset_target
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import group_pb2
from trovemq_store.files.files import Buffer
from trovemq_store.topics.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from trovemq_store.topics.subscription_groups import RETRY_MAX_DEFAULT, SubscriptionGroup

SERVICE: Final = group_pb2.DESCRIPTOR.services_by_name["GroupService"]
RESEND_MAX: Final = 1_000  # of one call


@dataclass(frozen=True, slots=True)
class GetLag:
    """`topic`: "" for all topics of the group."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class ResetGroup:
    """A reset in one queue, or in all queues of the topic (None). `only_new`: only of queues in which the
    group has no offset; `preview`: nothing is set."""

    group: str
    topic: str
    queue_id: QueueId | None
    target: ResetTarget
    only_new: bool
    preview: bool


@dataclass(frozen=True, slots=True)
class DeadLetterOffsets:
    """Dead letters of a group, by their queue offsets; each is there once."""

    group: str
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class ConsumeDirectly:
    """A client is to consume a message now. `topic`: "" if it is not given; `timeout_ms`: 0 for the
    default."""

    group: str
    client_id: str
    message: str
    topic: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """A client is to show the stacks of its threads. `timeout_ms`: 0 for the default."""

    group: str
    client_id: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class FindDelayed:
    """A search for the delayed messages of a topic that have the key."""

    topic: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member. `subscriptions`: the filter expression of each topic; `in_flight`: messages that it has."""

    client_id: str
    client_type: ClientType
    language: str
    version: str
    address: str
    last_heartbeat_ms: EpochMs
    subscriptions: Mapping[str, str]
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group. `created`: it is in the table of groups, not only used; `unordered_topics`: FIFO topics that
    it reads without order."""

    settings: SubscriptionGroup
    member_count: int
    topics: Sequence[str]
    broker: str
    created: bool
    unordered_topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class FoundDelayed:
    """A delayed message: its record, when it is delivered, and the handle that recalls it, or ""."""

    record: Buffer
    deliver_ms: EpochMs
    recall_handle: str


# --- requests -------------------------------------------------------------------------------------------
def group_of(request: group_pb2.CreateGroupRequest | group_pb2.AlterGroupRequest) -> SubscriptionGroup:
    """The group with the settings in a request; without any it has the defaults. TroveError
    REQUEST_ILLEGAL."""
    if not request.HasField("settings"):
        return SubscriptionGroup(request.group)
    settings = request.settings
    retry_max = RETRY_MAX_DEFAULT if settings.retry_max == -1 else settings.retry_max
    return SubscriptionGroup(request.group, settings.orderly, retry_max, _retry_policy(settings))


def _retry_policy(settings: group_pb2.GroupSettings) -> RetryPolicy:
    if settings.exponential:
        if settings.backoff_ms:
            text = "a back-off is given by steps or is exponential, not both"
            raise TroveError(errors.REQUEST_ILLEGAL, text, field="backoff_ms")
        return RetryPolicy(
            "exponential",
            initial_ms=settings.backoff_initial_ms or DEFAULT_RETRY_POLICY.initial_ms,
            max_ms=settings.backoff_max_ms or DEFAULT_RETRY_POLICY.max_ms,
            multiplier=settings.backoff_multiplier or DEFAULT_RETRY_POLICY.multiplier,
        )
    return RetryPolicy(next_ms=tuple(settings.backoff_ms)) if settings.backoff_ms else DEFAULT_RETRY_POLICY


def named_group(
    request: group_pb2.DeleteGroupRequest | group_pb2.DescribeGroupRequest | group_pb2.ListMembersRequest,
) -> str:
    """The name in a request that has nothing else."""
    return request.group


def lag_of(request: group_pb2.GetLagRequest) -> GetLag:
    """The command of a GetLag."""
    return GetLag(request.group, request.topic)


def reset_of(request: group_pb2.ResetGroupRequest) -> ResetGroup:
    """The command of a ResetGroup. Raises TroveError REQUEST_ILLEGAL if it has no target."""
    return ResetGroup(
        request.group,
        request.topic,
        reset_queue(request),
        reset_target(request),
        request.only_new,
        request.preview,
    )


def dead_letters_of(request: group_pb2.ResendDeadLettersRequest) -> DeadLetterOffsets:
    """The command of a ResendDeadLetters or FindResentDeadLetters. Raises TroveError REQUEST_ILLEGAL."""
    offsets = list(dict.fromkeys(request.offsets))
    if not 1 <= len(offsets) <= RESEND_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{len(offsets)} offsets; give 1 to {RESEND_MAX}")
    return DeadLetterOffsets(request.group, offsets)


def consume_of(request: group_pb2.ConsumeDirectlyRequest) -> ConsumeDirectly:
    """The command of a ConsumeDirectly."""
    return ConsumeDirectly(
        request.group, request.client_id, request.message, request.topic, request.timeout_ms
    )


def stacks_of(request: group_pb2.PrintStackTraceRequest) -> ShowStacks:
    """The command of a PrintThreadStackTrace."""
    return ShowStacks(request.group, request.client_id, request.timeout_ms)


def delayed_of(request: group_pb2.FindDelayedRequest) -> FindDelayed:
    """The command of a FindDelayed."""
    return FindDelayed(request.topic, request.key)


# --- replies --------------------------------------------------------------------------------------------
def settings_of(group: SubscriptionGroup) -> group_pb2.GroupSettings:
    policy = group.retry_policy
    if policy.kind == "exponential":
        return group_pb2.GroupSettings(
            orderly=group.orderly,
            retry_max=max(group.retry_max, 0),
            exponential=True,
            backoff_initial_ms=policy.initial_ms,
            backoff_max_ms=policy.max_ms,
            backoff_multiplier=policy.multiplier,
        )
    return group_pb2.GroupSettings(
        orderly=group.orderly, retry_max=max(group.retry_max, 0), backoff_ms=policy.next_ms
    )


def group_reply(described: DescribedGroup, pending: Iterable[str] = ()) -> group_pb2.GroupDescription:
    """`pending`: brokers that make a change of it later."""
    return group_pb2.GroupDescription(
        group=described.settings.name,
        settings=settings_of(described.settings),
        member_count=described.member_count,
        topics=described.topics,
        broker=described.broker,
        created=described.created,
        unordered_topics=described.unordered_topics,
        pending=pending,
    )


class GroupList:
    """A reply to ListGroups, which is made group by group: it may have many."""

    __slots__ = ("reply",)

    def __init__(self) -> None:
        self.reply: Final = group_pb2.ListGroupsReply()

    def add(self, described: DescribedGroup) -> None:
        self.reply.groups.append(group_reply(described))


def deleted_reply(pending: Iterable[str] = ()) -> group_pb2.DeleteGroupReply:
    """`pending`: brokers that delete it later."""
    return group_pb2.DeleteGroupReply(pending=pending)


def members_reply(members: Iterable[GroupMember]) -> group_pb2.ListMembersReply:
    return group_pb2.ListMembersReply(members=[_member(member) for member in members])


def _member(member: GroupMember) -> group_pb2.GroupMember:
    return group_pb2.GroupMember(
        client_id=member.client_id,
        client_type=member.client_type.name,
        language=member.language,
        version=member.version,
        address=member.address,
        last_heartbeat=member.last_heartbeat_ms,
        subscriptions=member.subscriptions,
        in_flight=member.in_flight,
    )


def lag_reply(lags: Iterable[QueueLag]) -> group_pb2.GetLagReply:
    return group_pb2.GetLagReply(queues=[_lag(lag) for lag in lags])


def _lag(lag: QueueLag) -> group_pb2.QueueLag:
    return group_pb2.QueueLag(
        topic=lag.topic,
        queue_id=lag.queue_id,
        min_offset=lag.min_offset,
        max_offset=lag.max_offset,
        committed=offset_or_none(lag.position.committed),
        next_offset=lag.position.next_offset,
        in_flight=lag.position.in_flight,
        lag=lag.lag,
        lag_ms=lag.lag_ms,
        estimated=lag.estimated,
    )


def reset_reply(entries: Iterable[ResetEntry]) -> group_pb2.ResetGroupReply:
    return group_pb2.ResetGroupReply(
        entries=[
            group_pb2.ResetGroupReply.Entry(
                queue_id=entry.queue_id,
                offset_before=offset_or_none(entry.offset_before),
                offset=entry.offset,
                in_flight=entry.in_flight,
            )
            for entry in entries
        ]
    )


def resent_reply(
    results: Mapping[int, Resent | TroveError | None], failure: TroveError | None = None
) -> group_pb2.ResendDeadLettersReply:
    """`results`: by offset; None for a letter that was not sent. `failure`: that of the sync, for all
    appended messages."""
    return group_pb2.ResendDeadLettersReply(
        entries=[_resent(offset, result, failure) for offset, result in results.items() if result]
    )


def _resent(
    offset: int, result: Resent | TroveError, failure: TroveError | None
) -> group_pb2.ResendDeadLettersReply.Entry:
    entry = group_pb2.ResendDeadLettersReply.Entry(offset=offset)
    error = result if isinstance(result, TroveError) else failure
    if isinstance(result, Resent):
        entry.topic, entry.offset_msg_id = result.topic, result.offset_msg_id
        entry.again = result.again
    if error is not None:
        entry.error, entry.error_message = error.symbol, error.message
    return entry


def consumed_reply(answer: Answer) -> group_pb2.ConsumeDirectlyReply:
    return group_pb2.ConsumeDirectlyReply(result=_code_name(answer.code), message=answer.text)


def _code_name(code: v2.Code) -> str:
    """RocketMQ's name of a status; the number if the name is unknown."""
    return v2.Code.Name(code) if code in v2.Code.values() else str(code)


def stacks_reply(answer: Answer) -> group_pb2.PrintStackTraceReply:
    return group_pb2.PrintStackTraceReply(stack_trace=answer.text)


def delayed_reply(messages: Iterable[FoundDelayed], *, complete: bool) -> group_pb2.FindDelayedReply:
    return group_pb2.FindDelayedReply(
        entries=[
            group_pb2.FindDelayedReply.Entry(
                record=bytes(one.record),
                delivery_timestamp=one.deliver_ms,
                recall_handle=one.recall_handle,
            )
            for one in messages
        ],
        complete=complete,
    )
