"""Planted faults of the coordination by etcd, and of a leader's rights by its lease. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

CLIENT: Final = "broker/trovemq_broker/coordination/"
ROLES: Final = "broker/trovemq_broker/daemon/replica/"
STREAMS: Final = "broker/trovemq_broker/replica_streams/leader_streams.py"
TESTS: Final = "tests/unit/coordination/"
ELECTED: Final = "tests/unit/replica_streams/test_elected_leader.py::"
NODE: Final = "tests/unit/daemon/test_coordinated.py::"

COORDINATION_FAULTS: Final = (
    Planted(
        "a transaction without an answer is sent to another endpoint",
        f"{CLIENT}etcd_client.py",
        "pb.TxnResponse, repeats=False)",
        "pb.TxnResponse)",
        (f"{TESTS}test_etcd_client.py::test_a_transaction_without_an_answer_is_not_sent_again",),
    ),
    Planted(
        "an etcd that went back is believed",
        f"{CLIENT}etcd_replies.py",
        "if header.revision < before:",
        "if False:",
        (f"{TESTS}test_etcd_replies.py::test_an_etcd_that_was_restored_or_replaced_is_noticed",),
    ),
    Planted(
        "a comparison holds for any revision of the key",
        f"{CLIENT}etcd_coordinator.py",
        "compare=[self._compare(one) for one in compares],",
        "compare=[],",
        (f"{TESTS}test_etcd_client.py::test_a_key_is_made_once_and_changed_by_its_revision_only",),
    ),
    Planted(
        "a leader without its lease takes messages",
        STREAMS,
        "if self._election is not None and not self._election.may_append():",
        "if False:",
        (f"{ELECTED}test_without_its_lease_a_leader_takes_and_hands_out_nothing",),
    ),
    Planted(
        "a receive does not look at the lease",
        "broker/trovemq_broker/groups/delivery/receives.py",
        "            self.check_delivery(in_order=request.group.orderly)\n",
        "            pass\n",
        ("tests/unit/server/test_replica_group.py::test_a_leader_without_its_lease_hands_out_no_message",),
    ),
    Planted(
        "a node founds its group again in another etcd",
        f"{ROLES}election_group.py",
        "return place.leads and place.in_sync == first",
        "return place.leads",
        (f"{NODE}test_a_node_of_a_group_that_etcd_does_not_know_waits",),
    ),
    Planted(
        "a role that opens late leads a leadership that has ended",
        f"{ROLES}coordinated.py",
        '            role.step_down("another node leads by now")\n',
        "            pass\n",
        (f"{NODE}test_a_leader_whose_lock_is_gone_steps_down_and_its_late_role_too",),
    ),
)
