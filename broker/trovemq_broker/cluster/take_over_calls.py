"""A take-over by calls: the steps of cluster_config.take_over, at all brokers that can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import Message

from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import (
    SHORT_LOG_IN_S,
    Endpoint,
    Endpoints,
    Reply,
    connected,
    read_part,
    reported,
)
from trovemq_broker.cluster.config_store import ConfigStore
from trovemq_broker.cluster.nameserver_session import ReadCredentials
from trovemq_broker.cluster_config import protobuf
from trovemq_broker.cluster_config.entries import NO_GENERATION, Entry, Generation
from trovemq_broker.cluster_config.messages import UpdateAssembly
from trovemq_broker.cluster_config.status import NodeState, Note, TakenOver
from trovemq_broker.cluster_config.table import Head, Update
from trovemq_broker.cluster_config.take_over import (
    CopyStatus,
    begin_take_over,
    choose_cluster,
    choose_copy,
    next_generation,
    status_of,
)
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import cluster_config_pb2 as pb

CALL_S: Final = 5.0
FETCH_S: Final = 60.0
CALLS_MAX: Final = 64
DROPPED_MAX: Final = 1_000


@dataclass(slots=True)
class Asked:
    """The state of one take-over. `endpoints`: of the brokers that take part. `joining`: those
    without a copy, which follow the new owner."""

    cluster: str
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    copies: list[CopyStatus] = field(default_factory=list)
    joining: set[str] = field(default_factory=set)
    unreached: set[str] = field(default_factory=set)
    promised: list[CopyStatus] = field(default_factory=list)
    generation: Generation = NO_GENERATION
    source: str = ""
    dropped: tuple[Entry, ...] = ()

    def result(self, head: Head) -> TakenOver:
        promised = [one.broker for one in self.promised]
        notes = [Note(entry.key, f"version {entry.version}") for entry in self.dropped[:DROPPED_MAX]]
        return TakenOver(head, self.source, sorted(promised), sorted(self.unreached), notes)


class TakeOverCalls:
    """`broker` takes over; `address`: where the others reach it."""

    def __init__(
        self,
        store: ConfigStore,
        broker: str,
        address: Address,
        endpoints: Endpoints,
        credentials: ReadCredentials | None,
    ) -> None:
        self._store = store
        self._stored = store.stored
        self._broker = broker
        self._address = address
        self._endpoints = endpoints
        self._credentials = credentials
        self._calls = asyncio.Semaphore(CALLS_MAX)

    # --- 1: who is there ------------------------------------------------------------------------------
    async def ask(self, routes: ClusterRoutes, cluster: str) -> Asked:
        """The copies of all that can be reached. TroveError CONFIG_OTHER_CLUSTER, BROKER_NOT_FOUND."""
        endpoints: dict[str, Endpoint | None] = dict.fromkeys(self._stored.table.members())
        endpoints |= {name: self._endpoints.find(name) for name in endpoints}
        endpoints |= {one.name: self._endpoints.routed(one) for one in routes.brokers}
        endpoints.pop(self._broker, None)
        names = sorted(endpoints)
        found = await asyncio.gather(*(self._status(endpoints[name]) for name in names))
        asked = Asked(cluster)
        copies = [status_of(self._stored, self._broker)] if self._stored.table.exists else []
        copies += [one for one, _ in filter(None, found)]
        asked.cluster = cluster or choose_cluster(copies)
        own = self._stored.head.cluster
        if own not in ("", asked.cluster):
            what = f"broker {self._broker} belongs to cluster {own}, not to {asked.cluster}"
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, broker=self._broker)
        asked.copies = [one for one in copies if one.head.cluster == asked.cluster]
        if not asked.copies:
            what = f"no reachable broker has a copy of cluster {asked.cluster}"
            raise TroveError(errors.BROKER_NOT_FOUND, what)
        for name, one in zip(names, found, strict=True):
            endpoint = endpoints[name]
            if one is None or endpoint is None:
                asked.unreached.add(name)
            elif one[0].head.cluster == asked.cluster or one[1] == NodeState.JOINING:
                asked.endpoints[name] = endpoint
                asked.joining |= {name} if not one[0].head.cluster else set()
        return asked

    async def _status(self, endpoint: Endpoint | None) -> tuple[CopyStatus, str] | None:
        """None if the broker was not reached."""
        if endpoint is None:
            return None
        try:
            reply = await self._call(
                endpoint, "GetConfigStatus", pb.GetConfigStatusRequest(), pb.ConfigStatus
            )
            copy = CopyStatus(
                endpoint.broker, protobuf.head_of(reply.head), protobuf.generation_of(reply.promised)
            )
            return copy, reply.state
        except TroveError as error:
            get_logger().warning("config.not_reached", broker=endpoint.broker, message=str(error))
            return None

    async def _call(self, endpoint: Endpoint, method: str, request: Message, reply: type[Reply]) -> Reply:
        """TroveError: that of the other broker, else BROKER_UNREACHABLE, REQUEST_TIMEOUT."""
        async with self._calls:
            try:
                async with (
                    asyncio.timeout(CALL_S),
                    connected(endpoint, self._credentials, SHORT_LOG_IN_S) as connection,
                ):
                    return await connection.unary(method, request, reply, CALL_S)
            except TimeoutError:
                what = f"broker {endpoint.broker} at {endpoint.address} does not answer"
                raise TroveError(errors.REQUEST_TIMEOUT, what, broker=endpoint.broker) from None

    # --- 2: the promise -------------------------------------------------------------------------------
    async def promise(self, asked: Asked, mark: str) -> None:
        """This broker and all that were reached promise a new generation. TroveError of this broker's own."""
        own = status_of(self._stored, self._broker)
        asked.generation = next_generation([own, *asked.copies], mark)
        await self._store.promise(asked.generation, asked.cluster)
        request = pb.PromiseGenerationRequest(
            generation=protobuf.generation_to(asked.generation),
            cluster=asked.cluster,
            owner=self._broker,
            address=str(self._address),
        )
        names = sorted(asked.endpoints)
        found = await asyncio.gather(*(self._promise(asked.endpoints[name], request) for name in names))
        asked.promised = [status_of(self._stored, self._broker), *filter(None, found)]
        asked.unreached |= {name for name, one in zip(names, found, strict=True) if one is None}

    async def _promise(self, endpoint: Endpoint, request: pb.PromiseGenerationRequest) -> CopyStatus | None:
        try:
            copy = protobuf.copy_of(await self._call(endpoint, "PromiseGeneration", request, pb.ConfigCopy))
            return CopyStatus(endpoint.broker, copy.head, copy.promised)
        except TroveError as error:
            get_logger().warning("config.not_promised", broker=endpoint.broker, message=str(error))
            return None

    # --- 3, 4: the copy -------------------------------------------------------------------------------
    async def take(
        self, asked: Asked, source: str, replaced: Callable[[Update, Sequence[Entry]], Awaitable[None]]
    ) -> None:
        """Stores the copy that continues: this broker is the owner then. `replaced` is called with the copy
        and the entries of this broker that end with it, before their last copy is replaced. TroveError
        CONFIG_OWNER_OLD, BROKER_NOT_FOUND, CONFIG_GENERATION_OLD, and those of the broker that has the
        copy."""
        chosen = choose_copy(asked.promised, asked.generation, asked.cluster, source=source)
        asked.source = chosen.broker
        if chosen.broker == self._broker:
            update = self._stored.table.image()
        else:
            update = await self._fetch(asked.endpoints[chosen.broker], asked.generation)
        async with self._store.lock:
            work, asked.dropped = begin_take_over(self._stored, self._broker, update, asked.generation)
            try:
                await replaced(update, asked.dropped)
            except BaseException:
                self._stored.finish(work)
                raise
            await self._store.save(work)
        members = {*self._stored.table.members()} - {self._broker}
        asked.unreached |= members - {one.broker for one in asked.promised}
        get_logger().warning(
            "config.taken_over",
            generation=str(asked.generation),
            source=asked.source,
            unreached=",".join(sorted(asked.unreached)),
            dropped=len(asked.dropped),
        )

    async def _fetch(self, endpoint: Endpoint, generation: Generation) -> Update:
        assembly, update = UpdateAssembly(), None
        request = pb.FetchConfigRequest(generation=protobuf.generation_to(generation))
        async with connected(endpoint, self._credentials, SHORT_LOG_IN_S) as connection:
            call = connection.replies("FetchConfig", request, FETCH_S)
            with reported(endpoint):
                async for message in call:
                    part = protobuf.part_of(read_part(message))
                    update = assembly.add(part) if part is not None else None
        if update is None:
            what = f"the copy of broker {endpoint.broker} was cut: repeat the take-over"
            raise TroveError(errors.CONFIG_GAP, what, broker=endpoint.broker)
        return update
