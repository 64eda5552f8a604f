"""Requests and replies: a request is a message of any topic, a reply one of the topic of all replies.

Each client reads that topic from the moment of its first request, on every broker, and only the replies with
its tag. There is no topic or group for a client.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Unpack

from trovemq._common.arguments import check_amount
from trovemq._run.closing import Closing
from trovemq.replies import REPLY_TO, REPLY_TOPIC, REQUEST_ID, Reply, ReplyCounts, WaitingRequests
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq._net.connections import ConnectionPool
    from trovemq.fetched import Buffer
    from trovemq.producer import Producer
    from trovemq.receipts import SendReceipt
    from trovemq.received import ReceivedFields
    from trovemq.send_arguments import SendArguments
    from trovemq.subscription import Subscription

TIMEOUT_DEFAULT: Final = 10.0


class Requesting(Closing):
    """The part of a client that sends requests and replies."""

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(pool)
        self._requests = WaitingRequests()
        self._reply_tag: Final = f"to-{secrets.token_hex(8)}"
        self._replies: asyncio.Task[None] | None = None
        self._replies_open = asyncio.Lock()

    def _producer_of(self, topic: str) -> Producer:
        raise NotImplementedError

    async def request(
        self,
        topic: str,
        body: Buffer,
        *,
        timeout: float = TIMEOUT_DEFAULT,
        **arguments: Unpack[SendArguments],
    ) -> Reply:
        """Sends a message and waits for the reply that a consumer of the topic sends by `reply`.

            reply = await client.request("prices", b"apples", timeout=2)

        Args:
            topic: The topic of the request.
            body: Its body.
            timeout: Seconds until the reply has to be here, more than 0. The request itself is a message as
                any other: it stays, and a consumer may get it later.
            arguments: The fields of SendArguments.

        Returns:
            The first reply. Later ones, and those that come after the time, are dropped and counted
            (`reply_counts`).

        Raises:
            TroveError: REQUEST_TIMEOUT if no reply has come; LIMIT_EXCEEDED with 10,000 waiting requests;
                TOPIC_NOT_FOUND, ACCESS_DENIED, … also of the topic `trovemq-replies`, which the first request
                creates.
        """
        self._pool.check_loop()
        check_amount("timeout", timeout, above=True)
        request_id = secrets.token_hex(16)
        try:
            async with asyncio.timeout(timeout):
                await self._open_replies()
                reply = self._requests.begin(request_id)
                given = arguments.get("properties") or {}
                arguments["properties"] = {**given, REQUEST_ID: request_id, REPLY_TO: self._reply_tag}
                await self._producer_of(topic).send(body, **arguments)
                return await reply
        except TimeoutError:
            text = (
                f"no reply to request {request_id} of topic {topic} within {timeout:g} s: does a consumer of"
                " the topic run, and call client.reply(message, …)? It may still get the request"
            )
            raise TroveError(errors.REQUEST_TIMEOUT, text, request_id=request_id, topic=topic) from None
        finally:
            self._requests.end(request_id)

    async def reply(
        self, message: ReceivedFields, body: Buffer, *, properties: Mapping[str, str] | None = None
    ) -> SendReceipt:
        """Sends the reply to a received request; acknowledge the message afterwards, as any other.

        Args:
            message: The request.
            body: The reply's body.
            properties: The reply's properties.

        Returns:
            The receipt: the reply is stored, also if its requester no longer waits.

        Raises:
            TroveError: REQUEST_ILLEGAL for a message that is not a request; as `send`.
        """
        self._pool.check_loop()
        request_id, tag = message.properties.get(REQUEST_ID), message.properties.get(REPLY_TO)
        if not request_id or not tag:
            text = f"message {message.message_id} is no request: its sender did not use client.request"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        return await self._producer_of(REPLY_TOPIC).send(
            body, tag=tag, keys=[request_id], properties={**(properties or {}), REQUEST_ID: request_id}
        )

    @property
    def reply_counts(self) -> ReplyCounts:
        """The requests that wait, and the replies that were dropped."""
        return self._requests.counts

    async def _open_replies(self) -> None:
        """Reads the replies to this client from now on."""
        async with self._replies_open:
            if self._replies is not None and not self._replies.done():
                return
            from trovemq.admin import Admin
            from trovemq.subscription import SubscribeOptions, Subscription

            await Admin(self._pool).create_topic(REPLY_TOPIC, queue_count=1, exist_ok=True)
            options = SubscribeOptions(tags=[self._reply_tag], broadcast=True, start="latest")
            subscription = Subscription(self._pool, REPLY_TOPIC, "replies", options, self._subscriptions)
            await subscription.__aenter__()
            reading = self._read_replies(subscription)
            self._replies = asyncio.get_running_loop().create_task(reading, name="trovemq replies")

    async def _read_replies(self, subscription: Subscription) -> None:
        failure = TroveError(errors.CLIENT_CLOSED, "the client was closed while the request waited")
        try:
            async for message in subscription:
                properties = dict(message.properties)
                reply = Reply(
                    body=message.body,
                    request_id=properties.pop(REQUEST_ID, ""),
                    properties=properties,
                    message_id=message.message_id,
                    broker=message.broker,
                )
                self._requests.put(reply)
        except TroveError as error:
            failure = error
        finally:
            self._requests.fail(failure)
            await subscription.close()
