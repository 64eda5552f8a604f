"""Planted faults of the streams between nodes (replica_streams/, replica/new_log.py). See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

PACKAGE: Final = "broker/trovemq_broker/replica_streams/"
WIRE: Final = "broker/trovemq_broker/server/wire/replica_frames.py"
TESTS: Final = "tests/unit/replica_streams/"
LOGIN: Final = f"{TESTS}test_node_login.py::"
ROLES: Final = "broker/trovemq_broker/daemon/replica/"
CHANGES: Final = "tests/unit/daemon/test_node_changes.py::"

STREAM_FAULTS: Final = (
    Planted(
        "a follower reports appended bytes as synced",
        f"{PACKAGE}engine_log.py",
        "return self.store.flushed_offset",
        "return self.store.end_offset",
        (f"{TESTS}test_engine_log.py::test_appended_bytes_are_flushed_when_they_are_synced",),
    ),
    Planted(
        "a frame ends within a transaction that could begin the next one",
        f"{PACKAGE}engine_log.py",
        "if last < end < limit:",
        "if False:",
        (f"{TESTS}test_engine_log.py::test_frames_are_the_log_in_whole_records",),
    ),
    Planted(
        "an epoch without a record stays in the list",
        f"{PACKAGE}engine_log.py",
        "                self.file.end_at(self.end)\n",
        "",
        (f"{TESTS}test_engine_log.py::test_an_epoch_whose_first_record_was_refused_is_forgotten",),
    ),
    Planted(
        "a promise is in memory alone",
        f"{PACKAGE}engine_store.py",
        "        await run_in_thread(partial(self._replica.promise, epoch))\n",
        "",
        (f"{TESTS}test_following.py::test_a_follower_has_the_leaders_bytes",),
    ),
    Planted(
        "frames of two epochs are joined",
        f"{PACKAGE}outgoing.py",
        "if first.offset < self._joined_from:",
        "if False:",
        (f"{TESTS}test_outgoing.py::test_frames_of_earlier_epochs_stay_apart",),
    ),
    Planted(
        "a follower that reads nothing collects heartbeats",
        f"{PACKAGE}outgoing.py",
        "            self._heartbeat = frame\n",
        "            self._log.append(frame)\n",
        (f"{TESTS}test_outgoing.py::test_only_the_newest_heartbeat_waits",),
    ),
    Planted(
        "the certificate of another node is accepted",
        f"{PACKAGE}peers_allowed.py",
        "return members if names is None else members & names",
        "return members if names is None else members or names",
        (f"{TESTS}test_peers_allowed.py::test_the_certificate_of_another_node_is_refused_and_counted",),
    ),
    Planted(
        "a stranger gets the status of a node",
        f"{PACKAGE}peers_allowed.py",
        "if not (knows_group or node in self._members()) or (names",
        "if (names",
        (f"{LOGIN}test_a_removed_node_learns_of_it_and_a_stranger_nothing",),
    ),
    Planted(
        "a node calls a listener that checks no log-in",
        f"{ROLES}node_calls.py",
        "must_check=True",
        "must_check=False",
        (f"{LOGIN}test_a_node_calls_none_that_checks_no_log_in",),
    ),
    Planted(
        "a node that changes its role passes for a new one",
        f"{ROLES}node.py",
        "return self._completed(self._open_role.status())",
        "return self.status()",
        (f"{CHANGES}test_a_group_was_founded_beside_nodes_that_opened_their_stores",),
    ),
    Planted(
        "a node follows with another sealing key",
        "broker/trovemq_broker/replication/leader.py",
        "        self._check_key(hello)\n",
        "",
        (f"{TESTS}test_hostile_peers.py::test_a_wrong_hello_is_refused",),
    ),
    Planted(
        "a node that was removed is promoted",
        f"{ROLES}gathering.py",
        "if any(removes(one, place) for one in members if one.leads):",
        "if False:",
        ("tests/unit/daemon/test_removed_node.py::test_it_is_not_promoted",),
    ),
    Planted(
        "messages of a log-in are not checked",
        f"{PACKAGE}peers_allowed.py",
        "if came_by_tls(context) or self._sessions is None:",
        "if True:",
        (f"{TESTS}test_peers_allowed.py::test_a_node_logs_in_where_there_is_authentication",),
    ),
    Planted(
        "a leader that stepped down is still asked for appends",
        f"{PACKAGE}leader_streams.py",
        "        self.end(TroveError(errors.NOT_LEADER, text))\n",
        "",
        (f"{TESTS}test_following.py::test_a_deposed_leader_steps_down_when_it_hears_of_it",),
    ),
    Planted(
        "a dead follower is waited for",
        f"{PACKAGE}leader_streams.py",
        "self._take(partial(self.leader.closed, link.number, is_dead=is_dead))",
        "self._take(partial(self.leader.closed, link.number))",
        (f"{TESTS}test_following.py::test_a_dead_follower_is_removed_at_once",),
    ),
    Planted(
        "the parts of a frame are not counted before it is parsed",
        WIRE,
        "        check_parts(data, kind.DESCRIPTOR, parts_max, always_fine=0)\n",
        "",
        (f"{TESTS}test_replica_frames.py::test_many_small_parts_are_refused_unread",),
    ),
    Planted(
        "a log begins again without an intent",
        "store/trovemq_store/replica/new_log.py",
        "    files.write_atomic(PATH, seal(msgspec.json.encode(_Content(begin=begin, epochs=entries))))\n",
        "",
        ("tests/unit/replica/test_new_log.py::test_a_log_begins_again_at_the_next_start",),
    ),
    Planted(
        "the intent of a new log is removed first",
        "store/trovemq_store/replica/new_log.py",
        "    begin, epochs = _read(files, file_size)\n",
        "    begin, epochs = _read(files, file_size)\n    files.remove(PATH)\n",
        ("tests/unit/replica/test_new_log.py::test_a_crash_at_each_change_is_repaired_by_the_next_start",),
    ),
    Planted(
        "a change of a node's state comes between the end of a cut and its reading",
        f"{ROLES}open_node.py",
        "        with self._one_change:\n            yield\n",
        "        if True:\n            yield\n",
        (f"{CHANGES}test_a_cut_that_had_ended_came_back_with_another_change",),
    ),
    Planted(
        "a role that has ended takes a promise",
        f"{ROLES}follower_role.py",
        "            if self._has_ended:\n                return None\n",
        "",
        (f"{CHANGES}test_a_promise_began_on_the_store_of_a_role_that_had_ended",),
    ),
    Planted(
        "a cancelled caller does not wait for the end of the work on a store",
        "daemon/trovemq_daemon/threads.py",
        "            cancelled = error\n",
        "            raise\n",
        ("tests/unit/daemon/test_threads.py::test_a_cancelled_caller_continues_when_the_work_is_over",),
    ),
    Planted(
        "a record that the leader cannot send to one follower ends all streams",
        f"{PACKAGE}leader_streams.py",
        "if link is None or one.node == link.node",
        "if True",
        (f"{TESTS}test_following.py::test_a_damaged_record_that_one_follower_lacks_ended_all_streams",),
    ),
)
