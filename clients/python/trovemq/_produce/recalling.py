"""Recalls delayed messages: the handle names the broker that has the message."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import Error as Base64Error

from trovemq._common.backoff import may_pass
from trovemq._common.identity import new_client_id
from trovemq._net.connections import ConnectionPool
from trovemq._wire.producers import ProducerCalls
from trovemq_proto.errors import TroveError


async def recall(pool: ConnectionPool, topic: str, handle: str) -> str:
    """Asks the broker that the handle names, else each one that has the topic. Returns the message's unique
    key.

    Raises:
        TroveError: RECALL_HANDLE_ILLEGAL; the error of an unreachable broker has priority over a refusal.
    """
    named = pool.routes.find(broker_of(handle))
    brokers = [named] if named is not None else pool.routes.brokers_of(topic)
    client_id = new_client_id()
    failures: list[TroveError] = []
    for broker in brokers:
        try:
            return await ProducerCalls(pool.connection(broker), client_id).recall(topic, handle)
        except TroveError as error:
            failures.append(error)
    raise next((error for error in failures if may_pass(error)), failures[0])


def broker_of(handle: str) -> str:
    """The broker's name in `v1 TOPIC BROKER TIME ID`, URL-safe base64; "" if the handle has another form."""
    try:
        parts = urlsafe_b64decode(handle.encode() + b"=" * (-len(handle) % 4)).decode().split(" ")
    except (Base64Error, ValueError):
        return ""
    return parts[2] if len(parts) == 5 and parts[0] == "v1" else ""
