"""A group's values in a new etcd, and an election of a copy that is not in sync."""

from __future__ import annotations

import pytest

from tests.unit.replication.model_etcd import ModelEtcd
from tests.unit.replication.one_node import A, B, C, etcd_of, identity, is_here, leading, lock_as, state_of
from trovemq_broker.coordination.coordinator import Put
from trovemq_broker.replication.election_actions import OwnLog
from trovemq_broker.replication.election_members import LogEnd, unclean
from trovemq_broker.replication.election_records import STATE, GroupState, to_bytes
from trovemq_broker.replication.election_view import viewed
from trovemq_broker.replication.frames import Identity, InSyncSet
from trovemq_broker.replication.promotion import Promised, longest
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.replica.epochs import Epochs

AB = InSyncSet(64, 3, frozenset({A, B}))


def promise(one: Identity, end: int, epoch: int = 64, in_sync: InSyncSet | None = AB) -> Promised:
    return Promised(one, 640, Epochs.of([(epoch, 0)]), PhysicalOffset(end), in_sync)


def chosen(*answers: Promised, voters: str = "abc", in_sync_min: int = 2, added: str = "") -> set[str]:
    """`added`: the nodes that became voters with their stores."""
    stores = {node: identity(node).store_id for node in added}
    copies = longest(answers, 640, voters=set(voters), in_sync_min=in_sync_min, stores=stores)
    return {one.node for one in copies}


def test_the_set_that_no_node_knows_had_one_of_them() -> None:
    """a led {a, c} before it was lost: b knows a set with itself, and lacks the records committed since."""
    assert chosen(promise(B, 100), promise(C, 150)) == {"c"}
    assert chosen(promise(B, 150), promise(C, 150)) == {"b", "c"}
    assert chosen(promise(B, 200), promise(C, 150, epoch=128)) == {"c"}, "a later leader had all"


def test_new_voters_that_were_never_in_sync_are_not_enough() -> None:
    """a committed alone until b was a voter: one promise is enough then, and b may lack those records."""
    new_b, new_c = promise(B, 100, in_sync=None), promise(C, 90, in_sync=None)
    with pytest.raises(TroveError, match="ever in sync"):
        chosen(new_b, voters="ab", added="b")
    with pytest.raises(TroveError, match="ever in sync"):
        chosen(new_b, new_c, added="bc")
    assert chosen(promise(B, 100), voters="ab", added="b") == {"b"}
    assert chosen(promise(A, 120), new_b, voters="ab", added="b") == {"a"}
    assert chosen(promise(B, 90), new_c._replace(end=PhysicalOffset(100)), added="bc") == {"c"}


@pytest.mark.parametrize(
    "answers",
    [
        [promise(B, 100)],
        [promise(B, 100), promise(C, 150)._replace(promised=576)],
        [promise(B, 100), promise(C, 150, in_sync=None)],
        [promise(A._replace(store_id="another"), 0), promise(C, 150)],
        [promise(B._replace(incarnation=1), 90), promise(C, 80)],
        [promise(B, 100), promise(identity("d"), 150)],
    ],
)
def test_a_promise_without_the_log_of_then_is_none(answers: list[Promised]) -> None:
    with pytest.raises(TroveError) as refused:
        chosen(*answers)
    assert refused.value.spec is errors.NOT_ENOUGH_REPLICAS


OWN = OwnLog(end=PhysicalOffset(70), flushed=PhysicalOffset(70), commit=PhysicalOffset(60), last_epoch=64)


def elected(
    etcd: ModelEtcd, me: Identity = C, others: dict[Identity, LogEnd] | None = None, accept_loss: int = 1
) -> GroupState:
    view = viewed(etcd.read(0))
    assert view is not None
    return unclean(view, me, OWN, 128, others=others or {}, accept_loss=accept_loss, reason="burnt")


def test_an_unclean_election_names_what_is_lost() -> None:
    etcd = etcd_of(in_sync=(A, B), commit_floor=100)
    with pytest.raises(ValueError, match="at least 30 bytes"):
        elected(etcd, accept_loss=29)
    state = elected(etcd, accept_loss=30)
    assert (state.in_sync, state.commit_floor, state.reason) == ((C,), 70, "burnt")
    assert state.epoch > 128
    assert state.version == state_of(etcd).version + 1
    with pytest.raises(ValueError, match="at least 50 bytes"):
        elected(etcd, others={identity("d"): LogEnd(64, PhysicalOffset(120))}, accept_loss=49)
    with pytest.raises(ValueError, match="at least 1 bytes"):
        elected(etcd_of(in_sync=(A, B)), accept_loss=0)
    etcd.swap((), (Put(STATE, to_bytes(state)),), 0)
    node = leading(etcd, C)
    assert node.election.epoch > state.epoch


def test_the_loss_of_an_unclean_election_was_counted_across_epochs() -> None:
    """d has led since: it lacks the end of this log, and has an unknown part that this one lacks."""
    etcd = etcd_of(in_sync=(A, B))
    with pytest.raises(ValueError, match="elect d, or stop it"):
        elected(etcd, others={identity("d"): LogEnd(128, PhysicalOffset(60))}, accept_loss=1_000)
    elected(etcd, others={identity("d"): LogEnd(0, PhysicalOffset(60))})


def test_an_in_sync_copy_that_may_come_back_leads_instead() -> None:
    etcd = etcd_of(in_sync=(A, B))
    with pytest.raises(ValueError, match="b of the in-sync set is there"):
        elected(etcd, others={B: LogEnd(64, PhysicalOffset(100))}, accept_loss=1_000)
    is_here(etcd, A)
    with pytest.raises(ValueError, match="a of the in-sync set is there"):
        elected(etcd)
    etcd = etcd_of(in_sync=(A, B))
    is_here(etcd, identity("a", store=1))
    elected(etcd)  # its disk was replaced
    lock_as(etcd, identity("a", store=1), 64)
    with pytest.raises(ValueError, match="leads"):
        elected(etcd)


def test_a_copy_in_sync_or_no_voter_needs_no_command() -> None:
    with pytest.raises(ValueError, match="elected without a command"):
        elected(etcd_of(in_sync=(A, C)))
    with pytest.raises(ValueError, match="not a voter"):
        elected(etcd_of(in_sync=(A, B)), me=identity("x"))
