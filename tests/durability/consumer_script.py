"""The whole script: the engine's steps with those of consumers, timers and transactions among them."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.durability.engine_script import STEPS, WORKERS
from tests.durability.tree_script import TreeScript, void
from tests.support.settling import acknowledge, dead_letter
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_proto.positions import QueueId
from trovemq_proto.records import decode_message
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.topics.subscription_groups import SubscriptionGroup

LEASE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000


class ConsumerScript(TreeScript):
    """run() goes through everything once; the ledger has the promises until then."""

    def run(self) -> None:
        """StoppedError where the engine failed for good."""
        self.opened()
        self.first_life()
        self.attempt(self.sync)
        self.crash()
        self.tear_tail()
        self.opened()
        self.use_keys(2)
        self.second_life()
        self.close()
        self.opened()
        self.fill(4)
        self.attempt(self.sync)
        self.flush_projections()
        self.crash()
        self.lose_queue()
        self.spoil_trees()
        self.opened()
        self.use_keys(2)
        self.attempt(partial(self.transact, 1))
        self.fill(3)
        self.consume("lines", STEPS, acknowledged=0)
        self.attempt(self.sync)
        self.close()

    def first_life(self) -> None:
        self.fill(12)
        for _ in range(3):
            self.attempt(lambda: self.send("tasks", QueueId(0), [40, 60, 80]))
            self.attempt(lambda: self.send("lines", QueueId(0), [30, 30]))
        self.attempt(lambda: self.send("temp", QueueId(0), [50, 50]))
        for delay_ms in (400, 700, 700, HOUR_MS // 4, HOUR_MS // 4):
            self.attempt(partial(self.schedule, delay_ms))
        for _ in range(4):
            self.attempt(self.prepare)
        self.attempt(lambda: self.prepare(immunity_ms=2 * HOUR_MS))
        self.attempt(self.sync)
        self.end_open("committed")
        self.end_open("rolled")
        self.consume("tasks", WORKERS, acknowledged=2)
        self.consume("lines", STEPS, acknowledged=1)
        self.use_keys(4)
        self.attempt(partial(self.transact, 2, "tasks"))
        self.grow_trees()
        self.flush_projections()
        self.attempt(self.commit_offset)
        self.attempt(self.persist_offsets)
        self.attempt(self.snapshot)
        self.attempt(lambda: self.send("temp", QueueId(1), [50, 50]))
        self.attempt(self.sync)
        self.attempt(self.delete_temp)
        self.fill(4)

    def second_life(self) -> None:
        self.attempt(self.sync)
        self.tick(800)
        self.deliver_timers()
        self.fill(10)
        self.consume("tasks", WORKERS, acknowledged=1, dead=1)
        self.give_up_transactions()
        self.attempt(self.prepare)
        self.attempt(self.sync)
        self.flush_projections()
        self.attempt(self.snapshot)
        self.attempt(lambda: self.send("temp", QueueId(0), [50, 50]))
        self.attempt(self.write_tables)
        self.attempt(self.delete_temp)
        for _ in range(2):
            self.attempt(self.expire)
        self.fill(6)
        self.use_keys(3)
        self.attempt(partial(self.transact, 2, "tasks"))
        self.attempt(self.commit_offset)
        self.attempt(self.sync)
        self.attempt(self.persist_offsets)

    # --- timers -------------------------------------------------------------------------------------
    def schedule(self, delay_ms: int) -> None:
        body, now_ms = self.body(20), self.tick()
        self.ledger.due_ms[body] = now_ms + delay_ms
        record = NewRecord("later", QueueId(0), body, {"UNIQ_KEY": body.decode()}, now_ms)
        self.model.timers.schedule(record, now_ms + delay_ms, now_ms)
        self.ledger.status[body] = "waits"

    def deliver_timers(self) -> None:
        for _ in range(8):
            self.attempt(lambda: void(self.model.timers.deliver_due(self.tick())))
            self.attempt(self.sync)

    # --- transactions -------------------------------------------------------------------------------
    def prepare(self, immunity_ms: int = 0) -> None:
        body, now_ms = self.body(25), self.tick()
        record = NewRecord("deals", QueueId(0), body, {"UNIQ_KEY": body.decode()}, now_ms)
        self.model.transactions.prepare(record, now_ms, immunity_ms=immunity_ms)
        self.ledger.status[body] = "open"

    def end_open(self, result: str) -> None:
        body = next(body for body, status in self.ledger.status.items() if status == "open")

        def end() -> None:
            self.ledger.status[body] = f"perhaps {result}"
            try:
                self.model.transactions.end(body.decode(), "deals", result == "committed", self.tick())
            finally:
                done = self.model.transactions.open_by_topic.get("deals", 0) < before
                self.ledger.status[body] = result if done else f"perhaps {result}"

        before = self.model.transactions.open_by_topic.get("deals", 0)
        self.attempt(end)
        self.attempt(self.sync)

    def give_up_transactions(self) -> None:
        """No client answers: asked once, then moved away."""
        for body, status in self.ledger.status.items():
            if status == "open":
                self.ledger.status[body] = "perhaps given up"
        for _ in range(3):
            self.tick(HOUR_MS // 60)
            self.attempt(lambda: void(self.model.transactions.due_checks(self.now_ms)))
            self.attempt(self.sync)

    # --- deliveries ---------------------------------------------------------------------------------
    def consume(self, topic: str, group: SubscriptionGroup, *, acknowledged: int, dead: int = 0) -> None:
        self.attempt(self.sync)
        request = ReceiveRequest(
            group=group, topic=topic, count_max=5, invisible_ms=LEASE_MS, now_ms=self.tick()
        )
        found: list[tuple[bytes, Delivered]] = []

        def receive() -> None:
            for one in self.model.delivery.receive(request):
                body = decode_message(one.record).body
                found.append((body, one))
                self.ledger.in_flight.add(body)

        self.attempt(receive)
        self.attempt(self.sync)
        for body, one in found[:acknowledged]:
            self.ledger.status[body] = "acknowledged"
            acknowledge(self.model.delivery, group.name, topic, one.receipt_handle, self.tick())
        for body, one in found[acknowledged : acknowledged + dead]:

            def die(body: bytes = body, one: Delivered = one) -> None:
                self.ledger.status[body] = "perhaps dead"
                dead_letter(self.model.delivery, group.name, topic, one.receipt_handle, self.tick())
                self.ledger.status[body] = "dead"

            self.attempt(die)
        self.attempt(self.sync)
