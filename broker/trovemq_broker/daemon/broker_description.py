"""The description of a broker, or of a follower that serves reads, in routes."""

from __future__ import annotations

from trovemq_broker.cluster.view import BrokerDescription
from trovemq_broker.daemon.led_store import LedStore
from trovemq_broker.produce.append import batch_size_limit
from trovemq_daemon.addresses import Address
from trovemq_store.engine.message_store import MessageStore


def description_of(
    store: MessageStore,
    advertised: Address,
    tls_address: Address | None,
    version: str,
    led: LedStore | None = None,
) -> BrokerDescription:
    settings = store.settings
    return BrokerDescription(
        cluster=settings.cluster,
        name=settings.broker,
        address=str(advertised),
        store_host_ipv6=settings.store_host.startswith("["),
        append_property_crc=settings.append_property_crc,
        body_size_max=settings.body_size_max,
        batch_size_max=batch_size_limit(settings),
        flush_mode=settings.flush_mode,
        version=version,
        tls_address=str(tls_address or ""),
        leader=None if led is None else led.leader(),
    )
