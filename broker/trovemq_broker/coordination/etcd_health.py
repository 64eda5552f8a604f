"""The state of etcd for `trovemq cluster check`: whether it answers, its members' number, its version."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from trovemq_broker.coordination import etcd_client
from trovemq_broker.coordination.etcd_client import EtcdClient
from trovemq_proto.errors import TroveError
from trovemq_proto.etcd.v3 import etcd_pb2 as pb

EVERY_S: Final = 10.0
AGAIN_S: Final = 1.0
"""After a failure."""
TEXT_MAX: Final = 200


class EtcdHealth(NamedTuple):
    """`problem`: why it does not answer; empty if it does. `members`: 0 where it does not say."""

    members: int = 0
    version: str = ""
    problem: str = "etcd was not asked yet"


class HealthWatch:
    """`run()` until it is cancelled. `last`: the newest answer."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self.last = EtcdHealth()

    async def run(self) -> None:
        while True:
            await self.ask()
            await asyncio.sleep(AGAIN_S if self.last.problem else EVERY_S)

    async def ask(self) -> None:
        """Once."""
        try:
            found = await self._client.call(etcd_client.MEMBERS, pb.MemberListRequest())
            self.last = EtcdHealth(len(found.members), await self._version(), "")
        except TroveError as error:
            self.last = EtcdHealth(0, "", error.message[:TEXT_MAX])

    async def _version(self) -> str:
        """Empty where the user may not ask for it."""
        try:
            found = await self._client.call(etcd_client.STATUS, pb.StatusRequest())
        except TroveError:
            return ""
        version: str = found.version[:TEXT_MAX]
        return version
