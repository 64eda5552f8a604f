"""Raw SendMessage calls of 1 KiB by our own transport, and the cost of one for the broker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench.measure import each, scheduled_seconds
from bench.rocketmq_raw import METADATA, SERVICE, message
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

SEND: Final = SERVICE + "SendMessage"
_OK: Final = service.SendMessageResponse(status=v2.Status(code=v2.OK, message="OK")).SerializeToString()
_numbers = itertools.count(time.time_ns() // 1_000)


class Sender:
    """Sends to one topic; each message has a new id."""

    def __init__(self, topic: str) -> None:
        request = service.SendMessageRequest(messages=[message(topic, 0)]).SerializeToString()
        self._before, _, self._after = request.partition(f"{0:032X}".encode())

    async def send(self, method: Any) -> None:
        """By this channel's SendMessage."""
        request = b"%b%032X%b" % (self._before, next(_numbers), self._after)
        reply = bytes(await method(request, metadata=METADATA))
        assert reply.startswith(_OK), service.SendMessageResponse.FromString(reply).status


async def cost_us(pid: int, count: int, do: Callable[[int], Awaitable[object]], at_once: int) -> float:
    """The process's processor time for each call, in microseconds."""
    before = scheduled_seconds(pid)
    await each(count, do, at_once)
    return (scheduled_seconds(pid) - before) / count * 1e6
