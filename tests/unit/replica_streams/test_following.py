"""Followers with real engines: they catch up, follow beside load, come back, cut records of no leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.replica_streams.nodes_here import GroupHere, NodeHere, run
from trovemq_broker.replication.frames import FRAME_BYTES_MAX, InSyncSet, Offset
from trovemq_broker.replication.kept_log import KeptLimits
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.cut_records import cut_files


def check_copy(leader: NodeHere, follower: NodeHere) -> None:
    assert follower.log_bytes == leader.log_bytes
    assert follower.bodies == leader.bodies
    assert follower.state.epochs == leader.state.epochs == follower.replica.epochs


def test_a_follower_has_the_leaders_bytes() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        for number in range(40):
            leader.send(number % 5 + 1, 300, queue=number % 2)
        leader.transact(6)
        await group.until_equal()
        assert leader.store.segment_count > 1
        check_copy(leader, group["b"])
        assert group["b"].grown == leader.grown
        await group.stop()

    run(program)


@pytest.mark.parametrize("seed", range(4))
def test_three_nodes_follow_beside_load(seed: int) -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        committed: list[int] = []
        leader.leading().on_commit(lambda: committed.append(leader.leading().commit_offset))
        for number in range(120):
            if number % 9 == 4:
                leader.transact(5, 200)
            else:
                leader.send(number % 4 + 1, 150, queue=number % 2)
            await asyncio.sleep(0.001 * (number % 5))
        await group.until_equal()
        assert committed == sorted(set(committed))
        assert leader.leading().commit_offset == leader.store.end_offset
        assert leader.leading().copies == 3
        for name in "bc":
            check_copy(leader, group[name])
        await group.stop()

    run(program, seed)


def test_a_report_overtakes_none_that_waits_for_space() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        await group.start("a")
        await group.until_equal()
        stream, at_once = group["b"].following, list[bytes]()

        def write_at_once(data: bytes) -> bool:
            at_once.append(data)
            return True

        assert stream is not None
        assert stream.follower is not None
        report = stream.follower._reported
        assert report is not None
        stream._write_now = lambda _data: False
        stream._report(report)
        stream._write_now = write_at_once
        stream._report(report)
        assert not at_once, "the first one waits still"
        await group.until(lambda: stream._progress is None)
        stream._report(report)
        assert len(at_once) == 1
        await group.stop()

    run(program)


def test_readers_see_nothing_that_is_not_committed() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        await group["b"].kill()
        visible = leader.store.visible_offset
        end = leader.send()
        await group.until(lambda: leader.store.flushed_offset == end)
        await asyncio.sleep(1)
        assert leader.leading().commit_offset < end
        assert leader.store.visible_offset == visible
        await group["b"].start()
        await group["b"].follow()
        await group.until_equal()
        assert leader.store.visible_offset == end
        await group.stop()

    run(program)


def test_a_killed_follower_comes_back_and_continues() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        follower = group["b"]
        for _ in range(4):
            leader.send(3, 500)
            await follower.kill()
            for _ in range(6):
                leader.send(3, 500)
                await asyncio.sleep(0.005)
            await follower.start()
            await follower.follow()
            await group.until(lambda: follower.following is not None and follower.following.is_following)
        await group.until_equal()
        check_copy(leader, follower)
        assert follower.cuts == 0
        await group.stop()

    run(program)


def test_a_damaged_record_that_one_follower_lacks_ended_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        await group.until_equal()
        await group["c"].kill()
        damaged, read = leader.store.end_offset, leader.log.read

        async def commit() -> None:
            end = leader.send(3, 500)
            await group.until(lambda: leader.leading().commit_offset >= end)

        await commit()

        def damaged_read(offset: Offset, size_max: int) -> tuple[bytes, int]:
            if offset == damaged:
                raise TroveError(errors.STORE_FAILED, "damaged")
            return read(offset, size_max)

        monkeypatch.setattr(leader.log, "read", damaged_read)
        streams = [one for one in leader.leading()._links.values() if one.node == "b"]
        await group["c"].start()
        await group["c"].follow()
        await group.until(lambda: bool(leader.leading().problem))
        for _ in range(20):
            await commit()
            await asyncio.sleep(0.1)
        assert [one for one in leader.leading()._links.values() if one.node == "b"] == streams
        monkeypatch.undo()
        await group.until_equal()
        await group.stop()

    run(program)


def test_a_dead_follower_is_removed_at_once() -> None:
    async def program(loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        await group["c"].kill()
        began = loop.time()
        end = leader.send()
        await group.until(lambda: leader.leading().commit_offset >= end)
        assert loop.time() - began < 0.5, "it was not waited for"
        assert leader.leading().copies == 2
        await group.stop()

    run(program)


def test_too_few_copies_refuse_appends() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        await group["b"].kill()
        await group.until(lambda: leader.leading().leader.connected_copies == 1)
        with pytest.raises(TroveError) as caught:
            leader.send()
        assert caught.value.spec is errors.NOT_ENOUGH_REPLICAS
        await group.stop()

    run(program)


def test_a_silent_connection_is_opened_again() -> None:
    async def program(loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        loop.silence()
        end = leader.send()
        await group.until(lambda: leader.leading().commit_offset >= end)
        await group.until_equal()
        check_copy(leader, group["b"])
        await group.stop()

    run(program)


def test_a_tail_that_the_new_leader_has_not_is_cut() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        former = await group.start("a")
        former.send(5)
        await group.until_equal()
        agreed = former.store.end_offset
        await group["b"].kill()
        for _ in range(30):
            former.messages.send("orders", 0, 4, 400)
            former.appended()
        await group.until(lambda: former.store.flushed_offset == former.store.end_offset)
        assert former.store.segment_count > 1
        await group["b"].start()
        await group["b"].lead(200)
        await former.follow()
        await group.until_equal()
        assert former.cuts == 1
        assert former.store.log.segments.at(agreed) is not None
        assert cut_files(former.files), "the records that were cut are kept"
        group["b"].send(5)
        await group.until_equal()
        check_copy(group["b"], former)
        await group.stop()

    run(program)


def test_a_deposed_leader_steps_down_when_it_hears_of_it() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        former = await group.start("a")
        former.send()
        await group.until_equal()
        await group["b"].promise(64)
        await group["b"].follow()
        await group.until(lambda: former.stepped_down == [64])
        with pytest.raises(TroveError) as caught:
            former.leading().check_append()
        assert caught.value.spec is errors.NOT_LEADER
        await group.stop()

    run(program)


def test_a_copied_store_gets_only_the_rest() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        for _ in range(20):
            leader.send(5, 400)
        await group.until_equal()
        await group["c"].kill()
        await group["b"].kill()
        group["c"].files = group["b"].files.after_process_kill()
        for name in "bc":
            await group[name].start()
        copied = group["c"].store.end_offset
        appended: list[int] = []
        log = group["c"].log
        raw = log.append_raw

        def noted(offset: Offset, data: bytes | memoryview, blank: int) -> None:
            appended.append(offset)
            raw(offset, data, blank)

        log.append_raw = noted  # type: ignore[method-assign]
        for name in "bc":
            await group[name].follow()
        await group.until(lambda: leader.leading().leader.connected_copies >= 2)
        leader.send()
        await group.until_equal()
        assert min(appended) == copied > 0
        check_copy(leader, group["c"])
        await group.stop()

    run(program)


def test_an_empty_store_gets_the_whole_log() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        for _ in range(30):
            leader.send(5, 400)
        await group.until_equal()
        await group["c"].kill()
        lost = group.nodes["c"] = NodeHere(group, "c")
        lost.address = group["b"].address.with_port(7_100)
        lost.identity = lost.identity._replace(store_id="another store")
        await lost.start()
        await lost.follow()
        await group.until_equal()
        check_copy(leader, lost)
        await group.until(lambda: lost.identity in leader.leading().leader.in_sync.counted)
        await group.stop()

    run(program)


def test_a_record_beyond_a_frame_is_sent_alone() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", segment_size=4 << 20)
        leader = await group.start("a")
        leader.send(1, FRAME_BYTES_MAX + 500)
        leader.send(3, 100)
        await group.until_equal()
        check_copy(leader, group["b"])
        await group.stop()

    run(program)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_node_whose_records_the_leader_lacks_begins_again(is_old: bool) -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        if is_old:
            leader.send(5)
            await group.until_equal()
        late = group["c"]
        await late.kill()
        if not is_old:
            late = group.nodes["c"] = NodeHere(group, "c")
            late.address = group["b"].address.with_port(7_100)
        for _ in range(40):
            leader.send(5, 400)
            await asyncio.sleep(0.01)
        await group.until_equal()
        leader.store.flush_projections()
        trim_now(leader.store.trim(leader.store.closed_segments()[-1].end))
        assert leader.store.min_offset > 0
        await late.start()
        await late.follow()
        await group.until_equal()
        assert late.store.min_offset == leader.store.min_offset
        assert late.cuts == 1
        check_copy(leader, late)
        await late.kill()
        await late.start()
        assert late.store.min_offset == leader.store.min_offset
        await late.follow()
        await group.until_equal()
        check_copy(leader, late)
        await group.stop()

    run(program)


def test_a_commit_without_more_data_is_known_within_milliseconds() -> None:
    async def program(loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        await asyncio.sleep(2)
        end = leader.send()
        await group.until(lambda: leader.leading().commit_offset >= end)
        began = loop.time()
        await group.until(lambda: group["b"].state.commit >= end)
        assert loop.time() - began < 0.05, "not at the next tick of 100 ms"
        await group.stop()

    run(program)


def test_an_error_of_the_engine_ends_the_leader() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")

        def broken() -> None:
            raise AssertionError("an invariant")

        leader.leading().on_commit(broken)
        leader.send()
        with pytest.raises(AssertionError, match="an invariant"):
            await group.until(lambda: False, 5)
        await group.stop()

    run(program)


def test_a_store_with_other_committed_records_is_given_up() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        former = await group.start("a")
        former.send(5)
        await group.until_equal()
        await group["b"].kill()
        group["b"].files = MemoryFileSystem()  # an operator gave it an empty disk, and lets it lead
        before = former.log_bytes
        await group["b"].start()
        await group["b"].lead(200)
        await former.follow()
        await group.until(lambda: former.final is not None)
        assert former.final is not None
        assert former.final.spec is errors.STORE_DIVERGED
        assert former.following is not None
        assert "STORE_DIVERGED" in former.following.problem
        assert former.log_bytes == before
        await group.stop()

    run(program)


def test_a_node_that_is_no_member_any_more_loses_its_stream() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        leader.send()
        await group.until_equal()
        leader.leading().regroup(replace(group.group, voters={"a": True, "b": True}))
        following = group["c"].following
        assert following is not None
        await group.until(lambda: "NOT_A_MEMBER" in following.problem)
        end = leader.send()
        await group.until(lambda: leader.leading().commit_offset >= end)
        assert group["c"].store.end_offset < end
        await group.stop()

    run(program)


@pytest.mark.parametrize(
    ("error", "ends"), [(TroveError(errors.DISK_FULL), False), (ValueError("an older set"), True)]
)
def test_a_set_that_cannot_be_stored_is_stored_later_or_ends_the_leader(
    error: Exception, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")

        def refused(_in_sync: InSyncSet) -> None:
            raise error

        monkeypatch.setattr(leader.leading(), "_store_set", refused)
        await group["c"].kill()
        if ends:
            with pytest.raises(ValueError, match="an older set"):
                await group.until(lambda: False, 5)
            return
        await group.until(lambda: "DISK_FULL" in leader.leading().problem)
        end = leader.send()
        await asyncio.sleep(2)
        assert leader.leading().commit_offset < end, "the set is not confirmed"
        monkeypatch.setattr(leader.leading(), "_store_set", leader._store_set)
        await group.until(lambda: leader.leading().commit_offset >= end)
        assert leader.leading().problem == ""
        await group.stop()

    run(program)


def test_a_leader_keeps_its_log_for_a_node_that_is_away_and_then_names_it() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        group.group = replace(group.group, kept=KeptLimits(away_max_ms=5_000))
        leader = await group.start("a")
        leader.send(3)
        await group.until_equal()
        end = leader.store.end_offset
        await group["c"].kill()
        await group.until(lambda: leader.leading().copies == 2)
        leader.send(3)
        await group.until_equal()
        assert leader.leading().needed_from == end
        assert not leader.leading().not_kept
        await asyncio.sleep(5)
        assert leader.leading().needed_from == leader.store.end_offset
        assert leader.leading().not_kept == {"c"}
        await group["c"].start()
        await group["c"].follow()
        await group.until_equal()
        assert leader.leading().needed_from == leader.store.end_offset
        assert not leader.leading().not_kept
        await group.stop()

    run(program)


def test_a_follower_hears_where_its_leaders_log_begins() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        while leader.store.segment_count < 3:
            leader.send(4, 600)
            await group.until_equal()
        leader.store.flush_projections(index=True)
        trim_now(leader.store.trim(leader.store.closed_segments()[0].end))
        following = group["b"].following
        assert following is not None
        assert following.follower is not None
        core = following.follower
        await group.until(lambda: core.trim_to == leader.store.min_offset > 0)
        await group.stop()

    run(program)
