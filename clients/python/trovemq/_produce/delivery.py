"""Delivers a batch: submits it to its broker's stream, retries if that is safe, and ends it once.

| event                                            | then                                                   |
|--------------------------------------------------|--------------------------------------------------------|
| acknowledged; or in the log with a late sync     | the receipt                                            |
| refused, retriable                               | again after a delay, on another queue if movable       |
| BATCH_ILLEGAL, and the broker's settings changed | once more, encoded for the new settings                |
| its number is too old for the broker to decide   | again with a new one: it is not stored                 |
| refused: TOPIC_NOT_FOUND, the topic is new, and  | again, on a queue of the routes                        |
| the routes showed it a moment later              |                                                        |
| refused: TOPIC_NOT_FOUND otherwise               | the error, with the lost broker that had the topic     |
| refused otherwise                                | the error                                              |
| of a FIFO topic whose broker is away or drained, | it waits, as long as its time lasts; attempts do not   |
| or which is closed                               | count                                                  |
| of a replica group without a leader, or with too | the same, for failover_timeout_ms                      |
| few copies                                       |                                                        |
| in the log, and its copies were late: a leader   | again with its number (or retry_in_doubt), for         |
| that comes next may cut it                       | failover_timeout_ms; else the receipt, which says so   |
| never left this client                           | again after a delay, on another queue if movable       |
| left, and no answer came: in doubt               | error, in_doubt=true (or again: retry_in_doubt)        |

Attempts and time are limited; after that the batch fails with the last error. Ordered batches for one queue
are sent one after the other, so that a later batch cannot overtake a retried one. A batch that may be stored,
or whose messages are numbered for a broker, stays with this broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from trovemq._net.connections import ConnectionPool
from trovemq._net.leader_connection import PAUSE_S_MAX
from trovemq._net.leaders import WAITED_FOR
from trovemq._net.new_topics import learn_topic
from trovemq._net.routes import Slot
from trovemq._produce.in_flight import InFlightLimiter
from trovemq._produce.outgoing import Batch, SingleMessages
from trovemq._produce.sequences import SequenceAssigner
from trovemq._produce.slots import SlotChooser
from trovemq.models.cluster import BrokerInfo
from trovemq.receipts import AppendOutcome
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_NO_ROUTE: Final = (errors.BROKER_NOT_FOUND, errors.NOT_LEADER)
_AWAY: Final = (*_NO_ROUTE, errors.BROKER_UNREACHABLE, errors.SERVICE_NOT_AVAILABLE)
_WAITED_FOR: Final = (*_AWAY, errors.TOPIC_CLOSED)


class Delivery:
    """Carries one producer's batches to their brokers.

    Args:
        pool: Routes and streams.
        chooser: Chooses another queue for a movable batch.
        in_flight: Released by a batch's bytes when the batch has ended.
        taken: Called when a batch is written and must not grow any more.
        retry_in_doubt: Whether a batch that may have been stored is sent again.

    Attributes:
        outstanding: The batches that have not ended.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        chooser: SlotChooser,
        in_flight: InFlightLimiter,
        taken: Callable[[Batch], None],
        *,
        retry_in_doubt: bool,
    ) -> None:
        self._pool = pool
        self._chooser = chooser
        self._in_flight = in_flight
        self.batch_taken = taken
        self._retry_in_doubt = retry_in_doubt
        self.outstanding: set[Batch] = set()
        self._lanes: dict[Slot, deque[Batch]] = {}  # ordered batches: the first of a lane is in flight
        self._drained: list[tuple[set[Batch], asyncio.Future[None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: dict[str, list[Batch]] = {}  # batches that wait for the producer's last number
        self._serial = 0
        self.one_way_dropped = 0  # one-way batches that could not be written

    def submit(self, batch: Batch) -> None:
        """Takes charge of a batch."""
        self.outstanding.add(batch)
        if batch.ordered:
            batch.serial = batch.serial or self.next_serial()
            lane = self._lanes.setdefault(batch.slot, deque())
            lane.append(batch)
            if self._is_stale(batch):
                self._choose_again()
                return
            if len(lane) > 1:
                return
        self._dispatch(batch)

    async def drained(self) -> None:
        """Waits until every batch submitted so far has ended."""
        waited_for = set(self.outstanding)
        if waited_for:
            done = asyncio.get_running_loop().create_future()
            self._drained.append((waited_for, done))
            await done

    # --- Owner of the batches -------------------------------------------------------------------------

    def batch_refused(self, batch: Batch, outcome: AppendOutcome) -> None:
        """The broker did not store it: the end, or another attempt."""
        error = outcome.error or TroveError(
            errors.UNKNOWN_ERROR, f"{outcome.broker} answered {outcome.status}"
        )
        if error.spec is errors.BATCH_ILLEGAL and not batch.refreshed:
            batch.refreshed = True
            self._begin(self._refresh(batch, error))
        elif error.spec is errors.PRODUCER_SEQUENCE_TOO_OLD and batch.sequence_assigner is not None:
            batch.numbered_for = ""  # while it waited, thousands of numbers may have been used
            self._again(batch, error, move=False)
        elif error.retriable:
            self._again(batch, error)
        elif error.spec is errors.TOPIC_NOT_FOUND and self._moves_there(batch):
            text = f"broker {outcome.broker} does not have topic {batch.topic} yet"
            self._again(batch, TroveError(errors.TOPIC_CLOSED, text, topic=batch.topic))
        elif error.spec is errors.TOPIC_NOT_FOUND:
            self._begin(self._not_found(batch, error))
        else:
            self._give_up(batch, error)

    def _moves_there(self, batch: Batch) -> bool:
        """Whether other brokers know already that the FIFO topic has queues on the batch's broker. The routes
        may have the topic there by now: they may be newer than the refusal."""
        routes, topic, broker = self._pool.routes, batch.topic, batch.slot.broker
        placed = batch.ordered and routes.is_fifo(topic) and bool(routes.placement(topic).get(broker))
        others = (one.broker.name for one in routes.state.brokers if one.broker.name != broker)
        return placed and any(routes.has_topic(topic, other) for other in others)

    def batch_is_late(self, batch: Batch) -> bool:
        """The copies of a batch did not have it in time. Returns whether it is sent again: a leader that has
        it recognises it."""
        if not self._retry_in_doubt or batch.one_way or not self._pool.has_nodes(batch.slot.broker):
            return False
        delay = self._failover_pause(batch)
        if self._pool.closed or asyncio.get_running_loop().time() + delay >= self._failover_ends(batch):
            return False
        batch.doubtful = True
        batch.stay()
        self._repeat(batch, delay, move=False)
        return True

    def batch_failed(self, batch: Batch, error: TroveError, in_doubt: bool) -> None:
        """No reply will come."""
        if batch.one_way and in_doubt:
            self._give_up(batch, error)
        elif in_doubt and not self._retry_in_doubt:
            self._give_up(batch, marked_in_doubt(error))
        elif error.retriable:
            if in_doubt:  # a broker that deduplicates knows only its own messages: the batch stays there
                batch.doubtful = True
                batch.stay()
            self._again(batch, error)
        else:
            self._give_up(batch, error)

    def batch_done(self, batch: Batch) -> None:
        """Forgets the batch and submits the next one of its lane."""
        outstanding = self.outstanding
        if batch not in outstanding:
            return
        outstanding.discard(batch)
        self._in_flight.give(batch.size)
        if self._drained:
            self._tell_drained(batch)
        if batch.ordered:
            self._next_of_lane(batch)

    def _tell_drained(self, batch: Batch) -> None:
        for waited_for, done in list(self._drained):
            waited_for.discard(batch)
            if not waited_for:
                self._drained.remove((waited_for, done))
                if not done.done():
                    done.set_result(None)

    # --- attempts -------------------------------------------------------------------------------------

    def _next_of_lane(self, batch: Batch) -> None:
        lane = self._leave_lane(batch)
        if lane and lane[0].attempts == 0:
            self._dispatch_if_waiting(lane[0])

    def _leave_lane(self, batch: Batch) -> deque[Batch] | None:
        """The rest of its lane."""
        lane = self._lanes.get(batch.slot)
        if lane is not None:
            lane.remove(batch)
            if not lane:
                del self._lanes[batch.slot]
        return lane

    # --- other queues of a FIFO topic -----------------------------------------------------------------
    def next_serial(self) -> int:
        """The place of a new batch in the order of sending."""
        self._serial += 1
        return self._serial

    def _is_stale(self, batch: Batch) -> bool:
        """Whether its message groups would choose among other queues now, or earlier messages follow it in
        its lane."""
        among = batch.chosen_among
        if among is None:
            return False
        slots = self._pool.routes.ordered_slots(batch.topic)
        if slots is not among and slots != among:
            return True
        lane = self._lanes.get(batch.slot)
        return lane is not None and len(lane) > 1 and lane[0] is batch and lane[1].serial < batch.serial

    def _choose_again(self) -> None:
        """The topic has other queues: the messages that wait get theirs among these, in the order of sending.
        One that is being sent follows when it is refused; while a topic is spread, each of them is."""
        waiting = [
            batch
            for lane in self._lanes.values()
            for batch in lane
            if isinstance(batch, SingleMessages)
            and batch.chosen_among is not None
            and not (batch.sent or batch.doubtful)
        ]
        waiting.sort(key=lambda batch: batch.serial)
        for batch in waiting:
            self.batch_taken(batch)
            self._leave_lane(batch)
        placed = [new for batch in waiting for new in self._replaced(batch)]
        for new in placed:
            self._lanes.setdefault(new.slot, deque()).append(new)
        for new in placed:
            if self._lanes[new.slot][0] is new:
                self._dispatch(new)

    def _replaced(self, batch: SingleMessages) -> list[SingleMessages]:
        """A batch for each queue that its message groups choose now; they take its place."""
        found: dict[Slot, SingleMessages] = {}
        for group, message in batch.by_group():
            slot = self._chooser.of_key(group)
            new = found.get(slot)
            if new is None:
                new = found[slot] = SingleMessages(
                    batch.topic, self, slot, batch.deadline, ordered=True, one_way=batch.one_way
                )
                new.sequence_assigner = batch.sequence_assigner
                new.chosen_among = self._pool.routes.ordered_slots(batch.topic)
                new.serial = batch.serial
            new.take_over(message)
        made = list(found.values())
        if not made:
            self.outstanding.discard(batch)
            self._in_flight.give(batch.size)
            self._tell_drained(batch)
            return made
        share = batch.size // len(made)  # of the producer's back-pressure
        for new in made:
            new.size = share
        made[0].size += batch.size - share * len(made)
        self.outstanding.discard(batch)
        self.outstanding.update(made)
        for waited_for, _ in self._drained:
            if batch in waited_for:
                waited_for.discard(batch)
                waited_for.update(made)
        return made

    def _dispatch(self, batch: Batch) -> None:
        batch.attempts += 1
        batch.sent = True
        route = batch.route
        if route is None or route.version != self._pool.routes.version or route.slot is not batch.slot:
            try:
                route = batch.route = self._chooser.route(batch.slot)
            except TroveError as error:
                self._no_route(batch, error)
                return
        assigner = batch.sequence_assigner
        if assigner is not None and not assigner.knows(route.broker.name):
            self._after_asking(batch, route.broker, assigner)
        else:
            route.stream.submit(batch)

    def _no_route(self, batch: Batch, error: TroveError) -> None:
        """Nothing can be sent to the batch's queue now."""
        if error.spec in _NO_ROUTE:
            self._again(batch, error)
        elif error.spec is errors.TLS_FAILED:
            self._give_up(batch, error)
        else:
            raise error

    def _after_asking(self, batch: Batch, broker: BrokerInfo, sequence_assigner: SequenceAssigner) -> None:
        """Submits the batch when the broker has returned the producer's last number."""
        waiting = self._asking.get(broker.name)
        if waiting is not None:
            waiting.append(batch)
            return
        self._asking[broker.name] = [batch]
        self._begin(self._ask(broker, sequence_assigner))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins work that ends with the deliveries."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _not_found(self, batch: Batch, error: TroveError) -> None:
        """A broker was tried that the routes do not name for the topic, if they named none: it may be new."""
        if batch.slot.broker == "" and batch.movable:
            try:
                if await learn_topic(self._pool, batch.topic):
                    self._again(batch, error)
                    return
            except TroveError as failure:
                error = failure
        self._give_up(batch, await self._pool.explained(error))

    async def _ask(self, broker: BrokerInfo, sequence_assigner: SequenceAssigner) -> None:
        failure: TroveError | None = None
        try:
            connection = self._pool.connection(broker)
            sequence_assigner.begin(
                broker.name,
                await connection.next_sequence(self._chooser.topic, sequence_assigner.producer_id),
            )
        except TroveError as error:
            failure = await self._pool.explained(error)
        for batch in self._asking.pop(broker.name):
            if batch not in self.outstanding:
                continue
            if failure is None:
                self._pool.stream(broker).submit(batch)
            elif failure.retriable:
                self._again(batch, failure)
            else:
                self._give_up(batch, failure)

    def _again(self, batch: Batch, error: TroveError, *, move: bool = True) -> None:
        options, now = self._pool.options, asyncio.get_running_loop().time()
        waits = batch.ordered and error.spec in _WAITED_FOR and self._pool.routes.is_fifo(batch.topic)
        failing_over = self._is_failing_over(batch, error)
        delay = self._failover_pause(batch) if failing_over else options.backoff.seconds(batch.attempts)
        until = batch.deadline if waits or not failing_over else self._failover_ends(batch)
        counted = batch.attempts - batch.failovers
        exhausted = counted >= options.send_attempts_max and not (waits or failing_over)
        if self._pool.closed or now + delay >= until or exhausted:
            self._give_up(batch, self._away(batch, error) if waits and error.spec in _AWAY else error)
            return
        self._repeat(batch, delay, move=move)

    def _repeat(self, batch: Batch, delay: float, *, move: bool) -> None:
        batch.sent = False
        self.batch_taken(batch)  # a batch that is tried again does not grow
        if move and batch.movable and not batch.numbered_for:
            batch.slot = self._chooser.next()
        asyncio.get_running_loop().call_later(delay, self._dispatch_if_waiting, batch)

    def _is_failing_over(self, batch: Batch, error: TroveError) -> bool:
        """Whether the batch waits for another leader of a replica group, or for copies. Such attempts do not
        count."""
        broker = batch.slot.broker
        if error.spec not in WAITED_FOR or not self._pool.has_nodes(broker):
            return False
        self._pool.note_failure(broker, error)
        return True

    def _failover_pause(self, batch: Batch) -> float:
        batch.failing_since = batch.failing_since or asyncio.get_running_loop().time()
        batch.failovers += 1
        return min(self._pool.options.backoff.seconds(batch.failovers), PAUSE_S_MAX)

    def _failover_ends(self, batch: Batch) -> float:
        patience_s = self._pool.options.failover_timeout_ms / 1000
        return min(batch.deadline, batch.failing_since + patience_s)

    def _away(self, batch: Batch, error: TroveError) -> TroveError:
        """Why a message of a FIFO topic has waited in vain."""
        topic, name = batch.topic, batch.slot.broker
        broker = self._pool.routes.find(name)
        state = "is away" if broker is None or not broker.draining else "is drained"
        text = (
            f"broker {name} {state} ({error.message}): a FIFO topic's sends wait for it, so that each group"
            f" keeps its order; to use other brokers: trovemq topic spread {topic} --brokers …"
        )
        return TroveError(errors.FIFO_BROKER_AWAY, text, broker=name, topic=topic)

    def _dispatch_if_waiting(self, batch: Batch) -> None:
        if batch not in self.outstanding:
            return
        if self._is_stale(batch):
            self._choose_again()
        else:
            self._dispatch(batch)

    async def _refresh(self, batch: Batch, error: TroveError) -> None:
        """Fetches the routes; retries once if the broker needs another form now."""
        before = batch.route
        try:
            await self._pool.refresh()
            changed = before is None or self._chooser.route(batch.slot).form != before.form
        except TroveError as failure:
            self._give_up(batch, failure)
            return
        if changed:
            self._dispatch_if_waiting(batch)
        else:
            self._give_up(batch, error)

    async def close(self, error: TroveError) -> None:
        """Fails the remaining batches."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lanes.clear()
        for batch in list(self.outstanding):
            self._give_up(batch, error)

    def _give_up(self, batch: Batch, error: TroveError) -> None:
        if batch in self.outstanding:
            self.batch_taken(batch)  # or messages would join a batch that is never sent
            self.one_way_dropped += batch.one_way
            batch.fail(marked_in_doubt(error) if batch.doubtful and "in_doubt" not in error.fields else error)


def marked_in_doubt(error: TroveError) -> TroveError:
    """The error, marked as in doubt: the message may have been stored."""
    text = f"{error.message}; the message may have been stored"
    return TroveError(error.spec, text, **{**error.fields, "in_doubt": "true"})
