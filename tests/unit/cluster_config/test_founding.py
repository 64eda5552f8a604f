"""What a founder has is made equally on every other broker, whatever it is."""

from __future__ import annotations

import asyncio

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.cluster_config.config_values import GROUPS, QUOTAS, RULES, USERS, topic_configs
from tests.unit.cluster_config.local_bench import ClusterTable, LocalBench
from trovemq_broker.cluster_config.entries import Kind
from trovemq_broker.security.changes import SecurityState


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_a_founder_has_an_empty_broker_gets_it_equally(data: st.DataObject) -> None:
    cluster = ClusterTable()
    founder, other = LocalBench(cluster, "a"), LocalBench(cluster, "b")
    assert founder.security is not None
    config, group = data.draw(topic_configs()), data.draw(GROUPS)
    users = {user.access_key: user for user in data.draw(st.lists(USERS, max_size=3))}
    rules = {rule.number: rule for rule in data.draw(st.lists(RULES, max_size=3))}
    quotas = data.draw(st.dictionaries(st.sampled_from(["User:*", "Address:::1", "Client:a"]), QUOTAS))
    assume(not config.options.deduplicate_ms)  # these brokers have no index

    async def found_and_join() -> None:
        assert founder.security is not None
        assert await founder.topic_changes.put_all({"T": lambda _: config}) == {}
        assert await founder.group_changes.put_all({"G": lambda _: group}) == {}
        state = SecurityState(users, rules, max(rules, default=0) + 1, quotas)
        await founder.security.apply(lambda _: state)
        cluster.make(*founder.local.founding())
        entry = cluster.table.live(Kind.TOPIC, "T")
        assert entry is not None
        cluster.alter(Kind.TOPIC, "T", {"a": config.queue_count, "b": config.queue_count}, **entry.settings)
        await founder.follow()
        await other.follow()

    asyncio.run(found_and_join())
    assert other.local.entries() == founder.local.entries()
    assert len(other.local.entries()) == 2 + len(users) + len(rules) + len(quotas)
