"""A follower, frame by frame: promises, cuts, appends, reports; and the operator's choice of a leader."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from zlib import crc32

import pytest

from tests.unit.replication.model_log import SEGMENT_SIZE, ModelLog
from trovemq_broker.replication.follower import (
    UNREPORTED_BYTES_MAX,
    Cut,
    End,
    Follower,
    FollowerAction,
    Join,
    Promise,
    ReplicaState,
    SendProgress,
    StoreSet,
)
from trovemq_broker.replication.frames import (
    FRAME_BYTES_MAX,
    Data,
    Heartbeat,
    Identity,
    InSyncSet,
    LeaderFrame,
    Progress,
    Welcome,
)
from trovemq_broker.replication.promotion import (
    Promised,
    choose,
    epoch_of_leader,
    epoch_to_promise,
    needed,
)
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.replica.epochs import Epoch, Epochs

A, B, C = (Identity(name, f"store of {name}", 0) for name in "abc")
OLD, NEW = Epochs.of([(1, 0)]), Epochs.of([(1, 0), (9, 80)])


class Node:
    """A follower `b` with 100 bytes of epoch 1, of which 60 are committed."""

    def __init__(
        self, *, commit: int = 60, epochs: Epochs = OLD, end: int = 100, is_sync: bool = False
    ) -> None:
        self.log = ModelLog()
        for _ in range(end // 20):
            self.log.append(bytes(20))
        self.log.flushed = self.log.end
        self.log.begin_epoch = self.begin_epoch
        self.state = ReplicaState(1, epochs, PhysicalOffset(commit), None)
        self.side = Follower("cluster", "group", B, self.log, self.state, SEGMENT_SIZE, is_sync=is_sync)
        self.side.hello(0)

    def begin_epoch(self, epoch: Epoch) -> None:
        self.state.epochs = self.state.epochs.begun(*epoch)

    def take(self, frame: LeaderFrame) -> list[FollowerAction]:
        """All actions, each done at once."""
        taken: list[FollowerAction] = []
        waiting = self.side.frame(frame, 0)
        while waiting:
            action = waiting.pop(0)
            taken.append(action)
            if self.do(action):
                waiting += self.side.done()
        return taken

    def do(self, action: FollowerAction) -> bool:
        match action:
            case Promise(epoch):
                self.state.promised = epoch
            case Cut(to, epochs):
                self.log.cut(to)
                self.state.epochs = epochs
            case Join(begin, epochs):
                self.log.restart_at(begin)
                self.state.epochs, self.state.commit = epochs, begin
            case StoreSet(in_sync):
                self.state.in_sync = in_sync
            case _:
                return False
        return True


def welcome(cut_to: int = 80, **fields: object) -> Welcome:
    values: dict[str, object] = {
        "epoch": 9,
        "epochs": NEW,
        "begin": LOG_ORIGIN,
        "end": PhysicalOffset(90),
        "commit": PhysicalOffset(80),
        "cut_to": PhysicalOffset(cut_to),
    }
    return Welcome(**{**values, **fields})  # type: ignore[arg-type]


def data(offset: int, size: int = 10, epoch: int = 9, commit: int = 0, **fields: object) -> Data:
    content = bytes(size)
    values: dict[str, object] = {"data": content, "crc": crc32(content), **fields}
    return Data(epoch, PhysicalOffset(offset), PhysicalOffset(commit), **values)  # type: ignore[arg-type]


def refusal(actions: Iterable[FollowerAction]) -> ErrorSpec | None:
    return next((one.error.spec for one in actions if isinstance(one, End)), None)


def last_report(actions: Iterable[FollowerAction]) -> Progress:
    return [one.progress for one in actions if isinstance(one, SendProgress)][-1]


def test_a_follower_promises_then_cuts_then_reports() -> None:
    node = Node()
    actions = node.take(welcome())
    assert actions == [Promise(9), Cut(PhysicalOffset(80), OLD), SendProgress(last_report(actions))]
    assert last_report(actions) == Progress(9, PhysicalOffset(80), PhysicalOffset(80), 0)


def test_a_leadership_is_in_the_list_before_its_first_record() -> None:
    node = Node()
    node.take(welcome())
    node.take(data(80))
    assert node.state.epochs == NEW
    assert node.log.end == 90


def test_a_frame_over_the_start_of_an_epoch_is_refused() -> None:
    node = Node(end=60)
    node.take(welcome(60))
    assert refusal(node.take(data(60, 30))) is errors.REPLICA_FRAME_ILLEGAL
    assert node.log.end == 60


def test_a_frame_that_began_one_epoch_was_taken_over_the_next() -> None:
    node = Node(end=80)
    node.take(welcome(80, epoch=16, epochs=NEW.begun(16, PhysicalOffset(90)), end=PhysicalOffset(100)))
    assert refusal(node.take(data(80, 20, epoch=16))) is errors.REPLICA_FRAME_ILLEGAL
    assert (node.log.end, node.state.epochs) == (80, OLD)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (data(90), errors.REPLICA_FRAME_ILLEGAL),
        (data(70), errors.REPLICA_FRAME_ILLEGAL),
        (data(80, 0), errors.REPLICA_FRAME_ILLEGAL),
        (data(80, FRAME_BYTES_MAX + 1), errors.REPLICA_FRAME_ILLEGAL),
        (data(80, blank=-1), errors.REPLICA_FRAME_ILLEGAL),
        (data(80, crc=1), errors.REPLICA_FRAME_ILLEGAL),
        (data(80, epoch=8), errors.EPOCH_STALE),
        (data(80, epoch=10), errors.EPOCH_STALE),
        (welcome(), errors.REPLICA_FRAME_ILLEGAL),
    ],
)
def test_a_frame_of_another_place_epoch_or_content_writes_nothing(
    frame: LeaderFrame, error: ErrorSpec
) -> None:
    node = Node()
    node.take(welcome())
    assert refusal(node.take(frame)) is error
    assert node.log.end == 80


def test_a_follower_refused_a_record_larger_than_a_frame_for_ever() -> None:
    node = Node()
    node.take(welcome())
    size = FRAME_BYTES_MAX + 1
    content = size.to_bytes(4) + bytes(size - 4)
    frame = data(80, data=content, crc=crc32(content))
    assert last_report(node.take(frame)).end == 80 + size


def test_a_frame_before_the_welcome_is_refused() -> None:
    node = Node()
    assert refusal(node.take(data(100, epoch=1))) is errors.REPLICA_FRAME_ILLEGAL
    assert node.log.end == 100


@pytest.mark.parametrize(
    ("frame", "error", "is_final"),
    [
        (welcome(60), errors.REPLICA_FRAME_ILLEGAL, False),
        (welcome(epochs=Epochs.of([(1, 0), (8, 80)])), errors.REPLICA_FRAME_ILLEGAL, False),
        (welcome(end=PhysicalOffset(70)), errors.REPLICA_FRAME_ILLEGAL, False),
        (welcome(50, epochs=Epochs.of([(1, 0), (9, 50)])), errors.STORE_DIVERGED, True),
        (welcome(0, epochs=Epochs.of([(9, 50)])), errors.STORE_DIVERGED, True),
    ],
)
def test_a_welcome_that_does_not_fit_cuts_nothing(frame: Welcome, error: ErrorSpec, is_final: bool) -> None:
    node = Node()
    actions = node.take(frame)
    assert refusal(actions) is error
    assert [one.is_final for one in actions if isinstance(one, End)] == [is_final]
    assert (node.log.end, node.state.promised) == (100, 1)


def test_a_leader_of_a_former_epoch_is_refused() -> None:
    node = Node()
    node.state.promised = 16
    assert refusal(node.take(welcome())) is errors.EPOCH_STALE


def test_after_a_promise_to_another_leader_nothing_is_appended() -> None:
    node = Node()
    node.take(welcome())
    node.state.promised = 16
    assert refusal(node.take(data(80))) is errors.EPOCH_STALE
    assert node.log.end == 80
    assert node.side.flushed() == [], "and nothing is reported"


def test_a_log_that_ends_before_the_leaders_starts_again() -> None:
    node = Node(end=40, commit=40)
    epochs = Epochs.of([(1, 0), (9, 500)])
    begin = PhysicalOffset(400)
    actions = node.take(welcome(400, epochs=epochs, begin=begin, end=PhysicalOffset(600), joins=True))
    assert actions[:2] == [Promise(9), Join(begin, OLD)]
    assert last_report(actions).end == 400


def test_a_follower_cut_its_log_for_an_epoch_that_the_leader_had_forgotten() -> None:
    """The cut changes nothing: the node's file keeps the epochs of that log. It was given out for ever."""
    node = Node(epochs=Epochs.of([(1, 0), (9, 40)]))
    node.state.promised = 9
    epochs = Epochs.of([(9, 40), (17, 100)])
    frame = welcome(100, epoch=17, epochs=epochs, begin=PhysicalOffset(50), end=PhysicalOffset(110))
    assert node.take(frame)[:-1] == [Promise(17)]
    node.take(data(100, epoch=17))
    assert node.state.epochs == Epochs.of([(1, 0), (9, 40), (17, 100)])


