"""`trovemq broker remove`: its counts, its refusals, and the steps before them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.cli.conftest import FakePool
from trovemq import BrokerAnswers, BrokerInfo, BrokerRoute, ClusterState, DrainStatus, LostBroker, Remainder
from trovemq.cli import broker_removal
from trovemq.models.config import ConfigMember, ConfigStatus
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

LOST = LostBroker("b9", "c", "10.0.0.9:8081", 90_000, 3, 2)
UNCONSUMED = Remainder("unconsumed", 4, "orders", "billing")
UNREAD = Remainder("unread", 2, "audit")
ALL_KINDS = [
    UNCONSUMED,
    UNREAD,
    Remainder("dead_letters", 1, "%DLQ%billing", "billing"),
    Remainder("delayed", 7),
    Remainder("half_messages", 3),
    Remainder("transactions", 2),
    Remainder("topic", 1, "bills"),
]


class Cluster:
    """Brokers b1 and b2, b8 that has stopped, and b9 that is lost. `left`: what `remainders` answers, one
    after the other. `breaks`: the number of a call of `remainders`, and its error; None is Ctrl-C.
    `forgets`: the answers or errors of `forget`, one after the other. `undo_fails`: the drain cannot be
    ended."""

    def __init__(
        self,
        *left: Sequence[Remainder],
        silent: bool = False,
        state: str = "serving",
        breaks: tuple[int, TroveError | None] = (0, None),
        forgets: Sequence[TroveError | list[str]] = (["ns"],),
        undo_fails: bool = False,
    ) -> None:
        self.left = [*left]
        self.silent = silent
        self.state = state
        self.breaks = breaks
        self.forgets = [*forgets]
        self.undo_fails = undo_fails
        self.counted = 0
        self._pool = FakePool()
        self.done: list[str] = []

    @property
    def admin(self) -> Cluster:
        return self

    brokers = config = admin

    async def close(self) -> None:
        """It has no connection."""

    async def cluster(self) -> ClusterState:
        infos = [BrokerInfo("c", name, "10.0.0.1:8081") for name in ("b1", "b2")]
        return ClusterState(tuple(BrokerRoute(info, ()) for info in infos), 1, (LOST,))

    async def awaited(self, _broker: str, *, within_s: float) -> ClusterState:
        return await self.cluster()

    async def remainders(self, broker: str) -> tuple[Remainder, ...]:
        if self.silent:
            raise TroveError(errors.BROKER_UNREACHABLE, f"{broker} does not answer")
        self.counted += 1
        at, error = self.breaks
        if at == self.counted:
            if error is not None:
                raise error
            signal.raise_signal(signal.SIGINT)  # as the terminal does it
            await asyncio.sleep(60)
        return tuple(self.left.pop(0) if len(self.left) > 1 else self.left[0])

    async def drain_status(self, broker: str) -> DrainStatus:
        if self.state == "stopped":
            raise TroveError(errors.BROKER_UNREACHABLE, "it has stopped")
        return DrainStatus(broker, self.state, False, 0)

    async def drain(self, broker: str, *, grace_ms: int, stop_wait_max_ms: int | None = None) -> DrainStatus:
        stops = stop_wait_max_ms is not None
        self.done.append("stop" if stops else "drain")
        self.state = "stopped" if stops else "drained"
        return DrainStatus(broker, "stopping" if stops else "drained", stops, 0)

    async def undrain(self, broker: str) -> DrainStatus:
        self.done.append("undrain")
        if self.undo_fails:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping")
        return DrainStatus(broker, "serving", False, 0)

    async def status(self) -> BrokerAnswers[ConfigStatus]:
        members = tuple(ConfigMember(name, 7, name != "b8") for name in ("b1", "b2", "b8"))
        return BrokerAnswers([ConfigStatus(broker="b1", state="owner", members=members)])

    async def remove_member(self, broker: str) -> BrokerAnswers[str]:
        self.done.append("leave")
        return BrokerAnswers(())

    async def forget(self, broker: str) -> list[str]:
        self.done.append("forget")
        found = self.forgets.pop(0) if len(self.forgets) > 1 else self.forgets[0]
        if isinstance(found, TroveError):
            raise found
        return found


@pytest.fixture
def removed(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(broker_removal, "POLL_S", 0)

    def of(cluster: Cluster, *words: str, broker: str = "b2", json: bool = True) -> Any:
        run.client = cluster
        shown = ["--json"] if json else []
        return run(*shown, "broker", "remove", broker, "--yes", "--within", "0s", *words)

    return of


def test_an_empty_broker_is_drained_stopped_and_forgotten(removed: Any) -> None:
    cluster = Cluster(())
    ran = removed(cluster)
    assert (ran.code, ran.objects) == (0, [{"broker": "b2", "state": "removed", "lost": []}])
    assert cluster.done == ["forget", "drain", "stop", "leave", "forget"]


def test_every_kind_is_counted_and_named(removed: Any) -> None:
    ran = removed(Cluster(ALL_KINDS))
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "BROKER_NOT_EMPTY")
    assert [one["kind"] for one in ran.note["left"]] == [one.kind for one in ALL_KINDS]
    for words in (
        "b2 still has 4 messages of orders that group billing has not consumed; 2 messages of audit",
        "; 1 dead letter of group billing; 7 delayed messages",
        "; 3 half messages; 2 more",
    ):
        assert words in ran.note["message"]


def test_a_broker_was_drained_for_messages_that_no_group_reads(removed: Any) -> None:
    cluster = Cluster([UNREAD])
    assert removed(cluster).code == 1
    assert cluster.done == ["forget"], "which does nothing to a live one"


def test_a_removal_that_is_refused_after_its_drain_ends_the_drain(removed: Any) -> None:
    cluster = Cluster([UNCONSUMED])
    assert removed(cluster).note["error"] == "BROKER_NOT_EMPTY"
    assert cluster.done == ["forget", "drain", "undrain"]
    cluster = Cluster([UNCONSUMED], state="drained")
    assert removed(cluster).code == 1
    assert cluster.done == ["forget", "drain"], "it was drained before"


def test_groups_have_time_to_consume_the_rest(removed: Any) -> None:
    cluster = Cluster([UNCONSUMED], [UNCONSUMED], [UNCONSUMED], ())
    assert removed(cluster, "--within", "1h").code == 0
    assert cluster.done == ["forget", "drain", "stop", "leave", "forget"]


def test_a_loss_that_is_accepted_is_listed(removed: Any) -> None:
    cluster = Cluster([UNCONSUMED, UNREAD])
    ran = removed(cluster, "--accept-loss")
    assert (ran.code, [one["count"] for one in ran.objects[0]["lost"]]) == (0, [4, 2])
    assert cluster.done == ["forget", "drain", "stop", "leave", "forget"]
    text = removed(Cluster([UNREAD]), "--accept-loss", json=False)
    assert b"2 messages of audit that no group reads" in text.out


def test_a_lost_broker_is_forgotten_only_where_its_loss_is_accepted(removed: Any) -> None:
    cluster = Cluster(())
    ran = removed(cluster, broker="b9")
    assert (ran.code, ran.note["error"], cluster.done) == (1, "BROKER_NOT_EMPTY", [])
    assert "it had 3 topics, 2 of them on no other broker" in ran.note["message"]
    assert removed(cluster, "--accept-loss", broker="b9").code == 0
    assert cluster.done == ["leave", "forget"]


def test_a_broker_that_had_stopped_cleanly_stayed_a_member_for_ever(removed: Any) -> None:
    """It was "neither live nor lost", and look-ups named it as missing."""
    cluster = Cluster((), forgets=[[]])
    ran = removed(cluster, broker="b8")
    assert (ran.code, ran.note["error"], cluster.done) == (1, "BROKER_NOT_EMPTY", [])
    assert "still a member of the cluster's configuration" in ran.note["message"]
    assert ran.note["left"] == [{"kind": "unknown", "count": 0, "topic": None, "group": None}]
    assert removed(cluster, "--accept-loss", broker="b8").code == 0
    assert cluster.done == ["leave", "forget"]
    text = removed(Cluster((), forgets=[[]]), "--accept-loss", broker="b8", json=False)
    assert b"an unknown number of messages" in text.out


def test_a_broker_that_is_silent_in_the_routes_must_be_stopped_first(removed: Any) -> None:
    cluster = Cluster((), silent=True)
    ran = removed(cluster, "--accept-loss")
    assert (ran.code, ran.note["error"], cluster.done) == (1, "BROKER_UNREACHABLE", ["forget"])
    assert "stop its process first" in ran.note["message"]


def test_a_broker_that_nobody_knows_is_not_found(removed: Any) -> None:
    assert removed(Cluster(()), broker="b7").note["error"] == "BROKER_NOT_FOUND"


TIMED_OUT = TroveError(errors.REQUEST_TIMEOUT, "too late")


@pytest.mark.parametrize("broken", [TIMED_OUT, None], ids=["error", "ctrl-c"])
def test_a_broker_stayed_drained_after_a_break_in_the_middle(removed: Any, broken: TroveError | None) -> None:
    cluster = Cluster((), breaks=(2, broken))
    ran = removed(cluster)
    assert (ran.code, ran.out) == (1 if broken else 130, b"")
    assert cluster.done == ["forget", "drain", "undrain"]
    cluster = Cluster((), breaks=(2, broken), undo_fails=True)
    ran = removed(cluster)
    said = ran.note["message"]
    assert "b2 is still drained, or it stops" in said
    assert "trovemq broker drain b2 --undo" in said
    text = removed(Cluster((), breaks=(2, broken), undo_fails=True), json=False)
    assert "b2 is still drained, or it stops" in text.err


def test_a_broker_whose_drain_another_ended_was_stopped_with_new_messages(
    removed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(())
    count = cluster.remainders

    async def while_another_ends_the_drain(broker: str) -> tuple[Remainder, ...]:
        cluster.state = "serving"
        return await count(broker)

    monkeypatch.setattr(cluster, "remainders", while_another_ends_the_drain)
    ran = removed(cluster)
    assert (ran.code, ran.note["error"]) == (1, "SERVICE_NOT_AVAILABLE")
    assert "stop" not in cluster.done


def test_a_broker_was_stopped_before_the_nameserver_refused_the_user(removed: Any) -> None:
    denied = TroveError(errors.ACCESS_DENIED, "alice is no administrator")
    cluster = Cluster((), forgets=[denied])
    assert (removed(cluster).note["error"], cluster.done) == ("ACCESS_DENIED", ["forget"])
    away = TroveError(errors.BROKER_UNREACHABLE, "no answer")
    ran = removed(Cluster((), forgets=[[], away]))
    assert ran.note["message"] == "b2 has stopped, but nameservers may still name it as lost: no answer"


def test_a_lost_broker_was_called_removed_though_no_nameserver_forgot_it(removed: Any) -> None:
    ran = removed(Cluster((), forgets=[[]]), "--accept-loss", broker="b9")
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "BROKER_NOT_FOUND")
    assert "no nameserver has forgotten b9" in ran.note["message"]
