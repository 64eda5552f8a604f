"""Requests of RocketMQ's tools to connected clients, which the broker passes on: running information, a
message that a listener consumes now, and the offsets that each member has.

A client of this protocol answers itself, and its answer is passed back byte for byte. One of RocketMQ 5's
protocol is asked by that one's commands. Of the tool's request only named fields are passed on: its signature
would be good for other requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import Member, Members
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.remoting.queries import Queries
from trovemq_broker.server.wire.tool_calls import (
    consume_directly,
    consumed,
    print_stacks,
    stacks,
)
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.json_text import json_text, queue_key, queue_map

ANSWER_S: Final = 10.0
OK: Final = "OK"
MEMBERS_MAX: Final = 256
"""That one request asks for their offsets."""
OFFSETS_SIZE_MAX: Final = 1 << 20
"""Of the answer of one member."""
PASSED_FIELDS: Final = ("consumerGroup", "clientId", "jstackEnable", "msgId", "topic")


class PassedOn:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, calls: NativeCalls, members: Members, queries: Queries) -> None:
        self._core = core
        self._calls = calls
        self._members = members
        self._queries = queries

    def running_info(self, request: Request) -> None:
        """GET_CONSUMER_RUNNING_INFO."""
        fields = request.fields
        request.run(self._running_info(request, fields.text("consumerGroup"), fields.text("clientId")))

    async def _running_info(self, request: Request, group: str, client_id: str) -> None:
        call = print_stacks(group, client_id)
        member = self._member(group, client_id)
        if member is not None:
            async with self._calls.admitted(request, call):
                await self._pass_on(request, member, {}, b"")
        elif self._is_known(group, client_id):
            text = stacks(await self._calls.make(request, call))
            request.answer(body=json_text(_info(text)))
        else:
            _not_online(request, group, client_id)

    def consume(self, request: Request) -> None:
        """CONSUME_MESSAGE_DIRECTLY."""
        fields = request.fields
        group, client_id = fields.text("consumerGroup"), fields.text("clientId")
        request.run(self._consume(request, group, client_id, fields.text("msgId"), fields.text("topic", "")))

    async def _consume(
        self, request: Request, group: str, client_id: str, message_id: str, topic: str
    ) -> None:
        call = consume_directly(group, client_id, topic, message_id)
        member = self._member(group, client_id)
        if member is not None:
            async with self._calls.admitted(request, call):
                _, record = await self._queries.message(message_id, topic)
                more = {"brokerName": self._core.broker, "topicSysFlag": "0", "groupSysFlag": "0"}
                await self._pass_on(request, member, more, record)
        elif self._is_known(group, client_id):
            result, text = consumed(await self._calls.make(request, call))
            request.answer(body=json_text(_result(result, text)))
        else:
            _not_online(request, group, client_id)

    def offsets(self, request: Request) -> None:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets of a topic that each member has, or the one with
        the client id `clientAddr`."""
        fields = request.fields
        group, topic, client_id = fields.text("group"), fields.text("topic"), fields.text("clientAddr", "")
        known = self._members.group(group)
        members = list(known.members) if known is not None else []
        asked = [one for one in members if client_id in ("", one.client_id)]
        if not asked:
            text = f"No Any Consumer online in the consumer group: [{group[:200]}]"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        if len(asked) > MEMBERS_MAX:
            text = f"the group has more than {MEMBERS_MAX} members; name one of them"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        request.run(self._offsets(request, asked, {"group": group, "topic": topic}))

    async def _offsets(self, request: Request, asked: Iterable[Member], fields: dict[str, str]) -> None:
        found = await asyncio.gather(*(self._offsets_of(one, fields) for one in asked))
        table = {client_id: offsets for client_id, offsets in found if offsets is not None}
        request.answer(body=json_text({"consumerTable": table}))

    @staticmethod
    async def _offsets_of(member: Member, fields: dict[str, str]) -> tuple[str, msgspec.Raw | None]:
        """None: the member has not answered, or its answer cannot be read."""
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            reply = await member.connection.ask(code, fields, b"", ANSWER_S / 2)
            if reply.code != ResponseCode.SUCCESS or len(reply.body) > OFFSETS_SIZE_MAX:
                return member.client_id, None
            return member.client_id, _offsets_in(reply.body)
        except (TroveError, msgspec.MsgspecError):
            return member.client_id, None

    def _member(self, group: str, client_id: str) -> Member | None:
        known = self._members.group(group)
        members = known.members if known is not None else ()
        return next((one for one in members if one.client_id == client_id), None)

    def _is_known(self, group: str, client_id: str) -> bool:
        return any(one.client_id == client_id for one in self._core.registry.members(group))

    @staticmethod
    async def _pass_on(request: Request, member: Member, more: dict[str, str], body: bytes) -> None:
        """TroveError CONSUME_MSG_TIMEOUT, LIMIT_EXCEEDED."""
        asked = request.header.fields
        fields = {name: asked[name] for name in PASSED_FIELDS if name in asked} | more
        reply = await member.connection.ask(RequestCode(request.header.code), fields, body, ANSWER_S)
        request.answer(reply.code, reply.remark, reply.fields, reply.body)


class _Queue(msgspec.Struct, rename="camel"):
    broker_name: str
    queue_id: int
    topic: str


_QUEUE: Final = msgspec.json.Decoder(_Queue)
_OFFSET: Final = re.compile(rb"(\{[^{}]*\}):(-?[0-9]{1,19})")
"""An entry of a map with objects as keys, which is not JSON (json_text.py)."""


def _offsets_in(body: bytes) -> msgspec.Raw:
    """The map of a client's answer, read and written: it is passed on to a tool. msgspec.MsgspecError."""
    read = ((_QUEUE.decode(one[1]), int(one[2])) for one in _OFFSET.finditer(body))
    return queue_map(
        (queue_key(queue.broker_name, queue.topic, QueueId(queue.queue_id)), offset) for queue, offset in read
    )


def _not_online(request: Request, group: str, client_id: str) -> None:
    text = f"The Consumer <{group[:200]}> <{client_id[:200]}> not online"
    request.answer(ResponseCode.SYSTEM_ERROR, text)


def _info(text: str) -> dict[str, object]:
    """RocketMQ's ConsumerRunningInfo, of which such a client sends its stacks alone."""
    return {
        "jstack": text,
        "mqTable": {},
        "properties": {"PROP_CONSUMEORDERLY": "false", "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        "statusTable": {},
        "subscriptionSet": [],
        "userConsumerInfo": {},
    }


def _result(result: str, text: str) -> dict[str, object]:
    return {
        "autoCommit": True,
        "consumeResult": "CR_SUCCESS" if result == OK else "CR_LATER",
        "order": False,
        "remark": text or result,
        "spentTimeMills": 0,
    }
