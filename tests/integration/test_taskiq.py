"""TroveMQ as taskiq's broker: when a task is acknowledged, retried, delayed, in which order, and the stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from taskiq import AsyncBroker, Context, SimpleRetryMiddleware, SmartRetryMiddleware, TaskiqDepends
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from trovemq.taskiq import TroveMQBroker
from trovemq.testing import BrokerProcess
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

NAMES = count(1)
WAIT_SECONDS = 240


@pytest.fixture(scope="module")
def daemon() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


Make = Callable[..., TroveMQBroker]


@pytest_asyncio.fixture
async def make(daemon: BrokerProcess) -> AsyncIterator[Make]:
    """Makes brokers of one topic and group, which are shut down at the end."""
    made: list[AsyncBroker] = []
    name = f"tasks-{next(NAMES)}"

    def make_broker(**arguments: Any) -> TroveMQBroker:
        broker = TroveMQBroker(daemon.address, topic=name, group=name, queue_count=1, **arguments)
        made.append(broker)
        return broker

    yield make_broker
    for broker in made:
        await broker.shutdown()


@asynccontextmanager
async def worker(
    broker: AsyncBroker, ack_type: AcknowledgeType | None = None
) -> AsyncIterator[asyncio.Event]:
    """What the command `taskiq worker` runs; the event ends it."""
    finish = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=100, run_startup=False, ack_type=ack_type)
    listening = asyncio.create_task(receiver.listen(finish))
    try:
        yield finish
    finally:
        finish.set()
        await asyncio.wait_for(listening, WAIT_SECONDS)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def left(broker: TroveMQBroker) -> int:
    """Tasks that the group has not consumed."""
    lag = await broker.client.admin.groups.lag(broker.group, broker.topic)
    return sum(queue.lag for queue in lag)


async def test_a_task_runs_once_and_is_found_by_its_id(make: Make) -> None:
    broker, ran = make(), []

    @broker.task("add")
    async def add(one: int, two: int) -> None:
        ran.append(one + two)

    await broker.startup()
    sent = await add.kiq(1, two=2)
    async with worker(broker):
        await until(lambda: ran)
    assert ran == [3]
    assert await left(broker) == 0
    (message,) = (await broker.client.query(broker.topic, sent.task_id)).messages
    assert message.user_properties == {"task": "add"}


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        (AcknowledgeType.WHEN_RECEIVED, False),
        (AcknowledgeType.WHEN_EXECUTED, False),
        (AcknowledgeType.MANUAL, True),
    ],
)
async def test_a_task_is_acknowledged_when_its_policy_says(
    make: Make, policy: AcknowledgeType, again: bool
) -> None:
    first, second, ran = make(), make(), []

    def register(broker: AsyncBroker, name: str) -> Any:
        @broker.task("work")
        async def work() -> None:
            ran.append(name)

        return work

    kicked = register(first, "first")
    register(second, "second")
    await first.startup()
    await kicked.kiq()
    async with worker(first, policy):
        await until(lambda: ran)
    await first.shutdown()
    await second.startup()
    assert (await left(second) > 0) is again
    async with worker(second):
        if again:
            await until(lambda: len(ran) == 2)
    assert ran == (["first", "second"] if again else ["first"])


async def test_a_task_that_acknowledges_itself_is_not_delivered_again(make: Make) -> None:
    broker, ran = make(), []

    @broker.task("work", ack_type="manual")
    async def work(context: Context = TaskiqDepends()) -> None:  # noqa: B008  taskiq's form
        await context.ack()
        ran.append(1)

    await broker.startup()
    await work.kiq()
    async with worker(broker):
        await until(lambda: ran)
    assert await left(broker) == 0


@pytest.mark.parametrize(
    "retries", [SimpleRetryMiddleware(), SmartRetryMiddleware(default_delay=0.1)], ids=["at once", "later"]
)
async def test_a_failed_task_is_retried(make: Make, retries: Any) -> None:
    broker, times = make(), []
    broker.add_middlewares(retries)

    @broker.task("work", retry_on_error=True, max_retries=3)
    async def work() -> None:
        times.append(time.monotonic())
        if len(times) < 3:
            raise ConnectionError("not yet")

    await broker.startup()
    await work.kiq()
    async with worker(broker):
        await until(lambda: len(times) == 3)
    assert await left(broker) == 0
    if isinstance(retries, SmartRetryMiddleware):
        assert times[2] - times[0] >= 0.2


async def test_many_tasks_at_once_run_once_each(make: Make) -> None:
    broker, ran = make(), []

    @broker.task("work")
    async def work(number: int) -> None:
        ran.append(number)

    await broker.startup()
    await asyncio.gather(*(work.kiq(number) for number in range(300)))
    async with worker(broker):
        await until(lambda: len(ran) >= 300)
    assert sorted(ran) == list(range(300))
    assert await left(broker) == 0


async def test_a_delayed_task_does_not_run_before_its_time(make: Make) -> None:
    broker, ran = make(), []

    @broker.task("work")
    async def work(name: str) -> None:
        ran.append((name, time.monotonic()))

    await broker.startup()
    began = time.monotonic()
    await work.kicker().with_labels(delay=0.4).kiq("later")
    await work.kiq("now")
    async with worker(broker):
        await until(lambda: len(ran) == 2)
    assert [name for name, _ in ran] == ["now", "later"]
    assert ran[1][1] - began >= 0.4


async def test_a_task_of_a_higher_priority_runs_before(make: Make) -> None:
    broker, ran = make(by_priority=True), []

    @broker.task("work")
    async def work(priority: int | None) -> None:
        ran.append(priority)

    await broker.startup()
    for priority in (0, 9, None, 5):
        labels = {} if priority is None else {"priority": priority}
        await work.kicker().with_labels(**labels).kiq(priority)
    async with worker(broker):
        await until(lambda: len(ran) == 4)
    assert ran == [9, 5, None, 0]


async def test_at_a_stop_running_tasks_end_and_the_rest_is_returned(make: Make) -> None:
    first, second, ran = make(), make(), []
    proceed, started = asyncio.Event(), asyncio.Event()

    @first.task("work", timeout=WAIT_SECONDS)
    async def work(number: int) -> None:
        started.set()
        await proceed.wait()
        ran.append(("first", number))

    @second.task("work")
    async def work_too(number: int) -> None:
        ran.append(("second", number))

    await first.startup()
    await work.kiq(0)
    async with worker(first) as finish:
        await asyncio.wait_for(started.wait(), WAIT_SECONDS)
        finish.set()
        await work.kiq(1)
        await asyncio.sleep(0)
        proceed.set()
    await first.shutdown()
    assert ran == [("first", 0)]
    await second.startup()
    async with worker(second):
        await until(lambda: len(ran) == 2)
    assert ran == [("first", 0), ("second", 1)]
    assert await left(second) == 0


async def test_a_topic_that_takes_no_delayed_tasks_is_refused_at_the_start(
    daemon: BrokerProcess,
) -> None:
    daemon.client.admin.create_topic("plain", queue_count=1)
    broker = TroveMQBroker(daemon.address, topic="plain")
    with pytest.raises(TroveError, match="trovemq topic alter plain --type MIXED"):
        await broker.startup()
    await broker.shutdown()
    as_it_is = TroveMQBroker(daemon.address, topic="plain", create_topic=False)
    await as_it_is.startup()
    await as_it_is.shutdown()


async def test_a_broker_that_is_not_started_says_so(make: Make) -> None:
    broker = make()

    @broker.task("work")
    async def work() -> None: ...

    with pytest.raises(SendTaskError) as failure:
        await work.kiq()
    assert isinstance(failure.value.__cause__, TroveError)
    assert failure.value.__cause__.spec is errors.CLIENT_CLOSED
    assert "await broker.startup()" in str(failure.value.__cause__)


@pytest.mark.parametrize("label", ["delay", "priority"])
async def test_a_label_that_is_no_number_is_refused(make: Make, label: str) -> None:
    broker = make()

    @broker.task("work")
    async def work() -> None: ...

    await broker.startup()
    with pytest.raises(SendTaskError) as failure:
        await work.kicker().with_labels(**{label: "soon"}).kiq()
    assert str(failure.value.__cause__) == f"the label {label}='soon' is not a number"


async def test_a_wrong_url_ends_with_one_error(daemon: BrokerProcess) -> None:
    broker = TroveMQBroker(f"trovemq://{daemon.address}?colour=red", topic="any")
    with pytest.raises(TroveError, match="a URL has no option 'colour'; it may have"):
        await broker.startup()
    await broker.shutdown()


async def test_a_task_without_a_topic_says_how_to_create_it(daemon: BrokerProcess) -> None:
    broker = TroveMQBroker(daemon.address, topic="missing", create_topic=False)

    @broker.task("work")
    async def work() -> None: ...

    await broker.startup()
    with pytest.raises(SendTaskError) as failure:
        await work.kiq()
    assert "trovemq topic create missing" in str(failure.value.__cause__)
    await broker.shutdown()


async def test_a_task_that_cannot_be_serialized_is_not_sent(make: Make) -> None:
    broker = make()

    @broker.task("work")
    async def work(argument: object) -> None: ...

    await broker.startup()
    with pytest.raises(SendTaskError) as failure:
        await work.kiq(object())
    assert "Unable to serialize unknown type" in str(failure.value.__cause__)
    assert [one.max_offset for one in await broker.client.queue_offsets(broker.topic)] == [0]