def beat(begin: int, commit: int) -> Heartbeat:
    others = InSyncSet(9, 5, frozenset({A, C}))
    return Heartbeat(9, PhysicalOffset(commit), PhysicalOffset(90), 7, others, PhysicalOffset(begin))


def test_a_follower_removes_nothing_that_its_leader_has() -> None:
    node = Node()
    node.take(welcome())
    assert node.side.trim_to == 0, "where the leader's log begins is not known yet"
    node.take(beat(40, 80))
    assert node.side.trim_to == 40


def test_a_follower_removes_nothing_before_it_has_the_copies() -> None:
    node = Node()
    node.take(welcome())
    node.take(data(80))
    node.take(beat(60, 90))
    assert node.side.trim_to == 0, "the leader's commit then is not on this disk"
    node.take(data(90))
    node.take(beat(60, 100))
    node.log.flushed = PhysicalOffset(90)
    assert node.side.trim_to == 60, "a later commit does not count"


def test_a_follower_removes_nothing_for_a_leader_that_it_follows_no_more() -> None:
    node = Node()
    node.take(welcome())
    node.take(beat(40, 80))
    node.side.ended()
    assert node.side.trim_to == 0
    node.side.hello(0)
    node.take(welcome())
    assert node.side.trim_to == 0


def test_only_a_copy_of_the_set_stores_it() -> None:
    node = Node()
    node.take(welcome())
    others, mine = InSyncSet(9, 5, frozenset({A, C})), InSyncSet(9, 6, frozenset({A, B}))
    beat = Heartbeat(9, PhysicalOffset(80), PhysicalOffset(90), 7, others)
    assert last_report(node.take(beat)) == Progress(9, PhysicalOffset(80), PhysicalOffset(80), 0, 7)
    assert node.state.in_sync is None
    actions = node.take(Heartbeat(9, PhysicalOffset(80), PhysicalOffset(90), 8, mine))
    assert actions[0] == StoreSet(mine)
    assert last_report(actions).set_version == 6


