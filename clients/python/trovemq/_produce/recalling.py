"""Recalls delayed messages: the handle names the broker that has the message."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import Error as Base64Error

from trovemq._common.backoff import may_pass
from trovemq._common.identity import new_client_id
from trovemq._net.connections import ConnectionPool
from trovemq._wire.producers import ProducerCalls
from trovemq.models.cluster import BrokerInfo
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


async def recall(pool: ConnectionPool, topic: str, handle: str) -> str:
    """Asks the broker that the handle names, else each one that has the topic. Returns the message's unique
    key.

    Raises:
        TroveError: RECALL_HANDLE_ILLEGAL; the error of an unreachable broker has priority over a refusal.
    """
    client_id = new_client_id()
    failures: list[TroveError] = []
    for broker in await _brokers(pool, topic, broker_of(handle)):
        try:
            return await ProducerCalls(pool.connection(broker), client_id).recall(topic, handle)
        except TroveError as error:
            failures.append(error)
    raise next((error for error in failures if may_pass(error)), failures[0])


async def _brokers(pool: ConnectionPool, topic: str, name: str) -> list[BrokerInfo]:
    """The named one, also where a broker of the routes leads to it; else those that have the topic."""
    if name:
        try:
            return await pool.relays.brokers(name)
        except TroveError as error:
            if error.spec is not errors.BROKER_NOT_FOUND:
                raise
    return pool.routes.brokers_of(topic)


def broker_of(handle: str) -> str:
    """The broker's name in `v1 TOPIC BROKER TIME ID`, URL-safe base64; "" if the handle has another form."""
    try:
        parts = urlsafe_b64decode(handle.encode() + b"=" * (-len(handle) % 4)).decode().split(" ")
    except (Base64Error, ValueError):
        return ""
    return parts[2] if len(parts) == 5 and parts[0] == "v1" else ""
