"""One Append stream without a network: frames leave in order, by the callback or by the task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fake_loop
from tests.support.fake_loop import fake_time
from trovemq._net.append_stream import (
    FRAMES_IN_FLIGHT_MAX,
    GROWING_FRAMES_MAX,
    GROWING_WAIT_S,
    LONE_FRAMES_MIN,
    AppendStream,
)
from trovemq._wire.failures import unreachable
from trovemq.receipts import AppendOutcome
from trovemq_proto import errors
from trovemq_proto.errors import UNREAD, TroveError


class Frame:
    deadline = float("inf")

    def __init__(
        self, text: str, *, one_way: bool = False, queue: str = "", growing: bool = False, lone: bool = False
    ) -> None:
        self.text = text
        self.lone = lone
        self.one_way = one_way
        self.queue = queue
        self.growing = growing
        self.ends: list[str] = []

    def take(self, _frame_id: int) -> bytes | None:
        if self.text == "unwanted":
            self.ends.append("unwanted")
            return None
        return self.text.encode()

    def written(self) -> None:
        self.ends.append("written")

    def answered(self, _outcome: AppendOutcome) -> None:
        self.ends.append("answered")

    def failed(self, _error: TroveError, *, in_doubt: bool) -> None:
        self.ends.append("in doubt" if in_doubt else "not sent")


class Server:
    """A connection, and its stream, which takes frames at once while it is `writable`."""

    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.came: list[str] = []
        self.at_once = 0
        self.alone: list[str] = []
        self.writable = True
        self.broken = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def server_info(self) -> None:
        """It answers."""

    def open_append(self) -> Server:
        return self

    def set_writable(self, writable: bool) -> None:
        """A sender that waits continues some turns after there is space."""
        self.writable = writable
        if writable:
            asyncio.get_running_loop().call_later(0.001, self._may_write.set)
        else:
            self._may_write.clear()

    async def send(self, frame: bytes) -> None:
        while not self.writable:
            await self._may_write.wait()
            await asyncio.sleep(0)
        self.came.append(frame.decode())

    def send_now(self, frame: bytes, *, alone: bool) -> None:
        assert self.writable
        if self.broken:
            raise unreachable(self.address, "the connection is gone")
        self.at_once += 1
        self.came.append(frame.decode())
        if alone:
            self.alone.append(frame.decode())

    async def read(self) -> Any:
        answer = await self._answers.get()
        if isinstance(answer, TroveError):
            raise answer
        return answer

    def fail(self, error: TroveError) -> None:
        self._answers.put_nowait(error)

    def set_receiver(self, receiver: Callable[[Any], bool]) -> None:
        """As grpcio: there is none."""

    def cancel(self) -> None:
        """Nothing is under way."""

    def answer(self, frame_id: int) -> None:
        self._answers.put_nowait(type("Outcome", (), {"frame_id": frame_id}))


async def opened(server: Server) -> AppendStream:
    """A stream whose task waits for frames."""
    connection: Any = server
    stream = AppendStream(connection, lambda _reached: None)
    stream.submit(Frame("first"))
    await fake_loop.turns()
    server.answer(1)
    await fake_loop.turns()
    assert server.came == ["first"]
    return stream


@fake_time
async def test_frames_of_one_turn_are_written_before_the_turn_after_the_next() -> None:
    server = Server()
    stream = await opened(server)
    for text in ("a", "b", "c"):
        stream.submit(Frame(text))
    assert server.came == ["first"], "more of this iteration may join the last one"
    await asyncio.sleep(0)
    assert server.came == ["first", "a", "b", "c"]
    assert server.at_once == 3
    await stream.close()


async def sent_alone(server: Server, stream: AppendStream, count: int, *, one_way: bool = False) -> None:
    """`count` frames of one message are written and answered, one after the other."""
    for _ in range(count):
        number = len(server.came) + 1
        stream.submit(Frame(str(number), one_way=one_way, growing=True, lone=True))
        await fake_loop.turns()
        server.answer(number)
        await fake_loop.turns()


@fake_time
async def test_a_message_at_a_time_is_written_at_once() -> None:
    server = Server()
    stream = await opened(server)
    await sent_alone(server, stream, LONE_FRAMES_MIN - 1)
    stream.submit(Frame("at the end", lone=True))
    assert server.came[-1] != "at the end"
    await fake_loop.turns()
    server.answer(len(server.came))
    await fake_loop.turns()
    stream.submit(Frame("at once", lone=True))
    assert server.came[-1] == "at once"
    await stream.close()


@fake_time
@pytest.mark.parametrize("company", [False, True])
async def test_only_a_message_without_company_is_polled_for(company: bool) -> None:
    server = Server()
    stream = await opened(server)
    await sent_alone(server, stream, LONE_FRAMES_MIN)
    assert server.alone == []
    if company:
        stream.submit(Frame("other", one_way=True, lone=True))
    stream.submit(Frame("last", lone=True))
    await fake_loop.turns()
    assert server.came[-1] == "last"
    assert server.alone == ([] if company else ["last"])
    await stream.close()


@fake_time
@pytest.mark.parametrize("company", ["answered later", "several messages"])
async def test_messages_that_have_company_share_frames_again(company: str) -> None:
    server = Server()
    stream = await opened(server)
    await sent_alone(server, stream, LONE_FRAMES_MIN)
    if company == "answered later":
        stream.submit(Frame("at once", lone=True))
        stream.submit(Frame("at the end", lone=True))
        assert server.came[-1] == "at once"
    else:
        stream.submit(Frame("of two", lone=False))
    await fake_loop.turns()
    for number in range(len(server.came) - 1, len(server.came) + 1):
        server.answer(number)
    await fake_loop.turns()
    came = list(server.came)
    stream.submit(Frame("a", lone=True))
    stream.submit(Frame("b", lone=True))
    assert server.came == came
    await fake_loop.turns()
    assert server.came == [*came, "a", "b"]
    await stream.close()


@fake_time
@pytest.mark.parametrize("one_way", [True, False], ids=["after one-way ones", "after answered ones"])
async def test_a_burst_of_one_way_messages_left_in_a_frame_each(one_way: bool) -> None:
    """No caller waits for their answers, so the next one may come in one iteration."""
    server = Server()
    stream = await opened(server)
    await sent_alone(server, stream, LONE_FRAMES_MIN, one_way=one_way)
    came = list(server.came)
    stream.submit(burst := Frame("a", one_way=True, growing=True, lone=True))
    assert server.came == came, "more of this iteration may join it"
    burst.text += "bc"
    burst.lone = False
    await fake_loop.turns()
    assert server.came == [*came, "abc"]
    assert burst.ends == ["written"]
    await stream.close()


@fake_time
async def test_a_message_at_a_time_waits_for_a_connection_that_takes_none() -> None:
    server = Server()
    stream = await opened(server)
    await sent_alone(server, stream, LONE_FRAMES_MIN)
    server.set_writable(False)
    stream.submit(frame := Frame("waits", lone=True))
    await fake_loop.turns()
    assert server.came[-1] != "waits"
    server.set_writable(True)
    await asyncio.sleep(1)
    assert server.came[-1] == "waits"
    server.answer(len(server.came))
    await fake_loop.turns()
    assert frame.ends == ["answered"]
    await stream.close()


@given(
    steps=st.lists(
        st.sampled_from(
            [
                "send",
                "send",
                "single",
                "single",
                "one way",
                "unwanted",
                "turn",
                "turns",
                "full",
                "free",
                "answer",
            ]
        ),
        max_size=60,
    )
)
def test_every_frame_is_sent_once_in_order_and_ends_once(steps: list[str]) -> None:
    """Whether the transport takes it at once, or its task has to wait."""

    async def scene() -> None:
        server = Server()
        stream = await opened(server)
        frames, answered = list[Frame](), 1
        for step in steps:
            if step in ("send", "single", "one way", "unwanted"):
                text = step if step == "unwanted" else f"m{len(frames)}"
                single = step == "single"
                frames.append(Frame(text, one_way=step == "one way", growing=single, lone=single))
                stream.submit(frames[-1])
            elif step in ("full", "free"):
                server.set_writable(step == "free")
            elif step == "answer":
                answered += 1
                server.answer(answered)
            else:
                await fake_loop.turns(1 if step == "turn" else 20)
        server.set_writable(True)
        for number in range(answered + 1, len(frames) + 2):
            server.answer(number)
            await fake_loop.turns()
        await asyncio.sleep(1)
        assert server.came[1:] == [frame.text for frame in frames if frame.text != "unwanted"]
        await stream.close()
        assert all(len(frame.ends) == 1 for frame in frames)
        assert all((frame.ends == ["written"]) == frame.one_way for frame in frames)

    fake_loop.run(scene())


@fake_time
async def test_no_more_frames_leave_than_may_be_unanswered() -> None:
    server = Server()
    stream = await opened(server)
    for number in range(FRAMES_IN_FLIGHT_MAX + 3):
        stream.submit(Frame(str(number)))
    await fake_loop.turns()
    assert len(server.came) == 1 + FRAMES_IN_FLIGHT_MAX
    server.answer(2)
    server.answer(3)
    await fake_loop.turns()
    assert len(server.came) == 3 + FRAMES_IN_FLIGHT_MAX
    await stream.close()


@fake_time
async def test_single_messages_filled_the_broker_frame_by_frame() -> None:
    """Messages join the frame that waits. Frames of other queues overtake it, those of its queue do not."""
    server = Server()
    stream = await opened(server)
    first = [Frame(str(number), queue="a", growing=True) for number in range(GROWING_FRAMES_MAX)]
    waits = [Frame("waits", queue="a", growing=True), Frame("behind", queue="a")]
    for frame in (*first, *waits, other := Frame("other", queue="b", growing=True)):
        stream.submit(frame)
    await fake_loop.turns()
    assert server.came[1:] == [frame.text for frame in (*first, other)]
    server.answer(2)
    await fake_loop.turns()
    assert server.came[-2:] == ["waits", "behind"]
    await stream.close()
    assert all(len(frame.ends) == 1 for frame in (*first, *waits, other))


@fake_time
async def test_single_messages_for_a_distant_broker_waited_for_its_answer() -> None:
    """Its answers take long, and it is not busy: one more frame goes each five milliseconds."""
    server = Server()
    stream = await opened(server)
    first = [Frame(str(number), growing=True) for number in range(GROWING_FRAMES_MAX)]
    later = [Frame("a", growing=True), Frame("b", growing=True)]
    for frame in (*first, *later):
        stream.submit(frame)
    await fake_loop.turns()
    assert server.came[-1] == first[-1].text
    await asyncio.sleep(GROWING_WAIT_S * 1.5)
    assert server.came[-2:] == [first[-1].text, "a"]
    await asyncio.sleep(GROWING_WAIT_S * 1.5)
    assert server.came[-2:] == ["a", "b"]
    await stream.close()


@fake_time
async def test_frames_behind_expired_ones_waited_for_the_next_send() -> None:
    server = Server()
    stream = await opened(server)
    soon = asyncio.get_running_loop().time() + 1
    expired = [Frame(str(number)) for number in range(FRAMES_IN_FLIGHT_MAX)]
    for frame in expired:
        frame.deadline = soon
        stream.submit(frame)
    stream.submit(behind := Frame("behind"))
    await asyncio.sleep(2)
    assert all(frame.ends == ["in doubt"] for frame in expired)
    assert server.came[-1] == "behind"
    assert behind.ends == []
    await stream.close()


@fake_time
@pytest.mark.parametrize(("fields", "end"), [({}, "in doubt"), ({UNREAD: "true"}, "not sent")])
async def test_a_restart_failed_sends_that_the_broker_had_not_read(fields: dict[str, str], end: str) -> None:
    server = Server()
    stream = await opened(server)
    frame = Frame("a")
    stream.submit(frame)
    await fake_loop.turns()
    server.fail(TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping", **fields))
    await fake_loop.turns()
    assert frame.ends == [end]
    await stream.close()


@fake_time
async def test_a_frame_that_a_broken_stream_did_not_take_is_in_doubt() -> None:
    server = Server()
    stream = await opened(server)
    server.broken = True
    frames = [Frame("a"), Frame("b", one_way=True)]
    for frame in frames:
        stream.submit(frame)
    await fake_loop.turns()
    assert [frame.ends for frame in frames] == [["in doubt"], ["not sent"]]
    server.broken = False
    stream.submit(Frame("c"))
    await fake_loop.turns()
    assert server.came == ["first", "c"]
    await stream.close()
