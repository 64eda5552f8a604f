"""Planted faults of a replica group's acknowledgements: too early, too much visible, the wrong answer. See
planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

ACKS: Final = "tests/unit/produce/test_replica_acks.py::"
GROUP: Final = "tests/unit/server/test_replica_group.py::"
REPLICA_ACKS: Final = "broker/trovemq_broker/produce/replica_acks.py"

ACK_FAULTS: Final = (
    Planted(
        "a message is acknowledged before its commit",
        REPLICA_ACKS,
        "        return min(self._commit_offset, self._store.flushed_offset)\n",
        "        return self._store.flushed_offset\n",
        (
            f"{ACKS}test_a_message_was_acknowledged_before_its_commit",
            f"{ACKS}test_nobody_is_acknowledged_before_both",
        ),
    ),
    Planted(
        "a message is acknowledged before this node's sync",
        REPLICA_ACKS,
        "        return min(self._commit_offset, self._store.flushed_offset)\n",
        "        return self._commit_offset\n",
        (
            f"{ACKS}test_a_message_was_acknowledged_before_its_sync",
            f"{ACKS}test_nobody_is_acknowledged_before_both",
        ),
    ),
    Planted(
        "a message is acknowledged before it can be read",
        REPLICA_ACKS,
        "            self._store.limit_commits(offset)\n            grown = self._store.dispatch()\n",
        "            grown = self._store.dispatch()\n            self._store.limit_commits(offset)\n",
        (
            f"{ACKS}test_a_message_was_acknowledged_before_its_commit",
            f"{ACKS}test_nobody_is_acknowledged_before_both",
        ),
    ),
    Planted(
        "a commit makes everything visible",
        REPLICA_ACKS,
        "            self._store.limit_commits(offset)\n",
        "            self._store.limit_commits(self._store.end_offset)\n",
        (f"{ACKS}test_nobody_is_acknowledged_before_both",),
    ),
    Planted(
        "a store of a group begins without a commit limit",
        REPLICA_ACKS,
        "        store.limit_commits(self._commit_offset)\n",
        "",
        (f"{GROUP}test_with_ack_leader_one_copy_is_acknowledged",),
    ),
    Planted(
        "a time-out of the copies says that nothing was stored",
        "broker/trovemq_broker/produce/put_status.py",
        "frozenset((errors.FLUSH_DISK_TIMEOUT, errors.REPLICA_TIMEOUT))",
        "frozenset((errors.FLUSH_DISK_TIMEOUT,))",
        (f"{GROUP}test_a_late_commit_was_reported_as_a_refusal",),
    ),
    Planted(
        "a message whose copies are late is sent again",
        "clients/python/trovemq/receipts.py",
        'frozenset({"PUT_OK", *LATE_STATUSES})',
        'frozenset({"PUT_OK", "FLUSH_DISK_TIMEOUT"})',
        ("tests/unit/sdk/test_delivery.py::test_a_message_whose_copies_were_late_was_sent_again",),
    ),
    Planted(
        "a leader without enough copies appends",
        "broker/trovemq_broker/server/core/broker_core.py",
        "            store.check_append = replicated.check_append\n",
        "",
        (
            f"{GROUP}test_without_enough_copies_something_was_stored",
            f"{GROUP}test_without_enough_copies_the_broker_writes_nothing_itself",
        ),
    ),
    Planted(
        "a consumer's offset is ahead of the commit",
        "broker/trovemq_broker/server/core/broker_core.py",
        "            store, self.group_commit.committed, self.search, self._offsets_moved",
        "            store, self.group_commit.acknowledgeable, self.search, self._offsets_moved",
        (f"{GROUP}test_a_consumer_offset_was_stored_ahead_of_the_commit[leader]",),
    ),
    Planted(
        "an offset that is not visible yet is out of range",
        "broker/trovemq_broker/fetch/pull.py",
        "            if high < request.offset <= self._store.next_queue_offset(topic, queue_id):",
        "            if False:",
        (f"{GROUP}test_an_offset_before_its_commit_was_out_of_range",),
    ),
    Planted(
        "a producer is asked about a half that is not committed",
        "broker/trovemq_broker/transactions/transactions.py",
        "        if half.physical_offset >= self._store.commit_limit:",
        "        if False:",
        (f"{GROUP}test_a_producer_was_asked_about_an_uncommitted_half",),
    ),
    Planted(
        "a producer skips numbers that may be lost",
        "broker/trovemq_broker/server/native/message_service.py",
        "        await core.appender.acknowledged(topic, core.store.end_offset)",
        "        pass",
        (f"{GROUP}test_a_producer_skipped_numbers_that_were_not_committed",),
    ),
    Planted(
        "offsets are stored ahead of a letter that they need",
        "broker/trovemq_broker/fetch/offsets.py",
        "offsets.log_needed > self._store.lasting_offset",
        "offsets.log_needed > self._store.flushed_offset",
        (f"{GROUP}test_offsets_were_stored_ahead_of_a_letter_that_they_need[sync]",),
    ),
    Planted(
        "an uncommitted end of a half message moves its stored position",
        "broker/trovemq_broker/transactions/transaction_log.py",
        "self._saved_at = self._store.lasting_offset",
        "self._saved_at = self._store.flushed_offset",
        (f"{GROUP}test_an_uncommitted_end_of_a_half_moved_its_stored_position",),
    ),
    Planted(
        "the start of a leader saves a snapshot of uncommitted records",
        "broker/trovemq_broker/state/consumer_state.py",
        "if work.log_end <= self._store.lasting_offset or",
        "if work.log_end <= self._store.flushed_offset or",
        (f"{GROUP}test_a_start_saved_a_snapshot_of_records_that_may_be_cut[False]",),
    ),
    Planted(
        "the records of a leader's start are sent with its next message",
        "broker/trovemq_broker/daemon/replica/leader_role.py",
        "        self.is_serving = True\n        self.streams.appended()\n",
        "        self.is_serving = True\n",
        ("tests/unit/daemon/test_node_changes.py::test_records_of_a_start_waited_for_the_next_message",),
    ),
    Planted(
        "a leader ends when a send was refused and nothing was appended",
        "broker/trovemq_broker/replication/commit.py",
        'assert end >= self._last, "appends follow each other"',
        'assert end > self._last, "appends follow each other"',
        ("tests/unit/replication/test_leader.py::test_a_refused_append_ended_the_leader",),
    ),
)
