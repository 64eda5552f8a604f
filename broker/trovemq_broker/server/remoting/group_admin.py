"""Consumer groups, for RocketMQ's tools: their settings, creation and deletion.

A group belongs to the whole cluster here. A tool that sends a change to each broker in turn makes it several
times, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trovemq_broker.security.actions import Kind
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.bodies import read_body
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.remoting.topic_admin import data_version
from trovemq_broker.server.wire.tool_calls import NativeCall, alter_group, create_group, delete_group
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.json_text import json_text
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.subscription_groups import (
    QUEUE_LOCKS_ATTRIBUTE,
    RETRY_MAX_DEFAULT,
    SubscriptionGroup,
)

GROUPS_AT_ONCE_MAX: Final = 1_000
GROUPS_STEP: Final = 128
JsonData = dict[str, object]


class WantedGroups(msgspec.Struct, rename="camel"):
    group_config_list: list[JsonData]


_ONE: Final[msgspec.json.Decoder[JsonData]] = msgspec.json.Decoder(JsonData)
_SEVERAL: Final = msgspec.json.Decoder(WantedGroups)


class GroupAdmin:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, calls: NativeCalls) -> None:
        self._core = core
        self._calls = calls

    # --- changes ----------------------------------------------------------------------------------------
    def update(self, request: Request) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        wanted = read_body(_ONE, request)
        request.run(self._update(request, [_wanted(wanted)]))

    def update_list(self, request: Request) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: one after the other, to the first that is refused."""
        wanted = read_body(_SEVERAL, request).group_config_list
        if len(wanted) > GROUPS_AT_ONCE_MAX:
            text = f"a request has {GROUPS_AT_ONCE_MAX} groups at most"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        request.run(self._update(request, [_wanted(one) for one in wanted]))

    async def _update(self, request: Request, wanted: list[SubscriptionGroup]) -> None:
        for one in wanted:
            await self._calls.make(request, self._update_of(one))
        request.answer()

    def _update_of(self, wanted: SubscriptionGroup) -> NativeCall:
        return alter_group(wanted) if wanted.name in self._core.groups else create_group(wanted)

    def delete(self, request: Request) -> None:
        """DELETE_SUBSCRIPTIONGROUP, with its offsets: a new group of the name starts over. An unknown group
        is no error, as in RocketMQ."""
        request.run(self._delete(request, request.fields.text("groupName")))

    async def _delete(self, request: Request, name: str) -> None:
        try:
            await self._calls.make(request, delete_group(name))
        except TroveError as error:
            if error.spec is not errors.GROUP_NOT_FOUND:
                raise
        request.answer()

    # --- settings ---------------------------------------------------------------------------------------
    def one(self, request: Request) -> None:
        """GET_SUBSCRIPTIONGROUP_CONFIG."""
        group = self._core.groups.require(request.fields.text("group"))
        request.answer(body=json_text(_shown(group)))

    def all(self, request: Request) -> None:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all, or a page of them."""
        fields = request.fields
        request.run(self._all(request, fields.int32("groupSeq", 0), fields.int32("maxGroupNum", 0)))

    async def _all(self, request: Request, first: int, count: int) -> None:
        async with self._calls.query(request):
            total, table = await self._core.turns.run(self._table_steps(request, first, count))
        body = {
            "dataVersion": data_version(self._core.groups.data_version),
            "forbiddenTable": {},
            "subscriptionGroupTable": table,
        }
        request.answer(fields={"totalGroupNum": str(total)}, body=json_text(body))

    def _table_steps(
        self, request: Request, first: int, count: int
    ) -> Steps[tuple[int, dict[str, msgspec.Raw]]]:
        """The number of all groups, and the page, without groups that are deleted meanwhile."""
        names = yield from self._calls.seen_steps(request, Kind.GROUP, self._core.groups.names())
        page = names[max(first, 0) :][: count if count > 0 else None]
        table = {}
        for number, name in enumerate(page, 1):
            if number % GROUPS_STEP == 0:
                yield
            if (group := self._core.groups.get(name)) is not None:
                table[name] = msgspec.Raw(json_text(_shown(group)))
        return len(names), table


def _shown(group: SubscriptionGroup) -> JsonData:
    attributes = {name: text for name, text in group.attributes.items() if name != QUEUE_LOCKS_ATTRIBUTE}
    return {**group.to_json({}), "attributes": attributes}


def _wanted(value: Mapping[str, object]) -> SubscriptionGroup:
    """A SubscriptionGroupConfig of RocketMQ. Settings that a group here does not have are ignored,
    except consumeEnable=false: its consumers would get no error. TroveError REQUEST_ILLEGAL."""
    name = value.get("groupName")
    if not isinstance(name, str):
        raise TroveError(errors.REQUEST_ILLEGAL, "the group has no name", field="groupName")
    if not value.get("consumeEnable", True):
        text = f"group {name[:160]!r}: consumeEnable=false is not supported"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field="consumeEnable")
    try:
        group = SubscriptionGroup.from_json(name, value)
    except (ValueError, TypeError, AttributeError) as error:
        text = f"group {name[:160]!r} cannot be read: {error}"
        raise TroveError(errors.REQUEST_ILLEGAL, text) from None
    retry_max = RETRY_MAX_DEFAULT if group.retry_max == -1 else group.retry_max
    return SubscriptionGroup(name, group.orderly, retry_max, group.retry_policy)
