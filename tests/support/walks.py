"""The way of one call through the files: `make walks` draws it in docs/internals/walks.md.

A call to the broker's services is traced in memory, after two that warmed the caches. Of the native group
stream one round is: a frame that gives credit, the batch of messages, and the frame that acknowledges them.
Counted are the files that it enters; its stays, which are the times that control enters a file from another
one of ours; and the returns, which are stays in a file that it had left. The drawing shows each package below
its first caller.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any, Final

from google.protobuf.message import Message

from tests.support import fake_loop
from tests.support.consuming import ConsumeClient
from tests.support.memory_broker import TestBroker
from tests.support.memory_broker import message as stored_message
from tests.support.rocketmq_client import message, receive_request
from tests.support.services_here import BrokerServices, in_process, small_broker_settings
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import consumer_pb2, message_pb2, query_pb2
from trovemq_store.files.memory import MemoryFileSystem

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/internals/walks.md"
BEGIN, END = "<!-- walks: begin -->", "<!-- walks: end -->"
PACKAGES: Final = (
    "broker/trovemq_broker/",
    "store/trovemq_store/",
    "proto/trovemq_proto/",
    "daemon/trovemq_daemon/",
)
V2: Final = "trovemq.rocketmq.v2.MessagingService."
ROUND_MESSAGES, ROUNDS = 32, 3
METADATA: Final = (("x-mq-client-id", "client"), ("x-mq-language", "PYTHON"))


class Walk:
    """The files of one call, in order. Used as a profile function."""

    def __init__(self) -> None:
        self.path: list[str] = []

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        if event not in ("call", "return"):
            return
        entered = frame if event == "call" else frame.f_back
        while entered is not None and not entered.f_code.co_filename.startswith(str(ROOT)):
            entered = entered.f_back
        if entered is None:
            return
        name = Path(entered.f_code.co_filename).relative_to(ROOT).as_posix()
        ours = name.startswith(PACKAGES) and "_pb2" not in name
        if ours and (not self.path or self.path[-1] != name):
            self.path.append(name)

    def packages(self) -> list[str]:
        """An indented line for each package, below the one that first calls it."""
        children: dict[str, dict[str, Any]] = {}
        stack: list[tuple[str, dict[str, Any]]] = [("", children)]
        for name in self.path:
            package = re.sub(
                r"trovemq_(store|proto|broker|daemon)/", "", f"{Path(name).parent.as_posix()}/"
            ).rstrip("/")
            depth = next((i for i, (above, _) in enumerate(stack) if above == package), None)
            if depth is not None:
                del stack[depth + 1 :]
            else:
                stack.append((package, stack[-1][1].setdefault(package, {})))
        return _lines(children, 0)


def _lines(children: dict[str, dict[str, Any]], depth: int) -> list[str]:
    lines = []
    for package, below in children.items():
        lines += [f"{'  ' * depth}{package}", *_lines(below, depth + 1)]
    return lines


async def main() -> None:
    rows, drawings = [], []
    for name, walk in (await walks()).items():
        files = Counter(walk.path)
        most = ", ".join(f"{Path(path).name} {count}" for path, count in files.most_common(3))
        stays = len(walk.path)
        rows.append(f"| {name} | {len(files)} | {stays} | {stays - len(files)} | {most} |")
        drawings.append("\n".join([f"{name}:", "", "```text", *walk.packages(), "```"]))
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = ["| call | files | stays | returns | most entered |", "| --- | --- | --- | --- | --- |", *rows]
    text = "\n".join([head + BEGIN, *table, "", "\n\n".join(drawings), END + rest.partition(END)[2]])
    PAGE.write_text(text, encoding="utf-8")


async def walks() -> dict[str, Walk]:
    with in_process():
        broker = BrokerServices(MemoryFileSystem(), small_broker_settings(commit_log_file_size=1 << 20))
        async with broker.working():
            broker.store.topics.create("orders", 1)
            walks = {name: await traced(partial(request, broker)) for name, request in calls().items()}
        return walks | {"Consume, a round of 32 messages": await consume_walk()}


async def consume_walk() -> Walk:
    """Of an open stream: credit, a batch, its acknowledgement."""
    parts = TestBroker()
    client = ConsumeClient(parts)
    await client.open()
    for number in range(ROUND_MESSAGES * ROUNDS):
        await parts.send(stored_message(b"x" * 100, message_id=f"M{number}"))

    async def one_round() -> None:
        await client.say(credit_messages=ROUND_MESSAGES, credit_bytes=1 << 20)
        got = client.messages()
        assert len(got) == ROUND_MESSAGES, len(got)
        settlements = []
        for receipt, run in groupby(got, key=attrgetter("receipt")):
            offsets = [one.offset for one in run]
            ranges = [offsets[0], len(offsets)]
            settlements.append(consumer_pb2.Settlement(settlement_id=1, receipt=receipt, ranges=ranges))
        results = await client.settle(*settlements)
        assert not any(result.HasField("error") or result.refused for result in results)

    walk = await traced(one_round)
    await client.end()
    return walk


async def traced(call: Callable[[], Awaitable[None]]) -> Walk:
    for _ in range(2):
        await call()
    walk = Walk()
    sys.setprofile(walk)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return walk


def calls() -> dict[str, Callable[[BrokerServices], Awaitable[None]]]:
    async def answered(broker: BrokerServices, method: str, request: Message, metadata: Any = ()) -> None:
        outcome = await broker.call(method, [request.SerializeToString()], metadata)
        assert outcome.code in (None, "", "OK"), (method, outcome)

    async def send(broker: BrokerServices) -> None:
        sent = message_pb2.OutgoingMessage(body=b"x" * 100, tag="paid", keys=["order-1"])
        request = message_pb2.SendRequest(topic="orders", queue_id=0, messages=[sent])
        await answered(broker, "trovemq.v1.MessageService.Send", request)

    async def v2_send(broker: BrokerServices) -> None:
        sent = message("orders", b"x" * 100, "paid", keys=["order-1"])
        request = service_pb2.SendMessageRequest(messages=[sent])
        await answered(broker, f"{V2}SendMessage", request, METADATA)

    async def v2_receive(broker: BrokerServices) -> None:
        request = receive_request("billing", "orders", count=1, poll_s=0.1)
        await answered(broker, f"{V2}ReceiveMessage", request, METADATA)

    async def query(broker: BrokerServices) -> None:
        request = query_pb2.QueryByKeyRequest(topic="orders", key="order-1", messages_max=1)
        await answered(broker, "trovemq.v1.QueryService.QueryByKey", request)

    return {
        "`send` (Send)": send,
        "v2 SendMessage": v2_send,
        "v2 ReceiveMessage, one message": v2_receive,
        "QueryByKey, one message": query,
    }


if __name__ == "__main__":
    fake_loop.run(main())
