"""Stores: which brokers are asked."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trovemq._admin.stores import Stores
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

pytestmark = pytest.mark.asyncio


class Broker:
    def __init__(self, name: str) -> None:
        self.name = name


class ConnectionPool:
    """Two brokers, none of which may be called."""

    @property
    def routes(self) -> ConnectionPool:
        return self

    def brokers(self, name: str | None) -> list[Broker]:
        return [Broker(name)] if name else [Broker("broker-a"), Broker("broker-b")]

    def connection(self, broker: Broker) -> object:
        raise AssertionError(f"{broker.name} is called")

    async def explained(self, error: TroveError) -> TroveError:
        """No broker is lost."""
        return error


async def test_a_backup_is_of_one_broker() -> None:
    with pytest.raises(TroveError, match="name one of broker-a, broker-b") as caught:
        await anext(Stores(cast("Any", ConnectionPool())).backup("/backups/1"))
    assert caught.value.spec is errors.BROKER_AMBIGUOUS


@pytest.mark.parametrize("rate", [0, -1, 1 << 41])
async def test_a_rate_is_checked_before_anything_is_asked(rate: int) -> None:
    stores = Stores(cast("Any", ConnectionPool()))
    for call in (stores.scrub(bytes_per_second=rate), stores.backup("/b", broker="a", bytes_per_second=rate)):
        with pytest.raises(TroveError, match="bytes_per_second"):
            await anext(call)
