"""The calls about the cluster's configuration: requests, answers, missing brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer, abort
from trovemq import ConfigMember, ConfigName, ConfigStatus, ConfigTakeOver
from trovemq.models.config import ConfigGeneration
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import cluster_config_pb2 as pb

pytestmark = pytest.mark.asyncio

MARK = "0123456789abcdef"
GENERATION = pb.ConfigGeneration(number=2, mark=MARK)
HEAD = pb.ConfigHead(cluster="c1", owner="b1", generation=GENERATION, version=7, digest="d")


@dataclass
class FakeConfig:
    """ClusterConfigService of one broker. `failure` is the answer of a take-over, if it is set."""

    status: pb.ConfigStatus
    taken: list[tuple[str, str]] = field(default_factory=list)
    failure: TroveError | None = None

    async def get_config_status(self, request: object, context: Any) -> pb.ConfigStatus:
        return self.status

    async def take_over_config(
        self, request: pb.TakeOverConfigRequest, context: Any
    ) -> pb.TakeOverConfigReply:
        self.taken.append((request.cluster, request.source))
        if self.failure is not None:
            await abort(context, self.failure)
        return pb.TakeOverConfigReply(
            head=HEAD,
            source="b2",
            promised=["b1", "b2"],
            unreached=["b3"],
            dropped=[pb.ConfigName(kind="topic", name="orders", message="2.0123:8")],
        )


async def restarted(server: FakeServer, config: FakeConfig) -> FakeConfig:
    """The broker with that service."""
    await server.stop()
    server.config = config
    await server.start()
    return config


async def test_the_status_has_every_field(broker: FakeServer, connect: Connect) -> None:
    lists = {
        name: [pb.ConfigName(kind="topic", name=name, message="m")]
        for name in ("unlisted", "differing", "withheld", "dropped", "failed")
    }
    status = pb.ConfigStatus(
        broker="b1",
        state="owner",
        problem="p",
        head=HEAD,
        promised=pb.ConfigGeneration(number=3, mark=MARK),
        members=[pb.ConfigMember(broker="b2", version=6, live=True)],
        **lists,
    )
    await restarted(broker, FakeConfig(status))
    (found,) = await (await connect(broker)).admin.config.status()
    assert found == ConfigStatus(
        broker="b1",
        state="owner",
        problem="p",
        cluster="c1",
        owner="b1",
        generation=ConfigGeneration(2, MARK),
        version=7,
        digest="d",
        promised=ConfigGeneration(3, MARK),
        members=(ConfigMember("b2", 6, True),),
        **{name: (ConfigName("topic", name, "m"),) for name in lists},
    )
    assert (found.is_owner, found.has_table, str(found.generation)) == (True, True, "2.0123")


async def test_a_broker_that_is_away_is_missing_and_hides_no_other(
    broker: FakeServer, other: FakeServer, nameserver: FakeServer, connect: Connect
) -> None:
    await restarted(broker, FakeConfig(pb.ConfigStatus(broker="b1", state="alone")))
    client = await connect(nameserver, call_timeout_ms=2_000)
    await other.stop()
    found = await client.admin.config.status()
    assert [(one.broker, one.state, one.has_table) for one in found] == [("b1", "alone", False)]
    assert found.missing == ("b2",)


async def test_an_older_broker_made_the_status_of_all_fail(
    broker: FakeServer, other: FakeServer, nameserver: FakeServer, connect: Connect
) -> None:
    await restarted(broker, FakeConfig(pb.ConfigStatus(broker="b1", state="owner", head=HEAD)))
    found = await (await connect(nameserver)).admin.config.status()
    assert {one.broker: one.state for one in found} == {"b1": "owner", "b2": "unknown"}


async def test_a_take_over_is_made_by_the_named_broker(
    broker: FakeServer, other: FakeServer, nameserver: FakeServer, connect: Connect
) -> None:
    config = await restarted(broker, FakeConfig(pb.ConfigStatus(broker="b1")))
    client = await connect(nameserver)
    made = await client.admin.config.take_over("b1")
    assert made == ConfigTakeOver(
        cluster="c1",
        owner="b1",
        generation=ConfigGeneration(2, MARK),
        version=7,
        source="b2",
        promised=("b1", "b2"),
        unreached=("b3",),
        dropped=(ConfigName("topic", "orders", "2.0123:8"),),
    )
    await client.admin.config.take_over("b1", cluster="c1", source="b2")
    assert config.taken == [("", ""), ("c1", "b2")]


async def test_refusals_of_a_take_over(
    broker: FakeServer, other: FakeServer, nameserver: FakeServer, connect: Connect
) -> None:
    refusal = TroveError(errors.CONFIG_OWNER_OLD, "name the broker whose copy continues")
    await restarted(broker, FakeConfig(pb.ConfigStatus(broker="b1"), failure=refusal))
    config = (await connect(nameserver)).admin.config
    for name, spec in (("b1", errors.CONFIG_OWNER_OLD), ("b9", errors.BROKER_NOT_FOUND)):
        with pytest.raises(TroveError) as caught:
            await config.take_over(name)
        assert caught.value.spec is spec
    with pytest.raises(TroveError, match="source is text"):
        await config.take_over("b1", source=1)  # type: ignore[arg-type]
