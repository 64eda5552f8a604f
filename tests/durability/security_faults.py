"""Planted faults of users, rules, quotas and the audit trail (security/). See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

SECURITY_FAULTS: Final = (
    Planted(
        "a deny does not count beside an allow of a longer prefix",
        "broker/trovemq_broker/security/rules.py",
        "        return allowed & ~denied\n\n\ndef parse_sources",
        "        return allowed\n\n\ndef parse_sources",
        ("tests/unit/security/test_rules.py::test_the_decision_is_that_of_a_plain_model",),
    ),
    Planted(
        "a name of just the prefix does not match it",
        "broker/trovemq_broker/security/rules.py",
        "            if length > len(name):",
        "            if length >= len(name):",
        ("tests/unit/security/test_rules.py::test_a_prefix_did_not_match_the_name_that_is_just_the_prefix",),
    ),
    Planted(
        "a look-up of all forgets the denies of a namespace",
        "broker/trovemq_broker/security/rules.py",
        "            elif own or (pattern.kind is Kind.NAMESPACE and kind in (Kind.TOPIC, Kind.GROUP)):",
        "            elif own:",
        ("tests/unit/security/test_rules.py::test_a_look_up_of_all_topics_ignored_the_deny_of_a_namespace",),
    ),
    Planted(
        "an answer for one address is given to another",
        "broker/trovemq_broker/security/rules.py",
        'source if self._by_source else "")',
        'source if not self._by_source else "")',
        ("tests/unit/security/test_rules.py::test_a_rule_for_one_network_was_remembered_for_every_address",),
    ),
    Planted(
        "one call more than the quota may be open",
        "broker/trovemq_broker/security/quotas.py",
        "if quota.calls_max and self.calls >= quota.calls_max:",
        "if quota.calls_max and self.calls > quota.calls_max:",
        ("tests/unit/security/test_quotas.py::test_open_calls_are_counted_and_refused_above_the_limit",),
    ),
    Planted(
        "tokens are filled by seconds, not milliseconds",
        "broker/trovemq_broker/security/quotas.py",
        "self._levels[index] + rate * elapsed_ms / 1_000",
        "self._levels[index] + rate * elapsed_ms",
        ("tests/unit/security/test_quotas.py::test_who_takes_more_is_slowed_first_and_refused_after",),
    ),
    Planted(
        "a connection that closes still counts for its network",
        "broker/trovemq_broker/security/quotas.py",
        "        for name in {source, _network(source)}:",
        "        for name in {source}:",
        ("tests/unit/security/test_quotas.py::test_addresses_of_one_ipv6_network_are_counted_together",),
    ),
    Planted(
        "a query above the quota passes while another runs",
        "broker/trovemq_broker/security/quotas.py",
        "                level -= self._queries * self._query_ms\n",
        "",
        (
            "tests/unit/server/access/test_quotas_at_the_door.py::"
            "test_a_query_above_the_quota_waits_for_those_before_it",
        ),
    ),
    Planted(
        "the last enabled super user may be deleted",
        "broker/trovemq_broker/security/changes.py",
        'if no super user would be enabled any more."""\n    user = '
        "state.require_user(access_key)\n    _check_not_last(state, user)\n",
        'if no super user would be enabled any more."""\n    state.require_user(access_key)\n',
        ("tests/unit/security/test_table.py::test_the_last_super_user_stays",),
    ),
    Planted(
        "a deleted user's rules stay for the next of that name",
        "broker/trovemq_broker/security/changes.py",
        "rules = {number: rule for number, rule in state.rules.items() if rule.subject != access_key}",
        "rules = dict(state.rules)",
        ("tests/unit/security/test_table.py::TestTableMachine::runTest",),
    ),
    Planted(
        "a change counts although it is not on disk",
        "broker/trovemq_broker/security/table.py",
        "        if change.saved:\n            self._set(change.after)\n        elif change.places:",
        "        self._set(change.after)\n        if not change.saved and change.places:",
        ("tests/unit/security/test_table.py::test_a_change_that_could_not_be_saved_is_not_there[1]",),
    ),
    Planted(
        "a count of denials that found no space is lost",
        "broker/trovemq_broker/security/audit_trail.py",
        "                self._counts[key] = counted\n",
        "                pass\n",
        ("tests/unit/security/test_audit_trail.py::test_no_denial_is_lost_or_counted_twice",),
    ),
    Planted(
        "the audit records of a full batch are left out at retention",
        "broker/trovemq_broker/security/audit_trail.py",
        "                yield self._carry(batch, now_ms)\n                batch = []",
        "                batch = []",
        (
            "tests/unit/security/test_audit_trail.py::"
            "test_young_records_are_appended_again_once_and_old_ones_are_not",
        ),
    ),
    Planted(
        "messages are forwarded to a broker that checks no log-in",
        "broker/trovemq_broker/cluster/nameserver_session.py",
        "            if must_check:\n                raise ScramError(NOT_CHECKED) from None\n",
        "",
        (
            "tests/unit/nameserver/test_unchecked_log_ins.py::"
            "test_messages_went_to_a_broker_that_proves_nothing",
        ),
    ),
)
