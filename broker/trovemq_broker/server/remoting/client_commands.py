"""Requests of RocketMQ's tools to one connected client, which the broker passes on: its running information,
and a message that its listener consumes now.

A client of this protocol answers itself, and its answer is passed back byte for byte. One of RocketMQ 5's
protocol is asked by that one's commands. Of the tool's request only named fields are passed on: its signature
would be good for other requests.
"""

from __future__ import annotations

from typing import Final

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
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.json_text import json_text

ANSWER_S: Final = 10.0
OK: Final = "OK"
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
