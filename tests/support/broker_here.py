"""A whole broker in the test's own process and event loop, so that a test can break its disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.broker_process import Stubs
from trovemq_broker.daemon.app import BrokerApp
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.lifecycle import Stop
from trovemq_proto.v1 import admin_pb2


@dataclass
class BrokerHere:
    """A broker that serves, and a connection to it."""

    app: BrokerApp
    stubs: Stubs
    address: str
    http: str

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the operations HTTP."""
        async with httpx.AsyncClient() as client:
            reply = await client.get(f"http://{self.http}{path}")
        return reply.status_code, reply.text

    async def create_topic(self, topic: str = "orders", queue_count: int = 4) -> None:
        await self.stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic, queue_count=queue_count))

    async def counters(self) -> dict[str, int]:
        return dict((await self.stubs.admin.GetStatistics(admin_pb2.GetStatisticsRequest())).counters)


def small_settings(path: Path, **values: Any) -> BrokerSettings:
    small = {
        "listen": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "commit_log_file_size": 65_536,
        "consume_queue_file_size": 20_000,
        "index_slot_count": 100,
        "index_item_count": 400,
        "body_size_max": 16_384,
        "projection_flush_interval_ms": 20,
    }
    settings: dict[str, Any] = {**small, **values}
    return BrokerSettings(store=str(path), **settings)


@asynccontextmanager
async def broker_here(path: Path, **values: Any) -> AsyncIterator[BrokerHere]:
    """Ends it cleanly at the end of the block; its error is raised there."""
    app, stop = BrokerApp(small_settings(path, **values)), Stop()
    running = asyncio.create_task(app.run(stop))
    running.add_done_callback(lambda _: app.serving.cancel())
    try:
        listening = await app.serving
    except asyncio.CancelledError:
        running.result()  # says why it did not start
        raise
    try:
        async with Stubs(str(listening.grpc)) as stubs:
            yield BrokerHere(app, stubs, str(listening.grpc), str(listening.http))
    finally:
        stop.request("the test is over")
        await running
