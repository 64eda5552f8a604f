"""SEND_REPLY_MESSAGE: the reply to a request is passed on to the producer that waits for it.

A requester sends a message with a correlation id and its client id. The consumer sends its reply to the
cluster's reply topic, and the broker passes it on to the connection of the producer with that client id. If
no heartbeat has named one, it is the connection that has sent the request: RocketMQ's client sends a
heartbeat before a request only if it did not know the topic's route, and else every 30 s.
RocketMQ's broker also stores it; here it is not stored, because no consumer reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.hosts import address_of
from trovemq_broker.server.remoting.members import Member, Members
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import PROPERTIES_SIZE_MAX, parse_properties
from trovemq_proto.remoting.bodies import REPLY_SUFFIX
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.fields import FieldError

CLIENT: Final = "REPLY_TO_CLIENT"
ANSWER_S: Final = 10.0
_NEEDED: Final = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
    *("bornTimestamp", "flag"),
)
_OPTIONAL: Final = ("properties", "reconsumeTimes", "unitMode")
_LONG: Final = {name: name for name in (*_NEEDED, *_OPTIONAL)}
_SHORT: Final = dict(zip(_LONG, "abcdefghijk", strict=True))


class Replies:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, members: Members) -> None:
        self._core = core
        self._members = members

    def send(self, request: Request) -> None:
        self._send(request, _LONG)

    def send_short(self, request: Request) -> None:
        """SEND_REPLY_MESSAGE_V2."""
        self._send(request, _SHORT)

    def _send(self, request: Request, names: Mapping[str, str]) -> None:
        """TroveError MESSAGE_SIZE_EXCEEDED, TOPIC_NOT_FOUND."""
        given = request.header.fields
        fields = {name: given[short] for name, short in names.items() if short in given}
        missing = next((names[name] for name in _NEEDED if name not in fields), None)
        if missing is not None:
            raise FieldError(f"the header lacks the field {missing}")
        topic = self._core.store.settings.cluster + REPLY_SUFFIX
        if fields["topic"] != topic:
            text = f"replies are sent to {topic}, not to {fields['topic'][:255]}"
            raise TroveError(errors.TOPIC_NOT_FOUND, text)
        size, size_max = len(request.body), self._core.store.settings.body_size_max
        if size > size_max:
            text = f"the body has {size} bytes, the limit is {size_max}"
            raise TroveError(errors.MESSAGE_SIZE_EXCEEDED, text)
        properties = fields.get("properties", "").encode()
        if len(properties) > PROPERTIES_SIZE_MAX:
            text = f"the properties have {len(properties)} bytes, the limit is {PROPERTIES_SIZE_MAX}"
            raise TroveError(errors.MESSAGE_SIZE_EXCEEDED, text)
        client_id = parse_properties(properties).get(CLIENT, "")
        producer = self._members.producer(client_id)
        if producer is None:
            text = f"push reply message fail, channel of <{client_id[:255]}> not found."
            request.answer(ResponseCode.SYSTEM_ERROR, text)
        else:
            request.run(self._pass_on(request, producer, fields))

    async def _pass_on(self, request: Request, producer: Member, fields: Mapping[str, str]) -> None:
        """TroveError CONSUME_MSG_TIMEOUT, LIMIT_EXCEEDED, CONSUMER_NOT_ONLINE."""
        header = {
            **fields,
            "bornHost": address_of(request.connection.peer),
            "storeHost": str(self._core.advertised),
            "storeTimestamp": str(self._core.clock_ms()),
        }
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        reply = await producer.connection.ask(code, header, request.body, ANSWER_S)
        if reply.code != ResponseCode.SUCCESS:
            text = f"push reply message to {producer.client_id} fail: {reply.remark}"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
        else:
            place = {"msgId": "0", "queueId": fields["queueId"], "queueOffset": "0"}
            request.answer(fields=place)
