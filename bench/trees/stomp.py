"""A STOMP 1.2 client for the benchmark: sends with receipts, and browses by a selector.

A frame is a command line, header lines, an empty line, the body, and a NUL; between frames there may be line
feeds.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, StreamReader, StreamWriter
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Self

RECEIPT_S_MAX = 30.0
BROWSE_END = "browser"
"""A header of the frame that ends a browse, as ActiveMQ writes it."""


class StompError(Exception):
    """The server answered with an ERROR frame, or went away."""


class Frame(NamedTuple):
    command: str
    headers: dict[str, str]
    body: bytes


def encode_frame(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Header values of ours have no character that STOMP would have escaped."""
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


async def read_frame(reader: StreamReader) -> Frame:
    """StompError at the end of the stream."""
    try:
        command = b""
        while not command:
            command = (await reader.readline()).strip(b"\r\n")
            if not command and reader.at_eof():
                raise StompError("the server closed the connection")
        headers: dict[str, str] = {}
        while line := (await reader.readline()).strip(b"\r\n"):
            name, _, value = line.decode().partition(":")
            headers.setdefault(name, value.replace("\\c", ":").replace("\\n", "\n").replace("\\\\", "\\"))
        if "content-length" in headers:
            body = (await reader.readexactly(int(headers["content-length"]) + 1))[:-1]
        else:
            body = (await reader.readuntil(b"\0"))[:-1]
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise StompError(f"the connection ended: {error}") from error
    return Frame(command.decode(), headers, body)


class StompClient:
    """One connection. Receipts are read by a separate task; every send is answered by one."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._receipts: dict[str, Future[None]] = {}
        self._browses: dict[str, asyncio.Queue[Frame]] = {}
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, port: int) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        self = cls(reader, writer)
        writer.write(encode_frame("CONNECT", {"accept-version": "1.2", "host": "bench", "heart-beat": "0,0"}))
        answer = await asyncio.wait_for(read_frame(reader), RECEIPT_S_MAX)
        if answer.command != "CONNECTED":
            raise StompError(f"{answer.command}: {answer.headers.get('message', '')}")
        self._task = asyncio.create_task(self._read())
        return self

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        try:
            while True:
                self._take(await read_frame(self._reader))
        except StompError as error:
            self._fail(error)

    def _take(self, frame: Frame) -> None:
        if frame.command == "RECEIPT":
            self._receipts.pop(frame.headers["receipt-id"]).set_result(None)
        elif frame.command == "MESSAGE":
            self._browses[frame.headers["subscription"]].put_nowait(frame)
        else:
            raise StompError(f"{frame.command}: {frame.headers.get('message', '')}")

    def _fail(self, error: StompError) -> None:
        for waiting in self._receipts.values():
            waiting.set_exception(error)
        for browse in self._browses.values():
            browse.put_nowait(Frame("ERROR", {"message": str(error)}, b""))

    def send(self, queue: str, body: bytes, headers: Mapping[str, str]) -> Future[None]:
        """A persistent message; done when its receipt is there, which ActiveMQ sends when it is stored."""
        self._number += 1
        receipt = str(self._number)
        waiting = self._receipts[receipt] = asyncio.get_running_loop().create_future()
        own = {"destination": f"/queue/{queue}", "persistent": "true", "receipt": receipt}
        self._writer.write(encode_frame("SEND", {**own, "content-length": str(len(body)), **headers}, body))
        return waiting

    async def drain(self) -> None:
        await self._writer.drain()

    async def browse(self, queue: str, selector: str | None, timeout_s: float) -> list[Frame]:
        """The messages of the queue that the selector chooses (all without one), which stay there.
        TimeoutError, StompError."""
        self._number += 1
        name = f"browse-{self._number}"
        found = self._browses[name] = asyncio.Queue()
        headers = {"id": name, "destination": f"/queue/{queue}", "browser": "true", "ack": "auto"}
        chosen = {} if selector is None else {"selector": selector}
        self._writer.write(encode_frame("SUBSCRIBE", {**headers, **chosen}))
        frames: list[Frame] = []
        async with asyncio.timeout(timeout_s):
            while BROWSE_END not in (frame := await found.get()).headers:
                if frame.command == "ERROR":
                    raise StompError(frame.headers["message"])
                frames.append(frame)
        self._writer.write(encode_frame("UNSUBSCRIBE", {"id": name}))
        del self._browses[name]
        return frames
