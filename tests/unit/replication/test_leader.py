"""A leader, frame by frame: reports that count, refusals, copies that are in sync."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.replication.model_log import SEGMENT_SIZE, ModelLog
from trovemq_broker.replication.commit import APPEND_ENDS_MAX, CommitOffset
from trovemq_broker.replication.frames import Data, Heartbeat, Hello, Identity, InSyncSet, Progress, Welcome
from trovemq_broker.replication.leader import (
    EndStream,
    GroupSettings,
    Leader,
    LeaderAction,
    Send,
    StepDown,
    StoreSet,
)
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.replica.epochs import Epochs

A, B, C = (Identity(name, f"store of {name}", 0) for name in "abc")
EPOCH = 9
EPOCHS = Epochs.of([(1, 0), (EPOCH, 100)])


class Group:
    """A leader `a` whose epoch record ends at 110; before it there are 100 bytes, all committed."""

    def __init__(self, *copies: Identity, in_sync_min: int = 2, is_sync: bool = True) -> None:
        self.log = ModelLog()
        self.log.append(bytes(100))
        self.log.append(bytes(10))
        self.log.flushed = self.log.end
        voters = {one.node: True for one in (A, B, C)}
        self.settings = GroupSettings(
            "cluster", "group", voters, SEGMENT_SIZE, is_sync=is_sync, in_sync_min=in_sync_min
        )
        stored = InSyncSet(1, 4, frozenset(copies))
        self.leader = Leader(self.settings, self.log, A, EPOCHS, stored, PhysicalOffset(100), 0)
        self.actions: list[LeaderAction] = []
        self.take(self.leader.begin())

    def take(self, actions: Iterable[LeaderAction], now_ms: int = 0) -> list[LeaderAction]:
        """The leader's own disk stores sets at once."""
        taken = list(actions)
        for action in taken:
            if isinstance(action, StoreSet):
                taken = [*taken, *self.leader.set_stored(action.in_sync.version, now_ms)]
        self.actions += taken
        return taken

    def hello(
        self, stream: int, who: Identity, end: int = 100, now_ms: int = 0, **fields: object
    ) -> list[LeaderAction]:
        values: dict[str, object] = {
            "cluster": "cluster",
            "group": "group",
            "identity": who,
            "promised": 1,
            "epochs": Epochs.of([(1, 0)]),
            "begin": LOG_ORIGIN,
            "end": PhysicalOffset(end),
            "commit": LOG_ORIGIN,
            "in_sync": InSyncSet(1, 3, frozenset({A, B, C})),
            "segment_size": SEGMENT_SIZE,
        }
        return self.take(self.leader.hello(stream, Hello(**{**values, **fields}), now_ms))  # type: ignore[arg-type]

    def report(
        self,
        stream: int,
        end: int,
        flushed: int | None = None,
        version: int = 0,
        now_ms: int = 0,
        echo_ms: int = 0,
    ) -> list[LeaderAction]:
        synced = PhysicalOffset(end if flushed is None else flushed)
        progress = Progress(EPOCH, PhysicalOffset(end), synced, version, echo_ms)
        return self.take(self.leader.progress(stream, progress, now_ms), now_ms)

    def append(self, size: int = 50, now_ms: int = 0) -> int:
        self.log.append(bytes(size))
        self.log.flushed = self.log.end
        self.take(self.leader.appended(now_ms), now_ms)
        return self.log.end


def refusal(actions: Iterable[LeaderAction]) -> ErrorSpec | None:
    return next((one.error.spec for one in actions if isinstance(one, EndStream)), None)


def open_group(**settings: object) -> Group:
    """Leader a and follower b, both in sync, all committed."""
    group = Group(A, B, **settings)  # type: ignore[arg-type]
    group.hello(1, B)
    group.report(1, 110, version=5)
    assert group.leader.is_open
    assert group.leader.commit == 110
    return group


def test_a_refused_append_ended_the_leader() -> None:
    group = Group(A, in_sync_min=1)
    before = group.leader.commit
    group.take(group.leader.appended(0))
    group.take(group.leader.appended(0))
    assert group.leader.commit == before
    end = group.append()
    group.take(group.leader.appended(0))
    assert group.leader.commit == end


