"""The end of a client: it ends its open subscriptions and producers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from trovemq._lookup.lookups import Lookups
from trovemq._net.connections import ConnectionPool
from trovemq._produce.unacknowledged import abandon_all, abort_all, flush_all

if TYPE_CHECKING:
    from trovemq.producer import Producer
    from trovemq.subscription import Subscription


class Closing(Lookups):
    """The part of a client that keeps its producers and subscriptions, and closes them."""

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(pool)
        self._producers: OrderedDict[str, Producer] = OrderedDict()  # the producers of `send`
        self._last_producer: Producer | None = None  # the one used last
        self._all_producers: WeakSet[Producer] = WeakSet()
        self._subscriptions: set[Subscription] = set()  # open subscriptions

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes subscriptions, flushes `send` and `send_oneway`, and disconnects. Open producers drop their
        unsent batches; the log has the number of messages without an acknowledgement. It may be called in
        another event loop than the client's, also after the end of that one."""
        loop = self._pool.loop
        if loop is None or loop is asyncio.get_running_loop():
            await self._close()
        elif loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), loop))
        else:
            abandon_all(self._all_producers)
            self._pool.abandon()

    async def _close(self) -> None:
        try:
            await asyncio.gather(*(subscription.close() for subscription in list(self._subscriptions)))
            for producer in list(self._producers.values()):
                await producer.close()
        finally:  # the rest, too, where the call is cancelled
            await asyncio.gather(*(subscription.close() for subscription in list(self._subscriptions)))
            await abort_all(self._all_producers)
            await self._pool.close()

    async def _close_flushed(self, *, in_time: bool = False) -> None:
        """Flushes all producers for a limited time, and closes. `in_time`: `send` has no more time."""
        await self._flush()
        if in_time:
            await abort_all(self._all_producers)
        await self.close()

    async def _flush(self) -> None:
        await flush_all(list(self._all_producers))
