"""Gathers the promises for a new leadership of this node.

It asks for nothing that another node would have to take back: before the first promise it looks whether
enough nodes answer, and whether another one has to lead. After that the former leader has stepped down.

Invariants
- The newest list of members among the answers says who is asked, and whose promises count.
- All are asked again after all have promised, and the second answers count: a store that was replaced between
  has lost its promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from trovemq_broker.daemon.replica.finding import removes
from trovemq_broker.daemon.replica.node_calls import NodeCalls, gathered
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node
from trovemq_broker.replication.promotion import (
    EPOCH_STEP,
    Promised,
    choose,
    epoch_of_leader,
    epoch_to_promise,
    longest,
    needed,
)
from trovemq_broker.replication.status import NodeStatus, Promoted, PromotionAsked
from trovemq_broker.server.wire.replica_frames import PromiseAsked
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member, Members, Membership

PromiseOwn: TypeAlias = Callable[[PromiseAsked], Awaitable[Promised]]
STEP_DOWN_TRIES: Final = 3
ASKED_AGAIN_MAX: Final = 4
RECOVERED_EPOCHS: Final = 64 * EPOCH_STEP
RECOVERED_VERSIONS: Final = 1 << 16
"""Steps of a recovery beyond the highest known ones: nodes that do not answer may know of later ones."""


class Leadership(NamedTuple):
    """This node is to lead that epoch. `is_forced`: an operator accepts that it may lack acknowledged
    records, `fenced` says how the other nodes were stopped. `listed`: the newest list of members among the
    promises. `in_sync`: the confirmed set of that epoch, where an election has chosen this node."""

    epoch: Epoch
    promoted: Promoted
    listed: Members
    is_forced: bool = False
    fenced: str = ""
    accepted_loss: int = 0
    in_sync: InSyncSet | None = None


class Recovered(NamedTuple):
    """The values for an etcd that has nothing of the group. `copies`: each has all that is committed,
    this node's among them, unless an operator accepts a loss. `version`: of their in-sync set."""

    promoted: Promoted
    listed: Members
    copies: frozenset[Identity]
    version: int