def test_a_follower_is_sent_the_log_from_the_common_point() -> None:
    actions = Group(A, B).hello(1, B, end=60)
    welcome, heartbeat, *data = [one.frame for one in actions if isinstance(one, Send)]
    assert isinstance(welcome, Welcome)
    assert (welcome.cut_to, welcome.joins) == (60, False)
    assert isinstance(heartbeat, Heartbeat)
    frames = [one for one in data if isinstance(one, Data)]
    assert [(one.offset, one.end) for one in frames] == [(60, 100), (100, 110)], "a frame is of one epoch"


def test_nothing_is_committed_before_a_follower_has_synced() -> None:
    group = open_group()
    end = group.append()
    group.report(1, end, flushed=110, version=5)
    assert group.leader.commit == 110
    group.report(1, end, version=5)
    assert group.leader.commit == end


def test_with_async_flush_an_appended_copy_counts() -> None:
    group = open_group(is_sync=False)
    end = group.append()
    group.report(1, end, flushed=110, version=5)
    assert group.leader.commit == end


def test_nothing_is_committed_before_a_set_is_confirmed() -> None:
    group = Group(A, B)
    group.hello(1, B)
    group.report(1, 110, version=0)
    assert group.leader.commit == 100
    group.report(1, 110, version=5)
    assert group.leader.commit == 110


def test_a_copy_that_was_alone_committed_what_no_other_choice_finds() -> None:
    """After a recovery, or a forced choice: any 2 promises of the 3 voters choose the next leader."""
    group = Group(A)
    assert group.leader.commit == 100
    group.hello(1, B)
    group.report(1, 110)
    assert group.leader.commit == 100
    group.take(group.leader.tick(1_000), 1_000)
    group.report(1, 110, version=6, now_ms=1_000)
    assert group.leader.in_sync.confirmed == InSyncSet(EPOCH, 6, frozenset({A, B}))
    assert group.leader.commit == 110


def test_a_copy_alone_commits_once_the_others_are_no_members() -> None:
    group = Group(A)
    settings = replace(group.settings, voters={"a": True}, in_sync_min=1)
    group.take(group.leader.regroup(settings, 0))
    assert group.leader.commit == 110


def test_records_of_a_former_epoch_wait_for_the_epoch_record() -> None:
    commit = CommitOffset(PhysicalOffset(80), PhysicalOffset(110))
    assert not commit.held([PhysicalOffset(100), PhysicalOffset(109)])
    assert commit.offset == 80
    assert commit.held([PhysicalOffset(110)])
    assert commit.is_open


def test_an_append_is_committed_as_a_whole() -> None:
    group = open_group()
    end = group.append(500)
    group.report(1, 300, version=5)
    assert group.leader.commit == 110
    group.report(1, end, version=5)
    assert group.leader.commit == end


def test_the_ends_of_waiting_appends_are_bounded() -> None:
    commit = CommitOffset(PhysicalOffset(0), PhysicalOffset(1))
    for end in range(2, APPEND_ENDS_MAX + 10):
        commit.appended(PhysicalOffset(end))
    assert commit.held([PhysicalOffset(APPEND_ENDS_MAX + 8)])
    assert commit.offset == APPEND_ENDS_MAX - 1
    assert commit.held([PhysicalOffset(APPEND_ENDS_MAX + 9)])


