"""TroveMQ as the broker of taskiq, which runs Python functions as tasks: `pip install 'trovemq[taskiq]'`.

    from trovemq.taskiq import TroveMQBroker

    broker = TroveMQBroker("127.0.0.1:8081")

    @broker.task
    async def add(one: int, two: int) -> int: ...

A task is a message: its body is the task as taskiq formats it, its key the task's id, and its property `task`
the task's name. These labels of a task have a meaning here:

| label           | meaning                                                                             |
|-----------------|-------------------------------------------------------------------------------------|
| `delay`         | seconds until it may run (taskiq's own retries use it, too)                         |
| `priority`      | 0 to 9; 9 is received first. For a broker with `by_priority`                        |
| `message_group` | tasks of one message group go to one queue; an orderly group runs them in order     |

A task is acknowledged when taskiq says so (`ack_type`). If its worker ends before, it is delivered to another
worker; after the last attempt of the group it becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from trovemq.client import Client, connect
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

TASK_PROPERTY: Final = "task"
DELAY_LABEL: Final = "delay"
PRIORITY_LABEL: Final = "priority"
MESSAGE_GROUP_LABEL: Final = "message_group"
MIXED: Final = "MIXED"
"""The type of topics that take plain, delayed and ordered messages."""


class TroveMQBroker(AsyncBroker):
    """Tasks as messages of one topic, shared among the workers of one consumer group.

    Args:
        server: A nameserver or a broker: HOST:PORT, several with commas or as a sequence, or a URL.
        topic: The tasks' topic.
        group: The workers' group. It begins with the topic's first task.
        queue_count: Number of queues, if the topic is created.
        by_priority: Whether a created topic is received by priority.
        create_topic: Whether to create the topic at the start, unless it exists.
        prefetch: How many tasks a worker receives beyond those it runs. Other workers do not get them.
        options: The client's options; None: the defaults.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        queue_count: int = 8,
        by_priority: bool = False,
        create_topic: bool = True,
        prefetch: int = 16,
        options: ClientOptions | None = None,
    ) -> None:
        super().__init__()
        self.topic: Final = topic
        self.group: Final = group
        self._server: Final = server
        self._queue_count: Final = queue_count
        self._by_priority: Final = by_priority
        self._create_topic: Final = create_topic
        self._prefetch: Final = prefetch
        self._options: Final = ClientOptions() if options is None else options
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client; it exists from `startup` to `shutdown`. Raises TroveError CLIENT_CLOSED at any other
        time."""
        if self._client is None:
            raise TroveError(errors.CLIENT_CLOSED, "the broker is not started: await broker.startup()")
        return self._client

    async def startup(self) -> None:
        """Connects and creates the topic. Raises TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, TLS_FAILED,
        MESSAGE_TYPE_CONFLICT, …"""
        if self._client is None:
            client = await connect(self._server, options=self._options)
            try:
                if self._create_topic:
                    await self._created(client)
            except BaseException:
                await client.close()
                raise
            self._client = client
        await super().startup()

    async def _created(self, client: Client) -> None:
        """Creates the topic; an existing one stays as it is. Raises TroveError MESSAGE_TYPE_CONFLICT if that
        takes no delayed messages."""
        topics = await client.admin.create_topic(
            self.topic,
            queue_count=self._queue_count,
            message_type=MIXED,
            options={"order": "priority"} if self._by_priority else None,
            exist_ok=True,
        )
        for topic in topics:
            if topic.message_type not in (MIXED, "UNSPECIFIED"):
                text = f"topic {self.topic} is of type {topic.message_type}, which takes no delayed tasks"
                what = f"name another topic, or trovemq topic alter {self.topic} --type {MIXED}"
                raise TroveError(errors.MESSAGE_TYPE_CONFLICT, f"{text}: {what}", topic=self.topic)

    async def shutdown(self) -> None:
        """Returns messages that were received and not acknowledged to the broker, and disconnects."""
        try:
            await super().shutdown()
        finally:
            client, self._client = self._client, None
            if client is not None:
                await client.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task; it is stored durably when this returns. Raises ValueError for a label that must be a
        number and is not, TroveError for a task that was refused, or with in_doubt for one that may be
        stored."""
        labels = message.labels
        delay = _number(labels, DELAY_LABEL, float)
        group = labels.get(MESSAGE_GROUP_LABEL)
        await self.client.send(
            self.topic,
            message.message,
            keys=[message.task_id],
            properties={TASK_PROPERTY: message.task_name},
            deliver_after=delay or None,
            priority=_number(labels, PRIORITY_LABEL, int),
            message_group=None if group is None else str(group),
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """The tasks for this worker, until the generator is closed. Their acknowledgements work until
        `shutdown`: taskiq waits for the tasks that run after it has closed the generator.

        Raises TroveError TOPIC_NOT_FOUND, GROUP_ILLEGAL, GROUP_NOT_FOUND, BROKER_UNREACHABLE, …
        """
        subscription = self.client.subscribe(
            self.topic, self.group, prefetch=self._prefetch, start="earliest"
        )
        await subscription.__aenter__()  # left when the client is closed, not when this generator ends
        try:
            async for message in subscription:
                yield AckableMessage(data=message.body, ack=message.ack)
        finally:
            subscription.end()


def _number(labels: Mapping[str, Any], name: str, kind: type[float] | type[int]) -> Any:
    """The label's value; None if the task does not have it. Labels are sent as texts."""
    value = labels.get(name)
    if value is None:
        return None
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise ValueError(f"the label {name}={value!r} is not a number") from None
