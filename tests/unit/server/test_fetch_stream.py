"""The Fetch stream without a network: on our own transport, no request and no reply needs a task."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fake_loop
from tests.support.call_forms import called
from tests.support.engine import NOW_MS, SMALL, record, send
from tests.support.fake_loop import fake_time
from tests.support.memory_broker import TestBroker
from tests.support.rpc_context import RpcContext
from trovemq._consume.fetch_plan import FetchPlan
from trovemq._wire.streams import fetch_answer
from trovemq_broker.server.native.fetch_stream import REPLIES_MAX, FetchStream, begin_pull
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import message_pb2


class Context:
    """Requests are offered to the receiver while `read` waits, replies go to a list."""

    can_send = True
    receiver: Callable[[Any], bool] | None = None

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: list[message_pb2.FetchReply] = []
        self.reads = 0
        self.flushed = 0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    async def read(self) -> Any:
        request = await self.requests.get()
        self.reads += 1
        return request

    async def write(self, message: bytes) -> None:
        while not self.can_send:
            await asyncio.sleep(0.01)
        assert self.try_send(message)

    def try_send(self, message: bytes) -> bool:
        if self.can_send:
            self.replies.append(message_pb2.FetchReply.FromString(message))
        return self.can_send

    def try_send_now(self, message: bytes) -> bool:
        self.flushed += 1
        return self.try_send(message)

    def set_receiver(self, receiver: Callable[[Any], bool] | None) -> None:
        self.receiver = receiver

    def offer(self, offset: int, wait_ms: int = 60_000) -> None:
        self.offer_request(fetch_id=offset + 1, offset=offset, wait_ms=wait_ms)

    def offer_request(self, **fields: Any) -> None:
        request = message_pb2.FetchRequest(topic="orders", **fields)
        assert self.receiver is not None
        if not self.requests.empty() or not self.receiver(request):
            self.requests.put_nowait(request)


class Bench:
    def __init__(self) -> None:
        self.core = core = TestBroker(SMALL, fetch_frames_in_flight_max=4)
        self.store, self.polls, self.puller = core.store, core.long_polls, core.puller
        self.context: Any = Context()
        self.stream = FetchStream(core, self.context)
        self.serving = asyncio.create_task(self.stream.serve())

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            send(self.store, body)
        self.polls.wake([("orders", QueueId(0))])  # `send` has dispatched

    @property
    def left(self) -> list[tuple[int, int]]:
        """(next offset, replies left) of each reply."""
        return [(reply.next_offset, reply.replies_left) for reply in self.context.replies]

    @property
    def answered(self) -> list[tuple[int, int]]:
        """(fetch id, next offset) of each reply."""
        return [(reply.fetch_id, reply.next_offset) for reply in self.context.replies]


def scene(program: Callable[[Bench], Any]) -> None:
    async def run() -> None:
        bench = Bench()
        await fake_loop.turns()
        await program(bench)
        bench.serving.cancel()
        await asyncio.wait({bench.serving})
        assert bench.context.receiver is None, "a stream that is over takes nothing"

    fake_loop.run(run())


def test_a_request_for_a_message_that_is_there_is_answered_at_once() -> None:
    async def program(bench: Bench) -> None:
        bench.send(b"one", b"two")
        bench.context.offer(0)
        assert bench.answered == [(1, 2)], "no turn of the loop was needed"
        assert bench.context.reads == 0

    scene(program)


def test_a_reader_at_the_end_gets_each_message_without_a_task() -> None:
    async def program(bench: Bench) -> None:
        for number in range(5):
            bench.context.offer(number)
            bench.send(b"%d" % number)
            await fake_loop.turns()
        assert bench.answered == [(number + 1, number + 1) for number in range(5)]
        assert (bench.context.reads, len(bench.polls)) == (0, 0)

    scene(program)


def test_while_the_client_does_not_read_its_requests_wait() -> None:
    async def program(bench: Bench) -> None:
        bench.send(b"one", b"two")
        bench.context.can_send = False
        bench.context.offer(0)
        bench.context.offer(1)
        await fake_loop.turns()
        assert (bench.answered, bench.context.reads) == ([], 1), "the reader waits with the first reply"
        bench.context.can_send = True
        await asyncio.sleep(1)
        assert bench.answered == [(1, 2), (2, 2)]

    scene(program)


def test_more_fetches_than_may_wait_are_refused_by_name() -> None:
    async def program(bench: Bench) -> None:
        for number in range(4):
            bench.context.offer(0)
            await fake_loop.turns()
            assert len(bench.context.replies) == (number == 3)
        assert bench.context.replies[0].error.symbol == "LIMIT_EXCEEDED"

    scene(program)


def test_who_appends_does_not_hear_of_a_reader_whose_pull_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_request: Any) -> Any:
        raise RuntimeError("a fault of the reader's side")

    async def program(bench: Bench) -> None:
        bench.context.offer(0)
        monkeypatch.setattr(bench.puller, "pull", broken)
        bench.send(b"one")
        await asyncio.wait({bench.serving})
        assert bench.answered == []

    scene(program)


@pytest.mark.parametrize("fetches", [1, 2], ids=["written at once", "written together"])
def test_a_reply_that_could_not_be_written_failed_the_append(fetches: int) -> None:
    def broken(_message: bytes) -> bool:
        raise RuntimeError("Cannot call write() after write_eof()")

    async def program(bench: Bench) -> None:
        for number in range(fetches):
            bench.context.offer_request(fetch_id=number, wait_ms=60_000, replies_max=9)
        bench.context.try_send = bench.context.try_send_now = broken
        bench.send(b"one")
        bench.send(b"two")
        await asyncio.wait({bench.serving})
        assert (bench.answered, len(bench.polls)) == ([], 0), "the stream has ended, and nothing waits"

    scene(program)


# --- fetches that stand -----------------------------------------------------------------------------


def test_a_fetch_that_stands_needs_no_request_for_the_next_message() -> None:
    async def program(bench: Bench) -> None:
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=3)
        for number in range(4):
            bench.send(b"%d" % number)
            assert len(bench.answered) == min(number + 1, 3), "in the iteration of the message"
        assert bench.answered == [(7, 1), (7, 2), (7, 3)]
        assert bench.left == [(1, 2), (2, 1), (3, 0)]
        assert (bench.context.reads, len(bench.polls)) == (0, 0)

    scene(program)


def test_a_fetch_that_stands_gets_more_replies_on_request() -> None:
    async def program(bench: Bench) -> None:
        bench.send(b"first")
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=2)
        assert bench.left == [(1, 1)], "it was at the end of the queue with its first reply"
        bench.context.offer_request(fetch_id=7, replies_more=2)
        bench.context.offer_request(fetch_id=8, replies_more=2)
        for number in range(4):
            bench.send(b"%d" % number)
        assert bench.left == [(1, 1), (2, 2), (3, 1), (4, 0)]
        bench.context.offer_request(fetch_id=7, replies_more=2)
        bench.send(b"last")
        assert len(bench.left) == 4, "it has ended"

    scene(program)


def test_replies_to_several_that_wait_share_a_write() -> None:
    async def program(bench: Bench) -> None:
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=9)
        bench.send(b"one")
        assert (bench.answered, bench.context.flushed) == ([(7, 1)], 1)
        bench.context.offer_request(fetch_id=8, offset=1, wait_ms=60_000)
        bench.send(b"two")
        assert (bench.answered[1:], bench.context.flushed) == ([(7, 2), (8, 2)], 1)

    scene(program)


def test_a_fetch_ends_with_a_reply_that_has_a_part_of_the_queue() -> None:
    async def program(bench: Bench) -> None:
        bench.send(b"one", b"two", b"three")
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=9, messages_max=2)
        assert (bench.left, len(bench.polls)) == ([(2, 0)], 0)

    scene(program)


def test_the_replies_of_a_fetch_have_its_bytes_together() -> None:
    async def program(bench: Bench) -> None:
        size = len(record(b"0"))
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=9, bytes_max=3 * size - 1)
        for _ in range(4):
            bench.send(b"0")
        assert bench.left == [(1, 8), (2, 7), (3, 0)], "the last may have more: one message fits always"
        bench.context.offer_request(fetch_id=8, offset=4, wait_ms=60_000, replies_max=9, bytes_max=2 * size)
        bench.send(b"0")
        bench.context.offer_request(fetch_id=8, replies_more=1)
        bench.send(b"0")
        bench.send(b"0")
        assert bench.left[3:] == [(5, 8), (6, 8), (7, 0)]

    scene(program)


def test_the_wait_of_a_fetch_that_stands_begins_again_with_each_reply() -> None:
    async def program(bench: Bench) -> None:
        bench.context.offer_request(fetch_id=7, wait_ms=1_000, replies_max=9)
        await asyncio.sleep(0.9)
        bench.send(b"one")
        await asyncio.sleep(0.9)
        assert bench.left == [(1, 8)]
        await asyncio.sleep(0.2)
        assert (bench.left, len(bench.polls)) == ([(1, 8), (1, 0)], 0)

    scene(program)


def test_while_the_client_does_not_read_messages_gather_for_the_next_reply() -> None:
    async def program(bench: Bench) -> None:
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=9)
        bench.context.can_send = False
        bench.send(b"one", b"two")
        await fake_loop.turns()
        bench.send(b"three")
        assert bench.left == []
        bench.context.can_send = True
        await asyncio.sleep(1)
        assert bench.answered[0][0] == 7
        assert bench.left[-1][0] == 3
        bench.send(b"four")
        assert bench.left[-1][0] == 4

    scene(program)


def test_the_second_reply_of_a_fetch_overtook_the_first() -> None:
    """The first waits for the lock, and a message comes as another reply releases it."""

    async def program(bench: Bench) -> None:
        context = bench.context
        bench.send(b"one")
        context.offer_request(fetch_id=7, offset=1, wait_ms=60_000)
        context.can_send = False
        bench.send(b"two")
        await fake_loop.turns()
        context.offer_request(fetch_id=8, wait_ms=60_000, replies_max=9)
        await fake_loop.turns()
        assert context.replies == [], "the reply to 7 is being written, and that to 8 waits for the lock"
        try_send = context.try_send

        def noted(message: bytes) -> bool:
            if try_send(message) and len(context.replies) == 1:
                asyncio.get_running_loop().call_soon(bench.send, b"three")
            return bool(context.can_send)

        context.try_send = noted
        context.can_send = True
        await asyncio.sleep(1)
        assert bench.answered == [(7, 2), (8, 2), (8, 3)]

    scene(program)


@pytest.mark.parametrize("more", [0, 1, 2**31 - 1])
@pytest.mark.parametrize("replies_max", [2, REPLIES_MAX, REPLIES_MAX + 1, 2**31 - 1])
def test_a_client_that_asked_for_too_many_replies_lost_its_stream(replies_max: int, more: int) -> None:
    """The count of the remaining replies had no place in their number's 32 bits."""

    async def program(bench: Bench) -> None:
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=replies_max)
        if more:
            bench.context.offer_request(fetch_id=7, replies_more=more)
        bench.send(b"one")
        await fake_loop.turns()
        assert not bench.serving.done()
        assert bench.left[0] == (1, min(replies_max + more, REPLIES_MAX) - 1)

    scene(program)


