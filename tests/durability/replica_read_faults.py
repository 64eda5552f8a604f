"""Planted faults of reads from followers. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

BROKER: Final = "broker/trovemq_broker/"
LAG: Final = "tests/unit/replication/test_read_lag.py::"
READS: Final = "tests/unit/server/test_replica_reads.py::"
ROLE: Final = "tests/unit/daemon/test_follower_reads.py::"

REPLICA_READ_FAULTS: Final = (
    Planted(
        "a heartbeat counts from its arrival, also one that lay in a buffer",
        f"{BROKER}replication/read_lag.py",
        "        at_ms = now_ms - self._delay_ms(now_ms - sent_ms, now_ms)\n",
        "        at_ms = now_ms\n",
        (f"{LAG}test_heartbeats_that_lay_in_a_buffer_made_the_lag_nothing",),
    ),
    Planted(
        "a follower that lags counts as one that has all",
        f"{BROKER}replication/read_lag.py",
        "or newest is None or visible < sought[0]:",
        "or newest is None:",
        (f"{LAG}test_the_lag_is_never_shorter_than_it_is[1]",),
    ),
    Planted(
        "a request with max_lag_ms is answered by a follower that has never caught up",
        f"{BROKER}replication/read_lag.py",
        "if not max_lag_ms or (lag.ms is not None and lag.ms <= max_lag_ms):",
        "if not max_lag_ms or (lag.ms or 0) <= max_lag_ms:",
        (f"{LAG}test_a_request_bears_a_lag_or_is_refused",),
    ),
    Planted(
        "the lag of a pull that waits is not looked at again",
        f"{BROKER}fetch/replica_puller.py",
        "        check_lag(lag, request.max_lag_ms)\n",
        "",
        (f"{READS}test_a_pull_that_waits_at_a_replica_without_a_leader_is_refused",),
    ),
    Planted(
        "an offset that the follower has not reached is out of range",
        f"{BROKER}fetch/replica_puller.py",
        "            if request.offset <= high:\n                raise\n",
        "            raise\n",
        (f"{READS}test_a_reader_from_the_leader_began_again_at_a_replica_with_a_lag",),
    ),
    Planted(
        "the store is closed while a call reads it",
        f"{BROKER}server/native/replica_reads.py",
        "        await self._idle.wait()\n",
        "",
        (f"{READS}test_calls_end_before_the_store_is_closed_and_later_ones_read_the_next",),
    ),
    Planted(
        "after a cut the closed store is read",
        f"{BROKER}daemon/replica/follower_role.py",
        "            await self._reads.close()\n",
        "            pass\n",
        (f"{ROLE}test_reads_continue_over_a_cut_and_never_saw_the_cut_records",),
    ),
)