class Gathering:
    """One attempt. `own`: the status of this node; `promise`: stores its promise, and answers as the others
    do."""

    def __init__(self, place: Membership, own: NodeStatus, calls: NodeCalls, promise: PromiseOwn) -> None:
        self._place = place
        self._own = own
        self._calls = calls
        self._promise = promise
        self._listed = place.listed

    async def run(self, asked: PromotionAsked, statuses: Mapping[Node, NodeStatus]) -> Leadership:
        """`statuses`: of the other nodes that answer. TroveError NOT_ENOUGH_REPLICAS, REPLICA_STATE_ILLEGAL,
        NOT_A_MEMBER."""
        place = self._place
        members = [one for one in statuses.values() if one.cluster == place.cluster]
        self._take_list(one.listed for one in members)
        if any(removes(one, place) for one in members if one.leads):
            raise removed(place)
        self._check_before(asked, members)
        highest = max(one for status in (self._own, *members) for one in (status.promised, status.last_epoch))
        epoch = epoch_to_promise(highest, place.node, self._listed.places)
        ask = PromiseAsked(place.cluster, place.group, epoch)
        answers, failures = await self._ask_twice(ask, {one.node for one in members})
        forced = self._choose(asked, epoch, answers, failures, members)
        cut = max((one.end - answers[0].end for one in answers), default=0)
        there = {one.identity.node for one in answers}
        promoted = Promoted(
            epoch_of_leader(epoch, place.node, self._listed.places),
            tuple(sorted(there)),
            tuple(sorted(set(self._voters) - there)),
            max(cut, 0),
        )
        return Leadership(promoted.epoch, promoted, self._listed, forced, asked.fenced, asked.accept_loss)

    async def recover(self, asked: PromotionAsked, statuses: Mapping[Node, NodeStatus]) -> Recovered:
        """For a group whose newest in-sync set was in an etcd that is lost: the longest log of enough nodes
        has all that is committed. A node whose etcd may have the group makes no promise, and no node that
        answers may refuse."""
        place = self._place
        members = [one for one in statuses.values() if one.cluster == place.cluster]
        if manual := sorted(one.node for one in members if one.coordination != self._own.coordination):
            raise TroveError(
                errors.REPLICA_STATE_ILLEGAL,
                f"{', '.join(manual)} has another coordination: start all nodes with coordination = etcd, and"
                " with the endpoints of the new etcd",
            )
        self._take_list(one.listed for one in members)
        if asked.fenced:
            self._check_loss(asked, members)
        highest = max(one for status in (self._own, *members) for one in (status.promised, status.last_epoch))
        epoch = epoch_to_promise(highest + RECOVERED_EPOCHS, place.node, self._listed.places)
        ask = PromiseAsked(place.cluster, place.group, epoch)
        answers, failures = await self._ask_twice(ask, {one.node for one in members})
        for failure in failures.values():
            if failure.spec is errors.REPLICA_STATE_ILLEGAL:
                raise failure
        there = {one.identity.node for one in answers}
        versions = [one.in_sync.version for one in answers if one.in_sync is not None]
        return Recovered(
            Promoted(
                epoch,
                tuple(sorted(there)),
                tuple(sorted(set(self._voters) - there)),
                max(0, *(one.end - answers[0].end for one in answers)),
            ),
            self._listed,
            self._longest(asked, epoch, answers, failures, members),
            max(versions, default=0) + RECOVERED_VERSIONS,
        )

    def _longest(
        self,
        asked: PromotionAsked,
        epoch: Epoch,
        answers: Sequence[Promised],
        failures: Mapping[Node, TroveError],
        members: Sequence[NodeStatus],
    ) -> frozenset[Identity]:
        """TroveError NOT_ENOUGH_REPLICAS, REPLICA_STATE_ILLEGAL."""
        me = answers[0].identity
        try:
            copies = longest(
                answers,
                epoch,
                voters=self._voters,
                in_sync_min=self._in_sync_min,
                stores=self._listed.stores,
            )
        except TroveError as error:
            if asked.fenced:
                self._check_later(members)
                return frozenset({me})
            reasons = "".join(f"; {node}: {failure.message}" for node, failure in failures.items())
            missing = ", ".join(sorted(set(self._voters) - {one.identity.node for one in answers}))
            text = f"{error.message}; start {missing or 'the others'}, or --fenced HOW --accept-loss BYTES"
            raise TroveError(error.spec, text + reasons) from None
        if me in copies:
            return copies
        (first, *_) = sorted(one.node for one in copies)
        text = f"node {first} has a longer or later log than {me.node}: trovemq cluster recover {first}"
        raise TroveError(errors.REPLICA_STATE_ILLEGAL, text)

    # --- promises -----------------------------------------------------------------------------------------
    async def _ask_twice(
        self, ask: PromiseAsked, here: Collection[Node]
    ) -> tuple[list[Promised], Mapping[Node, TroveError]]:
        """The answers of stores that had promised when all had, and the failures of others. `here`: the
        nodes that answer."""
        first, _ = await self._ask_all(ask, here)
        for _ in range(ASKED_AGAIN_MAX):
            asked_by = self._listed.version
            self._take_list(one.listed for one in first)
            second, failures = await self._ask_all(ask, here)
            if max(one.listed.version for one in second) <= self._listed.version == asked_by:
                known = {one.identity for one in first}
                removed = self._listed.removed
                return [
                    one for one in second if one.identity in known and one.identity.store_id not in removed
                ], failures
            first = second
        text = "the members change while the promises are gathered: repeat the promotion"
        raise TroveError(errors.NOT_ENOUGH_REPLICAS, text)

    async def _ask_all(
        self, ask: PromiseAsked, here: Collection[Node]
    ) -> tuple[list[Promised], Mapping[Node, TroveError]]:
        """All voters of the newest list, this node first."""
        own = await self._promise(ask)
        asked = [one for one in self._listed.nodes if one.is_voter and one.node != self._place.node]
        others, failures = await gathered(
            [one for one in asked if one.node in here], lambda one: self._ask_promise(one, ask)
        )
        return [own, *others.values()], failures

    def _take_list(self, lists: Iterable[Members]) -> None:
        """A promotion goes by the newest list, of which this node has to be a voter. TroveError."""
        self._listed = listed = max((self._listed, *lists), key=lambda one: one.version)
        place = self._place
        if not listed.has(place.node, place.store_id):
            raise removed(place)
        if place.node not in listed.places:
            raise TroveError(errors.NOT_A_MEMBER, f"node {place.node} is a learner of group {place.group}")

    @property
    def _voters(self) -> list[Node]:
        return sorted(self._listed.places)

    @property
    def _in_sync_min(self) -> int:
        return self._listed.needed(self._place.in_sync_min)

    @property
    def _needed(self) -> int:
        return needed(len(self._voters), self._in_sync_min)

    # --- helpers ----------------------------------------------------------------------------------------
    def _check_before(self, asked: PromotionAsked, members: Sequence[NodeStatus]) -> None:
        if asked.fenced:
            self._check_loss(asked, members)
            return
        stores = self._listed.stores
        with_state = [
            one
            for one in (self._own, *members)
            if one.store_id not in self._listed.removed
            if one.in_sync is not None or stores.get(one.node) == one.store_id
        ]
        voting = [one for one in with_state if one.node in self._voters]
        if len(voting) < self._needed:
            raise self._not_enough([one.node for one in voting])
        newest = max(voting, key=_set_version)
        if _set_version(self._own) < _set_version(newest):
            assert newest.in_sync is not None, "it has a state"
            raise TroveError(
                errors.REPLICA_STATE_ILLEGAL,
                f"node {self._place.node} lacks the newest in-sync set, which is that of"
                f" {', '.join(newest.in_sync.nodes)}: promote one of these",
            )
        longest = max(voting, key=lambda one: one.end)
        lost = longest.end - self._own.end
        if self._own.ack == "leader" and lost > asked.accept_loss:
            raise TroveError(
                errors.REPLICA_STATE_ILLEGAL,
                f"node {self._place.node} lacks {lost} bytes that node {longest.node} has and that may be"
                f" acknowledged (ack = leader): promote {longest.node}, or add --fenced HOW"
                f" --accept-loss {lost}",
            )

    def _check_loss(self, asked: PromotionAsked, members: Sequence[NodeStatus]) -> None:
        known_end = max([self._own.end + self._own.lag_bytes, *(one.end for one in members)])
        lost = known_end - self._own.end
        if lost > asked.accept_loss:
            raise TroveError(
                errors.REPLICA_STATE_ILLEGAL,
                f"node {self._place.node} lacks at least {lost} bytes of the log, and the accepted loss is"
                f" {asked.accept_loss}: promote a node that has them, or accept that loss",
            )

    def _check_later(self, members: Sequence[NodeStatus]) -> None:
        """Ends of logs are compared within one epoch: of another one's log, a part of any size is not in this
        node's."""
        later = max(members, key=lambda one: (one.last_epoch, one.end), default=self._own)
        if later.last_epoch > self._own.last_epoch:
            raise TroveError(
                errors.REPLICA_STATE_ILLEGAL,
                f"node {later.node} has records of epoch {later.last_epoch}, and node {self._place.node} none"
                f" after epoch {self._own.last_epoch}: name {later.node} instead, or stop it for good first",
            )

    def _not_enough(self, found: Sequence[Node]) -> TroveError:
        missing = sorted(set(self._voters) - set(found))
        return TroveError(
            errors.NOT_ENOUGH_REPLICAS,
            f"{len(found)} of the {self._needed} voters that a promotion needs answer and have their state"
            f" ({', '.join(sorted(found)) or 'none'}); start {' or '.join(missing)}, or, if they are lost for"
            " ever: --fenced HOW --accept-loss BYTES",
        )

    async def _ask_promise(self, member: Member, ask: PromiseAsked) -> Promised:
        """A leader steps down before it answers, and its address may be closed for a moment."""
        for attempt in range(STEP_DOWN_TRIES):
            try:
                return await self._calls.promise(member, ask)
            except TroveError as error:
                if attempt + 1 == STEP_DOWN_TRIES or not error.retriable:
                    raise
                await asyncio.sleep(0.3)
        raise AssertionError("the last attempt raises")

    def _choose(
        self,
        asked: PromotionAsked,
        epoch: Epoch,
        answers: Sequence[Promised],
        failures: Mapping[Node, TroveError],
        members: Sequence[NodeStatus],
    ) -> bool:
        """Whether this node leads against the rules, because an operator accepts it. TroveError."""
        place = self._place
        try:
            chosen = choose(
                answers,
                epoch,
                voters=self._voters,
                in_sync_min=self._in_sync_min,
                wanted=place.node,
                stores=self._listed.stores,
            )
        except TroveError as error:
            if asked.fenced:
                self._check_later(members)
                return True
            reasons = "".join(f"; {node}: {failure.message}" for node, failure in failures.items())
            raise TroveError(error.spec, error.message + reasons) from None
        if chosen != place.node:
            text = f"node {chosen} has the newest in-sync set: promote it"
            raise TroveError(errors.REPLICA_STATE_ILLEGAL, text)
        return False


