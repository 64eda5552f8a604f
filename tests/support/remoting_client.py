"""A remoting client for tests: requests in RocketMQ's frames, on one TCP connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from ssl import SSLContext
from typing import Any, NamedTuple

from trovemq_proto.records import Message, RecordBatch
from trovemq_proto.remoting.codes import RequestCode
from trovemq_proto.remoting.frame import FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import IS_ONE_WAY, JSON, Form, Header

ANSWER_S = 10.0


class Answer(NamedTuple):
    header: Header
    body: bytes

    @property
    def code(self) -> int:
        return self.header.code

    @property
    def fields(self) -> Mapping[str, str]:
        return self.header.fields

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[Message]:
        """The records in the body."""
        return list(RecordBatch.split(memoryview(self.body)).messages())

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(message.body) for message in self.messages]


class RemotingClient:
    """`requests`: those of the broker, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, form: Form) -> None:
        self._reader = reader
        self.writer = writer
        self._is_tls = writer.get_extra_info("ssl_object") is not None
        self._form = form
        self._splitter = FrameSplitter()
        self._opaques = count(100)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self.requests: asyncio.Queue[Answer] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while data := await self._reader.read(1 << 16):
            for frame in self._splitter.feed(memoryview(data)):
                answer = Answer(frame.header(), bytes(frame.body))
                if answer.header.is_response:
                    self._waiting.pop(answer.header.opaque).set_result(answer)
                else:
                    self.requests.put_nowait(answer)
        for waiting in self._waiting.values():
            waiting.set_exception(ConnectionError("the connection was closed"))
        self.requests.put_nowait(Answer(Header(-1), b""))

    def begin(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> asyncio.Future[Answer]:
        texts = {name: _text(value) for name, value in (fields or {}).items()}
        opaque = next(self._opaques)
        waiting = self._waiting[opaque] = asyncio.get_running_loop().create_future()
        self.writer.write(encode_frame(Header(code, opaque, fields=texts), body, self._form))
        return waiting

    async def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Answer:
        return await asyncio.wait_for(self.begin(code, fields, body), ANSWER_S)

    def notify(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> None:
        """One-way."""
        texts = {name: _text(value) for name, value in fields.items()}
        self.writer.write(encode_frame(Header(code, next(self._opaques), IS_ONE_WAY, fields=texts), body))

    async def asked(self) -> Answer:
        """The next request of the broker."""
        return await asyncio.wait_for(self.requests.get(), ANSWER_S)

    async def closed(self) -> None:
        """Returns when the broker has closed the connection."""
        await asyncio.wait_for(self._reading, ANSWER_S)

    async def close(self) -> None:
        self.writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        if self._is_tls:
            self.writer.transport.abort()  # else the loop may end while TLS says goodbye
            await asyncio.sleep(0)

    # --- common requests --------------------------------------------------------------------------
    def begin_send(
        self, topic: str, body: bytes, properties: str = "", queue_id: int = 0, **fields: object
    ) -> asyncio.Future[Answer]:
        return self.begin(
            RequestCode.SEND_MESSAGE_V2,
            {
                "a": "producers",
                "b": topic,
                "c": "TBW102",
                "d": 4,
                "e": queue_id,
                "f": 0,
                "g": 1_700_000_000_000,
                "h": 0,
                "i": properties,
                "j": 0,
                "k": False,
                "m": False,
                **fields,
            },
            body,
        )

    async def send(
        self, topic: str, body: bytes, properties: str = "", queue_id: int = 0, **fields: object
    ) -> Answer:
        return await asyncio.wait_for(self.begin_send(topic, body, properties, queue_id, **fields), ANSWER_S)

    async def pull(self, topic: str, offset: int, queue_id: int = 0, **fields: object) -> Answer:
        return await asyncio.wait_for(self.begin_pull(topic, offset, queue_id, **fields), ANSWER_S)

    def begin_pull(
        self, topic: str, offset: int, queue_id: int = 0, **fields: object
    ) -> asyncio.Future[Answer]:
        return self.begin(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": "readers",
                "topic": topic,
                "queueId": queue_id,
                "queueOffset": offset,
                "maxMsgNums": 32,
                "sysFlag": 4,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
                "expressionType": "TAG",
                **fields,
            },
        )

    async def heartbeat(
        self, client_id: str, group: str = "readers", topic: str = "orders", version: int = 1
    ) -> Answer:
        subscription = {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": version}
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [subscription],
            "unitMode": False,
        }
        data = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
        return await self.ask(RequestCode.HEART_BEAT, body=json.dumps(data).encode())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@asynccontextmanager
async def remoting_client(
    address: str, form: Form = JSON, tls: SSLContext | None = None
) -> AsyncIterator[RemotingClient]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    client = RemotingClient(reader, writer, form)
    try:
        yield client
    finally:
        await client.close()