@pytest.mark.parametrize(
    ("end", "flushed", "version"), [(111, 110, 5), (110, 111, 5), (110, 110, 6), (109, 109, 5)]
)
def test_a_report_above_the_sent_bytes_ends_the_stream(end: int, flushed: int, version: int) -> None:
    group = open_group()
    assert refusal(group.report(1, end, flushed, version)) is errors.REPLICA_FRAME_ILLEGAL
    group.append()
    assert group.leader.commit == 110


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": "other"}, errors.GROUP_MISMATCH),
        ({"cluster": "other"}, errors.GROUP_MISMATCH),
        ({"segment_size": 1 << 30}, errors.SEGMENT_SIZE_MISMATCH),
        ({"identity": Identity("stranger", "s", 0)}, errors.NOT_A_MEMBER),
        ({"identity": A}, errors.NOT_A_MEMBER),
        ({"begin": PhysicalOffset(50)}, errors.REPLICA_FRAME_ILLEGAL),
        ({"epochs": Epochs.of([(1, 0), (5, 101)])}, errors.REPLICA_FRAME_ILLEGAL),
        ({"epochs": Epochs()}, errors.STORE_DIVERGED),
        ({"epochs": Epochs.of([(1, 0), (8, 90)]), "commit": PhysicalOffset(95)}, errors.STORE_DIVERGED),
        ({"epochs": Epochs.of([(2, 0)]), "commit": PhysicalOffset(95)}, errors.STORE_DIVERGED),
    ],
)
def test_a_stranger_or_another_log_is_refused(fields: dict[str, object], error: ErrorSpec) -> None:
    group = Group(A, B)
    assert refusal(group.hello(1, B, **fields)) is error  # type: ignore[arg-type]
    assert not any(isinstance(one, Send) for one in group.actions)


@pytest.mark.parametrize("fields", [{"group": "other"}, {"identity": Identity("stranger", "s", 0)}])
def test_a_higher_promise_of_a_stranger_ended_the_leadership(fields: dict[str, object]) -> None:
    group = Group(A, B)
    actions = group.hello(1, B, promised=16, **fields)  # type: ignore[arg-type]
    assert [type(one) for one in actions] == [EndStream]


def test_a_higher_promise_ends_the_leadership() -> None:
    group = Group(A, B)
    actions = group.hello(1, B, promised=16)
    assert isinstance(actions[0], StepDown)
    assert refusal(actions) is errors.EPOCH_STALE


def test_a_second_stream_of_a_node_ends_the_first() -> None:
    group = open_group()
    actions = group.hello(2, B, end=110, promised=EPOCH, epochs=EPOCHS)
    assert refusal(actions) is errors.REPLICA_STREAM_TAKEN
    assert group.leader.connected_copies == 2, "one node counts once"
    end = group.append()
    assert group.report(1, end, version=5) == [], "the former stream counts no more"
    assert group.leader.commit == 110


def test_copies_of_both_sets_count_until_the_new_one_is_confirmed() -> None:
    group = open_group()
    group.hello(3, C)
    group.report(3, 110)
    group.take(group.leader.tick(1_000), 1_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "c"]
    end = group.append()
    group.report(1, end, version=5, now_ms=1_000)
    assert group.leader.commit == 110, "c is in the proposed set"
    group.report(3, end, version=6, now_ms=1_000)
    assert group.leader.commit == end
    assert group.leader.in_sync.confirmed is not None
    assert group.leader.in_sync.confirmed.nodes == ["a", "b"], "b has not stored the new set"
    group.report(1, end, version=6, now_ms=1_000)
    assert group.leader.in_sync.confirmed.nodes == ["a", "b", "c"]


def test_a_proposed_copy_counts_however_late_it_is() -> None:
    group = open_group()
    group.hello(3, C)
    group.report(3, 110)
    group.take(group.leader.tick(1_000), 1_000)
    end = group.append(now_ms=1_000)
    for now_ms in range(1_500, 3_001, 500):
        group.report(1, end, version=5, now_ms=now_ms)
        group.take(group.leader.tick(now_ms), now_ms)
    assert group.leader.in_sync.newest.nodes == ["a", "b"], "c is late"
    assert group.leader.commit == 110, "c may have stored the set that it is in"
    group.report(1, end, version=7, now_ms=3_010)
    assert group.leader.commit == end