def test_a_fetch_that_stands_ends_with_its_topic_and_with_the_broker() -> None:
    async def program(bench: Bench) -> None:
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=9)
        bench.context.offer_request(fetch_id=8, queue_id=1, wait_ms=60_000, replies_max=9)
        bench.send(b"one")
        bench.store.delete_topic("orders", NOW_MS)
        bench.polls.wake_topic("orders")
        assert [reply.error.symbol for reply in bench.context.replies[1:]] == ["TOPIC_NOT_FOUND"] * 2
        assert len(bench.polls) == 0

    scene(program)

    async def stopping(bench: Bench) -> None:
        bench.context.offer_request(fetch_id=7, wait_ms=60_000, replies_max=9)
        bench.send(b"one")
        bench.stream.end()
        assert bench.left == [(1, 8), (1, 0)]
        await asyncio.wait({bench.serving})
        with pytest.raises(TroveError, match="the broker is stopping"):
            await bench.serving

    scene(stopping)


@pytest.mark.parametrize("replies_max", [1, 9])
@pytest.mark.parametrize("known", [False, True])
def test_a_fetch_that_waited_went_on_in_the_namesake_of_its_topic(replies_max: int, known: bool) -> None:
    """The topic was deleted and recreated before the broker woke the fetch."""

    async def program(bench: Bench) -> None:
        bench.send(b"one", b"two")
        identity = {"topic_identity": bench.puller.topic_identity("orders")} if known else {}
        bench.context.offer_request(offset=2, wait_ms=60_000, replies_max=replies_max, **identity)
        bench.store.delete_topic("orders", NOW_MS)
        bench.store.topics.create("orders", queue_count=4)
        bench.send(*[b"new"] * 5)
        (reply,) = bench.context.replies
        assert (reply.error.symbol, reply.records, len(bench.polls)) == ("TOPIC_RECREATED", b"", 0)
        bench.context.offer(2)
        reply = bench.context.replies[-1]
        assert reply.next_offset == 5, "a position without an identity is a user's"
        assert reply.topic_identity == bench.puller.topic_identity("orders") > 0

    scene(program)


