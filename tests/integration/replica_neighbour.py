"""One of two nodes, of this version or another: `python -P replica_neighbour.py lead|follow COUNT [PORT]`.

It runs on the modules of that version, the wiring of nodes_here.py among them. The leader prints where it
listens, and sends COUNT times once the follower is in sync; both print the hash of the log when all of it is
committed. The leader ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from unittest.mock import patch

import trovemq_broker
from tests.support.services_here import InlineSync
from tests.unit.replica_streams.nodes_here import CLUSTER, GroupHere, NodeHere
from trovemq_broker.replica_streams.service import ReplicationService, listener_limits
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics, new_registry

SECONDS_MAX = 60


class RealNode(NodeHere):
    """Listens on a real port."""

    async def _listen(self) -> None:
        metrics = RpcMetrics(new_registry("1"), cluster=CLUSTER, node_type="broker", node_id=self.name)
        limits = listener_limits(GrpcLimits(transport="trovemq"), self.group.settings)
        self.server = GrpcServer(limits, metrics, self.allowed.handler)
        ReplicationService(self, self.allowed, self.group.settings).add_to(self.server.server)
        self.address = self.server.bind(Address("127.0.0.1", 0))
        await self.server.start()


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def own_node(group: GroupHere, name: str) -> NodeHere:
    """The other one is in another process."""
    node = RealNode(group, name)
    node.in_sync = group[name].in_sync
    group.nodes[name] = node
    return node


async def main(role: str, count: int, port: int) -> None:
    group = GroupHere("a", "b")
    node = own_node(group, "a" if role == "lead" else "b")
    await node.start()
    if role == "lead":
        await lead(group, node, count)
    else:
        group["a"].address = Address("127.0.0.1", port)
        group.leader = group["a"]
        await node.follow()
        await group.until(lambda: len(node.bodies.get(("orders", 0), ())) > count, SECONDS_MAX)
        await group.until(lambda: node.state.commit == node.store.end_offset, SECONDS_MAX)
    log = hashlib.sha256(b"".join(data for _, data in sorted(node.log_bytes.items()))).hexdigest()
    say(log=log, broker=str(Path(trovemq_broker.__file__).parent))
    if role == "lead":
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.kill()


async def lead(group: GroupHere, node: NodeHere, count: int) -> None:
    await node.lead(1)
    say(port=node.address.port)
    await group.until(lambda: node.leading().copies == 2 and node.leading().leader.is_open, SECONDS_MAX)
    for number in range(count):
        node.send(1, 100 + number * 997 % 5_000)
        await asyncio.sleep(0.001)
    await group.until(lambda: node.leading().commit_offset == node.store.end_offset, SECONDS_MAX)


if __name__ == "__main__":
    with patch("trovemq_broker.produce.group_commit.SyncThread", InlineSync):
        asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