def test_the_commit_is_never_beyond_the_log() -> None:
    node = Node()
    node.take(welcome())
    node.take(data(80, commit=1_000))
    assert node.state.commit == 90
    node.take(Heartbeat(9, PhysicalOffset(50), PhysicalOffset(90), 0, InSyncSet(9, 5, frozenset({A, C}))))
    assert node.state.commit == 90
    assert node.side.lag_bytes == 0


def test_a_report_without_a_change_is_sent_only_as_an_answer() -> None:
    node = Node()
    node.take(welcome())
    assert node.side.flushed() == []
    beat = Heartbeat(9, PhysicalOffset(80), PhysicalOffset(90), 7, InSyncSet(9, 5, frozenset({A, C})))
    assert last_report(node.take(beat)).echo_ms == 7
    assert node.side.flushed() == []
    node.side.ended()
    node.side.hello(0)
    actions = node.take(welcome(80))
    assert last_report(actions).echo_ms == 0, "another leader's clock is another one"


def test_where_the_group_syncs_a_frame_has_one_report_that_of_its_sync() -> None:
    node = Node(is_sync=True)
    node.take(welcome())
    assert node.take(data(80)) == []
    node.log.flushed = node.log.end
    assert last_report(node.side.flushed()) == Progress(9, PhysicalOffset(90), PhysicalOffset(90), 0)


def test_a_sync_that_takes_long_does_not_close_the_leaders_window() -> None:
    node = Node(is_sync=True)
    node.take(welcome())
    frame = UNREPORTED_BYTES_MAX // 2
    assert node.take(data(80, frame)) == []
    report = last_report(node.take(data(80 + frame, frame)))
    assert (report.end, report.flushed) == (80 + 2 * frame, 80)


def test_the_stream_of_a_silent_leader_ends() -> None:
    node = Node()
    node.take(welcome())
    assert node.side.tick(2_999) == []
    assert refusal(node.side.tick(3_000)) is errors.BROKER_UNREACHABLE