@fake_time
async def test_a_call_that_waited_went_on_in_the_namesake_of_its_topic() -> None:
    bench = Bench()
    bench.send(b"one")
    request = message_pb2.FetchRequest(topic="orders", offset=1, wait_ms=60_000)
    pull = called(lambda calls: begin_pull(bench.core, *calls))
    pulling = asyncio.create_task(pull(request, RpcContext()))
    await fake_loop.turns()
    bench.store.delete_topic("orders", NOW_MS)
    bench.store.topics.create("orders", queue_count=4)
    bench.send(b"new", b"new")
    with pytest.raises(TroveError, match="TOPIC_RECREATED"):
        await pulling
    bench.serving.cancel()
    await asyncio.wait({bench.serving})


Step = tuple[str, int]
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 5)),
    st.tuples(st.just("take"), st.integers(1, 9)),
    st.tuples(st.just("wait"), st.integers(1, 80)),
    st.tuples(st.sampled_from(["unread", "read", "turn"]), st.just(0)),
)


class Follower:
    """A client of the SDK's plan: takes replies when it is told to, and asks for more."""

    def __init__(self, bench: Bench, bytes_max: int, replies_max: int) -> None:
        self.bench = bench
        self.bytes_max = bytes_max
        self.plan = FetchPlan(0, bytes_max=bytes_max, fetches_max=3, foretell=True, replies_max=replies_max)
        self.taken = 0
        self.found: list[int] = []
        self.asked_for: Counter[int] = Counter()

    def ask(self) -> None:
        while (fetch := self.plan.next_to_send()) is not None:
            self.asked_for[fetch.fetch_id] += max(1, fetch.replies_max)
            self.bench.context.offer_request(
                fetch_id=fetch.fetch_id,
                offset=fetch.start,
                messages_max=fetch.messages_max,
                bytes_max=self.bytes_max,
                wait_ms=50,
                replies_max=fetch.replies_max,
            )
        if (more := self.plan.replies_to_ask_for()) is not None:
            fetch_id, count = more
            self.asked_for[fetch_id] += count
            self.bench.context.offer_request(fetch_id=fetch_id, replies_more=count)

    def take(self) -> bool:
        replies = self.bench.context.replies
        if self.taken == len(replies):
            return False
        reply = replies[self.taken]
        self.taken += 1
        assert not reply.error.symbol
        answer = fetch_answer(reply.SerializeToString())
        self.plan.answered(answer.fetch_id, answer.batch, answer.replies_remaining)
        while (batch := self.plan.next_to_hand_out()) is not None:
            self.found += batch.offset_list
        self.ask()
        return True

    def check(self) -> None:
        counts = Counter(reply.fetch_id for reply in self.bench.context.replies)
        assert all(counts[fetch_id] <= self.asked_for[fetch_id] for fetch_id in counts)
        ended = [reply.fetch_id for reply in self.bench.context.replies if not reply.replies_left]
        assert len(ended) == len(set(ended)), "nothing follows the last reply of a fetch"


@given(
    steps=st.lists(STEPS, max_size=40),
    bytes_max=st.sampled_from([1, 300, 1_000, 100_000]),
    replies_max=st.integers(0, 6),
)
def test_a_follower_gets_each_message_once_and_in_order(
    steps: list[Step], bytes_max: int, replies_max: int
) -> None:
    async def program(bench: Bench) -> None:
        follower, sent = Follower(bench, bytes_max, replies_max), 0
        follower.ask()
        for name, number in steps:
            if name == "send":
                bench.send(*[b"x"] * number)
                sent += number
            elif name == "take":
                for _ in range(number):
                    follower.take()
            elif name == "wait":
                await asyncio.sleep(number / 1_000)
            else:
                bench.context.can_send = name != "unread" and (name == "read" or bench.context.can_send)
                await fake_loop.turns()
            follower.check()
        bench.context.can_send = True
        for _ in range(sent + 1):
            while follower.take():
                follower.check()
            await asyncio.sleep(0.02)
        assert follower.found == list(range(sent))

    scene(program)
