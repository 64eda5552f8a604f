"""Planted faults of a failover as clients see it: a stale leader, a message twice, a call that goes astray.
See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

NAMESERVER: Final = "tests/unit/nameserver/test_leaders.py::"
CLIENT: Final = "tests/unit/sdk/test_leaders.py::"
CALLS: Final = "tests/unit/server/rocketmq/test_leader_calls.py::"
LEADERS: Final = "nameserver/trovemq_nameserver/leaders.py"
KNOWN: Final = "clients/python/trovemq/_net/leaders.py"
DELIVERY: Final = "clients/python/trovemq/_produce/delivery.py"
FORWARDED: Final = "broker/trovemq_broker/server/rocketmq/leader_calls.py"

FAILOVER_FAULTS: Final = (
    Planted(
        "a leader of a lower epoch contests the name",
        LEADERS,
        "    if broker.epoch < before.epoch:\n        raise epoch_stale(broker, before)\n",
        "    if broker.epoch < before.epoch:\n        return False\n",
        (f"{NAMESERVER}test_a_heartbeat_of_the_version_before_counts_as_epoch_0",),
    ),
    Planted(
        "another group takes the name by a higher epoch",
        LEADERS,
        "    if None not in (broker.leader, before.leader) and _group(broker) != _group(before):\n"
        "        return False\n",
        "",
        (f"{NAMESERVER}test_another_group_of_that_name_gets_it_by_no_epoch",),
    ),
    Planted(
        "an epoch is forgotten when its leader leaves",
        LEADERS,
        "            self._by_name[name] = known._replace(heard_at=now)\n",
        "            del self._by_name[name]\n",
        (f"{NAMESERVER}test_a_paused_leader_does_not_return_after_its_successor",),
    ),
    Planted(
        "the former leader hears of its successor at its next heartbeat",
        "nameserver/trovemq_nameserver/service.py",
        "            awaited[1].reschedule(asyncio.get_running_loop().time())\n",
        "            self._awaited[session] = awaited\n",
        (f"{NAMESERVER}test_the_former_leader_and_the_watchers_hear_of_the_new_one_at_once",),
    ),
    Planted(
        "a client goes back to a leader of a lower epoch",
        KNOWN,
        " or broker.epoch >= known.epoch\n",
        " or broker.epoch >= 0\n",
        (
            f"{CLIENT}test_a_route_of_a_lower_epoch_keeps_its_topics_alone",
            f"{CLIENT}test_the_epoch_that_counts_never_falls",
        ),
    ),
    Planted(
        "the word of a node about another one counts",
        KNOWN,
        "        if group is None or leader is None or not answer.leads or answer.name != name:\n",
        "        if group is None or leader is None or answer.name != name:\n",
        (f"{CLIENT}test_a_node_leads_by_its_own_word_only",),
    ),
    Planted(
        "a send in doubt without a number is repeated",
        DELIVERY,
        "        elif in_doubt and not self._retry_in_doubt:\n",
        "        elif False:\n",
        (f"{CLIENT}test_a_send_in_doubt_without_a_number_is_not_repeated",),
    ),
    Planted(
        "late copies are a success, though the producer numbers its messages",
        "clients/python/trovemq/_produce/outgoing.py",
        "            if outcome.status == COPIES_LATE and self.owner.batch_is_late(self):\n",
        "            if False:\n",
        (f"{CLIENT}test_late_copies_are_asked_again_for_a_numbered_message",),
    ),
    Planted(
        "a forwarded send whose outcome is open is repeated",
        FORWARDED,
        "                if has_begun or not _is_undone(error):\n",
        "                if has_begun:\n",
        (f"{CALLS}test_a_send_whose_outcome_is_open_is_not_repeated",),
    ),
    Planted(
        "native calls are forwarded to a leader that does not check their users",
        "broker/trovemq_broker/daemon/replica/waiting_servers.py",
        "if status is not None and status.checks_forwarded else self._refusal()",
        "if status is not None else self._refusal()",
        (
            "tests/unit/daemon/test_waiting_servers.py::"
            "test_an_older_leader_admitted_all_calls_of_a_follower_s_clients",
        ),
    ),
)