def test_a_join_of_more_than_three_seconds_ended_its_own_stream() -> None:
    node = Node(end=40, commit=40)
    epochs, begin = Epochs.of([(1, 0), (9, 500)]), PhysicalOffset(400)
    frame = welcome(400, epochs=epochs, begin=begin, end=PhysicalOffset(600), joins=True)
    assert node.side.frame(frame, 0) == [Promise(9)]
    node.do(Promise(9))
    assert node.side.done() == [Join(begin, OLD)]
    assert node.side.tick(60_000) == []
    node.do(Join(begin, OLD))
    assert last_report(node.side.done()).end == 400
    assert node.side.tick(62_999) == []
    assert refusal(node.side.tick(63_000)) is errors.BROKER_UNREACHABLE


def test_a_stream_that_ended_within_a_promise_cuts_nothing() -> None:
    node = Node()
    assert node.side.frame(welcome(), 0) == [Promise(9)]
    node.side.ended()
    node.do(Promise(9))
    assert node.side.done() == []
    assert node.side.hello(0).end == 100


# --- the choice -----------------------------------------------------------------------------------------
def promised(who: Identity, epoch: int, end: int, in_sync: InSyncSet | None, last: int = 1) -> Promised:
    return Promised(who, epoch, Epochs.of([(last, 0)]), PhysicalOffset(end), in_sync)


def test_the_copy_of_the_newest_set_leads_not_the_longest_log() -> None:
    both, without_c = InSyncSet(1, 5, frozenset({A, B, C})), InSyncSet(1, 6, frozenset({A, B}))
    answers = [promised(B, 8, 100, without_c), promised(C, 8, 900, both)]
    assert choose(answers, 8, voters=3, in_sync_min=2) == "b"


def test_of_equal_sets_the_newer_epoch_then_the_longer_log_leads() -> None:
    all_three = InSyncSet(1, 5, frozenset({A, B, C}))
    answers = [
        promised(A, 8, 100, all_three),
        promised(B, 8, 90, all_three, last=2),
        promised(C, 8, 80, all_three),
    ]
    assert choose(answers, 8, voters=3, in_sync_min=2) == "b"


@pytest.mark.parametrize(
    "answers",
    [
        [promised(B, 8, 100, InSyncSet(1, 5, frozenset({A, B})))],
        [promised(B, 8, 100, InSyncSet(1, 5, frozenset({A, B}))), promised(C, 8, 0, None)],
        [
            promised(B, 8, 100, InSyncSet(1, 5, frozenset({A, B}))),
            promised(C, 7, 100, InSyncSet(1, 5, frozenset({C}))),
        ],
        [
            promised(B._replace(incarnation=1), 8, 100, InSyncSet(1, 6, frozenset({A, B}))),
            promised(C, 8, 100, InSyncSet(1, 5, frozenset({A, B, C}))),
        ],
    ],
)
def test_too_few_promises_or_a_lost_copy_choose_nobody(answers: list[Promised]) -> None:
    with pytest.raises(TroveError) as refused:
        choose(answers, 8, voters=3, in_sync_min=2)
    assert refused.value.spec is errors.NOT_ENOUGH_REPLICAS


def test_after_a_promise_a_follower_followed_another_operators_leader() -> None:
    """The answer lacked the records that it acknowledged to that leader, and they were lost."""
    low, high = (epoch_to_promise(1, gatherer, "abc") for gatherer in "ac")
    node = Node()
    node.state.promised = high
    leader = epoch_of_leader(low, "a", "abc")
    epochs = OLD.begun(leader, PhysicalOffset(80))
    assert refusal(node.take(welcome(epoch=leader, epochs=epochs))) is errors.EPOCH_STALE


def test_each_leader_of_a_gathering_is_below_the_next_ones_promise() -> None:
    voters = "abcdefg"
    promises = [epoch_to_promise(200, gatherer, voters) for gatherer in voters]
    for low, high in pairwise([*promises, epoch_to_promise(max(promises), "a", voters)]):
        assert max(epoch_of_leader(low, node, voters) for node in voters) < high


def test_no_two_nodes_lead_in_one_epoch() -> None:
    voters = ["c", "a", "b"]
    assert epoch_to_promise(0, "a", voters) == 64
    assert epoch_to_promise(100, "b", voters) == 136
    assert {epoch_of_leader(136, node, voters) for node in "abc"} == {136, 137, 138}
    assert [needed(3, 2), needed(2, 2), needed(5, 3), needed(1, 1)] == [2, 1, 3, 1]
