"""RECALL_MESSAGE: a delayed message is not delivered. Its handle is in the answer to its send."""

from __future__ import annotations

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_daemon.remoting.request import Request


class Recalls:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore) -> None:
        self._deferred = DeferredMessages(core)

    def recall(self, request: Request) -> None:
        fields = request.fields
        request.run(self._recall(request, fields.text("topic"), fields.text("recallHandle")))

    async def _recall(self, request: Request, topic: str, handle: str) -> None:
        """By remoting every topic takes delayed messages, as in RocketMQ."""
        message_id = await self._deferred.recall(topic, handle, any_type=True)
        request.answer(fields={"msgId": message_id})