def test_a_copy_that_lacks_a_committed_record_is_not_added() -> None:
    group = open_group()
    group.hello(3, C, end=60)
    group.report(3, 60)
    end = group.append()
    group.report(1, end, version=5)
    assert group.leader.commit == end
    group.report(3, 110)
    group.take(group.leader.tick(1_000), 1_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b"]


def test_with_async_flush_a_copy_was_never_added_under_load() -> None:
    """Each sync of it ended after others had committed more."""
    group = open_group(is_sync=False)
    group.hello(3, C)
    end = group.append()
    group.report(1, end, flushed=110, version=5)
    group.report(3, end, flushed=110)
    group.take(group.leader.tick(1_000), 1_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "c"]


def test_a_learner_is_never_added() -> None:
    group = open_group()
    group.hello(3, C, learner=True)
    group.report(3, 110)
    group.take(group.leader.tick(1_000), 1_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b"]


@pytest.mark.parametrize("learner", [False, True])
def test_a_new_voter_that_opened_its_stream_before_never_voted(learner: bool) -> None:
    group = open_group()
    voters = group.settings.voters
    group.take(group.leader.regroup(replace(group.settings, voters={**voters, "c": False}), 0))
    group.hello(3, C, learner=learner)
    group.report(3, 110)
    group.take(group.leader.tick(1_000), 1_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b"]
    group.take(group.leader.regroup(replace(group.settings, voters=voters), 1_000), 1_000)
    group.report(3, 110, now_ms=1_200)
    group.take(group.leader.tick(1_300), 1_300)
    assert group.leader.in_sync.newest.nodes == (["a", "b"] if learner else ["a", "b", "c"])


def test_a_dead_copy_is_removed_at_once_and_a_slow_one_after_its_time() -> None:
    group = Group(A, B, C)
    for stream, who in ((1, B), (3, C)):
        group.hello(stream, who)
        group.report(stream, 110, version=5)
    assert group.leader.commit == 110
    end = group.append()
    group.report(1, end, version=5)
    group.take(group.leader.tick(1_400), 1_400)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "c"], "c may be late for 1.5 s"
    group.take(group.leader.closed(3, 1_450, is_dead=True), 1_450)
    assert group.leader.in_sync.newest.nodes == ["a", "b"]
    group.report(1, end, version=6, now_ms=1_450)
    assert group.leader.commit == end


def test_a_copy_that_stood_still_stayed_in_the_set_instead_of_a_late_one() -> None:
    """Both are late, and one must stay: that is the one that answers, although its name is the first."""
    group = Group(A, B, C)
    for stream, who in ((1, B), (3, C)):
        group.hello(stream, who)
        group.report(stream, 110, version=5)
    end = group.append(now_ms=10)
    group.report(3, 110, version=5, now_ms=20)
    for now_ms in range(500, 1_501, 500):
        group.report(1, end, flushed=110, version=5, now_ms=now_ms)
        group.take(group.leader.tick(now_ms), now_ms)
    group.take(group.leader.tick(1_510), 1_510)
    assert group.leader.in_sync.newest.nodes == ["a", "b"], "c has answered nothing since 20"
    group.report(1, end, version=6, now_ms=1_520)
    assert group.leader.commit == end


def test_a_leader_that_stood_still_put_copies_out_of_the_set() -> None:
    """Their reports lay there, to be read after its timer."""
    group = Group(A, B, C)
    for stream, who in ((1, B), (3, C)):
        group.hello(stream, who)
        group.report(stream, 110, version=5)
    for now_ms in (500, 1_000):
        for stream in (1, 3):
            group.report(stream, 110, version=5, now_ms=now_ms)
        group.take(group.leader.tick(now_ms), now_ms)
    group.take(group.leader.tick(9_000), 9_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "c"]
    for now_ms in range(9_500, 11_000, 500):
        group.report(1, 110, version=5, now_ms=now_ms)
        group.take(group.leader.tick(now_ms), now_ms)
    assert group.leader.in_sync.newest.nodes == ["a", "b"], "c was late while the leader ran"


def test_a_report_from_before_a_pause_put_its_copy_out_of_the_set() -> None:
    """Under load it reaches no end of the log that the leader has now."""
    group, end = Group(A, B, C), 0
    for stream, who in ((1, B), (3, C)):
        group.hello(stream, who)
        group.report(stream, 110, version=5)
    for now_ms in (500, 1_000):
        end = group.append(now_ms=now_ms)
        for stream in (1, 3):
            group.report(stream, end, version=5, now_ms=now_ms)
        end = group.append(now_ms=now_ms)
        group.take(group.leader.tick(now_ms), now_ms)
    group.take(group.leader.tick(9_000), 9_000)
    group.append(now_ms=9_001)
    for stream in (1, 3):
        group.report(stream, end, version=5, now_ms=9_002)
    group.take(group.leader.tick(9_500), 9_500)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "c"]


def test_a_set_at_its_minimum_loses_no_copy() -> None:
    group = open_group()
    group.take(group.leader.closed(1, 10, is_dead=True), 10)
    group.take(group.leader.tick(60_000), 60_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b"]
    with pytest.raises(TroveError) as refused:
        group.leader.check_append()
    assert refused.value.spec is errors.NOT_ENOUGH_REPLICAS


def test_at_the_minimum_a_lost_copy_is_replaced() -> None:
    group = open_group()
    group.take(group.leader.closed(1, 10, is_dead=True), 10)
    group.hello(3, C, now_ms=20)
    group.report(3, 110, now_ms=20)
    group.take(group.leader.tick(1_100), 1_100)
    assert group.leader.in_sync.newest.nodes == ["a", "c"]
    group.report(3, 110, version=6, now_ms=1_100)
    assert group.leader.in_sync.confirmed == group.leader.in_sync.newest
    group.leader.check_append()


def test_a_copy_whose_disk_was_replaced_is_another_copy() -> None:
    group = Group(A, B, C)
    for stream, who in ((1, B), (3, C)):
        group.hello(stream, who)
        group.report(stream, 110, version=5)
    group.take(group.leader.closed(1, 10), 10)
    other = B._replace(store_id="a new disk")
    group.hello(4, other, end=0, epochs=Epochs(), in_sync=None, now_ms=20)
    group.take(group.leader.tick(30), 30)
    assert group.leader.in_sync.newest.copies == {A, C}
    group.report(4, 110, now_ms=40)
    group.report(3, 110, version=6, now_ms=40)
    group.take(group.leader.tick(1_100), 1_100)
    assert group.leader.in_sync.newest.copies == {A, C}, "no other voter has said that it promised nothing"
    group.report(3, 110, version=6, now_ms=1_110, echo_ms=1_100)
    group.report(4, 110, now_ms=1_110, echo_ms=1_100)
    group.take(group.leader.tick(1_120), 1_120)
    assert group.leader.in_sync.newest.copies == {A, C, other}


def test_an_answer_to_an_earlier_heartbeat_let_a_lost_promise_pass() -> None:
    group = open_group()
    group.take(group.leader.tick(10), 10)
    group.hello(3, C, in_sync=None, now_ms=20)
    group.report(3, 110, now_ms=20)
    group.report(1, 110, version=5, now_ms=30, echo_ms=10)
    group.report(1, 110, version=5, now_ms=30, echo_ms=900)
    group.take(group.leader.tick(1_200), 1_200)
    assert group.leader.in_sync.newest.copies == {A, B}, "the one was sent before the Hello, the other never"


def test_the_first_copies_of_a_new_group_need_no_witness() -> None:
    group = Group(A)
    group.hello(3, C, in_sync=None)
    group.report(3, 110)
    group.take(group.leader.tick(1_000), 1_000)
    assert group.leader.in_sync.newest.copies == {A, C}


def load(group: Group, until_ms: int, *, behind_ms: int, from_ms: int = 0, version: int = 5) -> None:
    """An append each 50 ms; b has it at once, c behind_ms later, always."""
    late: list[tuple[int, int]] = []
    for now_ms in range(from_ms + 50, until_ms, 50):
        end = group.append(now_ms=now_ms)
        late.append((now_ms + behind_ms, end))
        newest = group.leader.in_sync.newest
        group.report(1, end, version=newest.version, now_ms=now_ms)
        while late and late[0][0] <= now_ms:
            version = newest.version if C in newest.copies else 0
            group.report(3, end, flushed=late.pop(0)[1], version=version, now_ms=now_ms)
        group.take(group.leader.tick(now_ms), now_ms)


def test_a_copy_that_is_always_slower_never_came_back_under_load() -> None:
    group = open_group()
    group.hello(3, C)
    load(group, 5_000, behind_ms=300)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "c"]
    assert group.leader.commit > 110


def test_a_commit_waits_for_a_silent_copy_for_its_time_only() -> None:
    group = open_group()
    group.hello(3, C)
    group.report(3, 110)
    end = group.append(now_ms=100)
    group.report(1, end, version=5, now_ms=1_400)
    assert group.leader.commit == 110, "c kept up, and may be late for 1.5 s"
    group.take(group.leader.tick(1_501), 1_501)
    assert group.leader.commit == end


def test_a_commit_does_not_wait_for_a_copy_whose_stream_ended() -> None:
    group = open_group()
    group.hello(3, C)
    group.report(3, 110)
    end = group.append()
    group.report(1, end, version=5)
    assert group.leader.commit == 110
    group.take(group.leader.closed(3, 10), 10)
    assert group.leader.commit == end


def beats(actions: Iterable[LeaderAction]) -> list[Heartbeat]:
    frames = [one.frame for one in actions if isinstance(one, Send)]
    return [one for one in frames if isinstance(one, Heartbeat)]


def test_each_commit_sent_each_follower_a_heartbeat() -> None:
    group = open_group()
    group.take(group.leader.tick(10), 10)
    for now_ms in range(20, 60, 10):
        end = group.append(now_ms=now_ms)
        assert beats(group.report(1, end, version=5, now_ms=now_ms, echo_ms=10)) == []
        assert group.leader.commit == end
        assert group.leader.next_tick_ms == 22
    (beat,) = beats(group.take(group.leader.tick(60), 60))
    assert beat.commit == end
    assert group.leader.next_tick_ms == 510


def test_a_commit_that_went_with_data_is_not_sent_again() -> None:
    group = open_group(in_sync_min=1)
    group.take(group.leader.tick(10), 10)
    end = group.append(now_ms=20)
    group.report(1, end, version=5, now_ms=20, echo_ms=10)
    group.append(now_ms=21)
    assert beats(group.take(group.leader.tick(22), 22)) == []


def test_a_peer_that_reads_nothing_collected_heartbeats() -> None:
    group = open_group()
    group.take(group.leader.tick(10), 10)
    for now_ms in range(20, 500, 10):
        group.report(1, group.append(now_ms=now_ms), version=5, now_ms=now_ms)
        assert beats(group.take(group.leader.tick(now_ms + 5), now_ms + 5)) == []
    assert len(beats(group.take(group.leader.tick(510), 510))) == 1


def test_a_copy_that_lags_again_and_again_is_held_out() -> None:
    group = Group(A, B, C, in_sync_min=1)
    for stream, who in ((1, B), (3, C)):
        group.hello(stream, who)
        group.report(stream, 110, version=5)
    now_ms, version = 0, 5
    for _ in range(3):
        end = group.append()
        for _ in range(8):
            now_ms += 400
            group.report(1, end, version=version, now_ms=now_ms)
            group.take(group.leader.tick(now_ms), now_ms)
        assert group.leader.in_sync.newest.nodes == ["a", "b"]
        version = group.leader.in_sync.newest.version
        group.report(1, end, version=version, now_ms=now_ms)
        now_ms += 1_100
        group.report(1, end, version=version, now_ms=now_ms)
        group.report(3, end, version=5, now_ms=now_ms)
        group.take(group.leader.tick(now_ms), now_ms)
        version = group.leader.in_sync.newest.version
    assert group.leader.in_sync.newest.nodes == ["a", "b"], "three removals within a minute"
    now_ms += 31_000
    group.report(1, end, version=version, now_ms=now_ms)
    group.report(3, end, version=5, now_ms=now_ms)
    group.take(group.leader.tick(now_ms), now_ms)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "c"]
