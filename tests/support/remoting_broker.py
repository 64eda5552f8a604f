"""A broker in the test's process that serves remoting, and a raw client of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.support.broker_here import BrokerHere, broker_here
from tests.support.remoting_client import RemotingClient, remoting_client


def served(path: Path, run: Callable[[BrokerHere, RemotingClient], Awaitable[None]], **settings: Any) -> None:
    """Runs the test with both."""

    async def main() -> None:
        async with (
            broker_here(path, remoting_enable=True, **settings) as broker,
            remoting_client(broker.address) as client,
        ):
            await run(broker, client)

    asyncio.run(main())
