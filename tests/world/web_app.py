"""A Starlette application with a worker in its lifespan, for the web servers of test_web_servers.py."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

import trovemq

handlers = trovemq.Handlers()


@handlers.handle("orders", group="web", start="earliest")
async def handle(message: trovemq.ReceivedMessage) -> None:
    print("handled", message.body.decode(), flush=True)


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    async with trovemq.connect(os.environ["BROKER"]) as client, client.run(handlers):
        yield
    print("ended", flush=True)


app = Starlette(lifespan=lifespan)