def removed(place: Membership) -> TroveError:
    """NOT_A_MEMBER of a node that was removed."""
    text = (
        f"node {place.node} was removed from group {place.group}: it returns with an empty store, by"
        f" trovemq cluster add {place.node}"
    )
    return TroveError(errors.NOT_A_MEMBER, text)


def may_lead_alone(place: Membership, others: Sequence[NodeStatus]) -> bool:
    """Whether a former leader whose newest in-sync set is itself alone needs no promise: where each choice
    needs its own (every voter's), or where all other voters answer and none has a later set or list.

    `others`: the nodes of its group that answer. Without the condition another node may have stored a set
    that this node had proposed, and not stored itself: an operator may have promoted it since.
    """
    in_sync = place.in_sync
    if in_sync is None or in_sync.copies != {place.identity}:
        return False
    if needed(len(place.voters), place.in_sync_needed) == len(place.voters):
        return True
    answering = {one.node: one for one in others}
    missing = set(place.voters) - {place.node} - set(answering)
    return not missing and all(
        _set_version(one) <= in_sync[:2] and one.listed.version <= place.listed.version
        for one in answering.values()
    )


def _set_version(status: NodeStatus) -> tuple[Epoch, int]:
    return (0, 0) if status.in_sync is None else (status.in_sync.epoch, status.in_sync.version)
