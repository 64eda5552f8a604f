"""Planted faults of the nameserver and of the daemons' common part. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

DAEMON_FAULTS: Final = (
    Planted(
        "a broker of another address takes a live broker's name",
        "nameserver/trovemq_nameserver/routes.py",
        "        if before.route.broker.address != broker.address:\n            return False\n",
        "",
        ("tests/unit/nameserver/test_routes.py::TestRouteTable::runTest",),
    ),
    Planted(
        "a broken broker is in the routes for as long as a silent one",
        "nameserver/trovemq_nameserver/routes.py",
        "self.broken_at + limits.broker_broken_ms",
        "self.broken_at + limits.broker_silent_ms",
        ("tests/unit/nameserver/test_routes.py::TestRouteTable::runTest",),
    ),
    Planted(
        "a lost broker that registers again stays lost, too",
        "nameserver/trovemq_nameserver/routes.py",
        "        self._name_by_session[session] = broker.name\n        self._lost.forget(broker.name)\n",
        "        self._name_by_session[session] = broker.name\n",
        (
            "tests/unit/nameserver/test_routes.py::"
            "test_a_lost_broker_is_known_until_it_returns_and_one_that_left_is_not",
        ),
    ),
    Planted(
        "a heartbeat without news is a change of the routes",
        "nameserver/trovemq_nameserver/routes.py",
        "        if route is not found.route:\n",
        "        if True:\n",
        ("tests/unit/nameserver/test_routes.py::test_a_heartbeat_alone_changes_no_version",),
    ),
    Planted(
        "one broker more than the limit registers",
        "nameserver/trovemq_nameserver/routes.py",
        "if before is None and len(self._by_name) >= self._limits.brokers_max:",
        "if before is None and len(self._by_name) > self._limits.brokers_max:",
        ("tests/unit/nameserver/test_routes.py::TestRouteTable::runTest",),
    ),
    Planted(
        "a watcher of some topics gets every change",
        "nameserver/trovemq_nameserver/service.py",
        "            if routes != sent:\n",
        "            if True:\n",
        ("tests/unit/nameserver/test_services.py::test_a_watcher_of_topics_hears_of_those_alone",),
    ),
    Planted(
        "a secret that was replaced is valid until the next start",
        "nameserver/trovemq_nameserver/users.py",
        'for name in ("secret_key", "old_secret_key") if name in values]',
        'for name in ("old_secret_key", "secret_key") if name in values]',
        ("tests/unit/nameserver/test_users.py::test_a_user_who_did_not_change_is_the_same_when_read_again",),
    ),
    Planted(
        "an access key that is there twice has the rights of both",
        "nameserver/trovemq_nameserver/users.py",
        "            if user.access_key in users:\n",
        "            if False:\n",
        ("tests/unit/nameserver/test_users.py::test_a_file_with_a_fault_is_refused_and_shows_no_secret",),
    ),
    Planted(
        "a call number is accepted twice",
        "daemon/trovemq_daemon/sessions.py",
        "        if not bit or self._taken & bit:",
        "        if not bit:",
        ("tests/unit/security/test_sessions.py::test_a_call_that_is_sent_again_is_refused",),
    ),
    Planted(
        "a session outlives its secret",
        "daemon/trovemq_daemon/sessions.py",
        " or not user.enabled or session.secret not in user.secrets:",
        " or not user.enabled:",
        ("tests/unit/security/test_sessions.py::test_a_session_ends_with_its_secret",),
    ),
    Planted(
        "an expired handshake still makes a session",
        "daemon/trovemq_daemon/sessions.py",
        "        if begun is None or not 0 <= now_ms - begun.began_ms <= HANDSHAKE_TIME_MAX_MS:",
        "        if begun is None:",
        ("tests/unit/security/test_sessions.py::test_a_handshake_has_a_time",),
    ),
    Planted(
        "space that a cancelled call was granted is never free again",
        "daemon/trovemq_daemon/reply_budget.py",
        "            if granted.done() and not granted.cancelled():\n                "
        "self.budget.release(granted.result())\n",
        "",
        ("tests/unit/daemon/test_reply_budget.py::test_space_that_a_cancelled_call_was_given_is_free_again",),
    ),
    Planted(
        "a large claim takes the space of the small ones",
        "daemon/trovemq_daemon/bytes_budget.py",
        "        if not self._is_small(size) and self._large + size > self.large_max:\n    "
        "        return False\n",
        "",
        (
            "tests/unit/daemon/test_bytes_budget.py::"
            "test_small_messages_pass_while_large_ones_fill_their_share",
        ),
    ),
    Planted(
        "a peer's only message waits for ever",
        "daemon/trovemq_daemon/bytes_budget.py",
        "        if own and own + size > self.peer_max:",
        "        if own + size > self.peer_max:",
        (
            "tests/unit/daemon/test_bytes_budget.py::"
            "test_two_large_messages_could_wait_for_each_other_for_ever",
        ),
    ),
    Planted(
        "a refused connection counts as open",
        "daemon/trovemq_daemon/limits.py",
        "        if self._inner is not None and not self._inner.opened(peer):\n            "
        "return False\n        self.count += 1\n",
        "        self.count += 1\n        if self._inner is not None and not "
        "self._inner.opened(peer):\n            return False\n",
        ("tests/unit/daemon/test_limits.py::test_idle_connections_took_every_descriptor_of_the_store",),
    ),
    Planted(
        "a secret is taken from the command line",
        "daemon/trovemq_daemon/settings.py",
        '        if known.secret and given.source.startswith("--"):',
        "        if False:",
        (
            "tests/unit/settings/test_secret_settings.py::"
            "test_it_is_refused_on_a_command_line[initAuthenticationUser]",
        ),
    ),
    Planted(
        "one check that fails leaves the daemon ready",
        "daemon/trovemq_daemon/ops_http.py",
        "        ready = not any(problems.values())\n",
        "        ready = not all(problems.values())\n",
        ("tests/unit/daemon/test_ops_http.py::test_readiness_names_what_is_wrong",),
    ),
    Planted(
        "kinds of events beyond the limit are logged each",
        "daemon/trovemq_daemon/minute_log.py",
        "        elif len(self._again) >= KINDS_MAX:\n            self._others += 1\n",
        "",
        ("tests/unit/daemon/test_minute_log.py::test_kinds_beyond_the_limit_are_counted_together",),
    ),
    Planted(
        "a setting at its upper bound is refused",
        "daemon/trovemq_daemon/settings.py",
        "if self.maximum is not None and value > self.maximum:",
        "if self.maximum is not None and value >= self.maximum:",
        ("tests/unit/daemon/test_settings.py::test_the_printed_config_is_a_config",),
    ),
    Planted(
        "a nameserver that did not run for a while takes its brokers for silent",
        "nameserver/trovemq_nameserver/service.py",
        "stalled, last = now - last > 5 * EXPIRY_INTERVAL_MS, now",
        "stalled, last = False, now",
        (
            "tests/unit/nameserver/test_silence.py::"
            "test_a_nameserver_that_was_stopped_for_a_while_lost_its_brokers",
        ),
    ),
    Planted(
        "watchers do not hear of a broker whose stream broke",
        "nameserver/trovemq_nameserver/service.py",
        '            get_logger().warning("broker.lost", broker=name)\n        self.changed()\n',
        '            get_logger().warning("broker.lost", broker=name)\n',
        (
            "tests/unit/nameserver/test_silence.py::"
            "test_watchers_were_not_woken_when_a_broken_stream_expired",
            "tests/unit/nameserver/test_silence.py::test_watchers_were_not_woken_when_a_broker_was_silent",
        ),
    ),
    Planted(
        "a silent stream stays open",
        "nameserver/trovemq_nameserver/service.py",
        "            timeout.reschedule(asyncio.get_running_loop().time())\n",
        "",
        ("tests/unit/nameserver/test_silence.py::test_a_stream_that_never_registers_is_ended",),
    ),
)
