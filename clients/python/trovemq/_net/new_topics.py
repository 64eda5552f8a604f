"""A topic that was created a moment ago, and that the routes lack.

A broker acknowledges a creation before each nameserver has heard of it, and where brokers share a
configuration, before each of them has made it. Another client, or another program, may use the topic then.
"""

from __future__ import annotations

from trovemq._net.all_brokers import outcomes_of
from trovemq._net.connections import ConnectionPool
from trovemq.models.cluster import BrokerInfo, TopicDescription


async def learn_topic(pool: ConnectionPool, topic: str) -> bool:
    """Whether the routes have the topic. Where they do not, fetches them again; then, if a broker says that
    the topic exists on a live broker, waits until they show it: at most `connect_timeout_ms`. Raises
    TroveError if no server answers."""
    routes = pool.routes

    def is_routed() -> bool:
        return any(routes.has_topic(topic, route.broker.name) for route in routes.state.brokers)

    if is_routed():
        return True
    await pool.refresh()
    if not is_routed() and await _exists(pool, topic):
        await routes.wait_until(is_routed, pool.options.connect_timeout_ms / 1000)
    return is_routed()


async def _exists(pool: ConnectionPool, topic: str) -> bool:
    """Whether a live broker has the topic, or is to get it. System topics never come into the routes."""
    live = [route.broker for route in pool.routes.state.brokers]

    async def describe(broker: BrokerInfo) -> TopicDescription:
        return await pool.connection(broker).describe_topic(topic)

    names = {broker.name for broker in live}
    for found in await outcomes_of(describe(broker) for broker in live):
        if isinstance(found, TopicDescription) and not found.system:
            placement = found.placement or {found.broker: found.queue_count}
            if not names.isdisjoint(placement):
                return True
    return False
