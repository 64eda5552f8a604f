"""The client for scripts, threads, Django and Celery: the asyncio client's names with blocking calls.

    import trovemq.sync

    with trovemq.sync.connect("127.0.0.1:8081") as client:
        client.send("orders", b"...", keys=["42"], tag="paid")
        with client.subscribe("orders", group="billing") as messages:
            for message in messages:
                with message.process():
                    ...

Arguments, results and errors are those of `trovemq`. All clients of a process share one event loop in a
background thread. A client belongs to its process: after a fork, connect again.
"""

from __future__ import annotations

from trovemq.sync.admin import Admin
from trovemq.sync.client import Client, connect
from trovemq.sync.producer import AtomicTransaction, Producer, Transaction
from trovemq.sync.received import ReceivedBatch, ReceivedMessage
from trovemq.sync.running import Running
from trovemq.sync.subscription import Handler, Subscription

__all__ = [
    "Admin",
    "AtomicTransaction",
    "Client",
    "Handler",
    "Producer",
    "ReceivedBatch",
    "ReceivedMessage",
    "Running",
    "Subscription",
    "Transaction",
    "connect",
]
