"""Faults planted in the remoting protocol, each found by a test."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

_FRAMES: Final = "tests/unit/remoting/test_frames.py::"
_BROKER: Final = "tests/unit/remoting/test_broker.py::"
_SIGNATURES: Final = "tests/unit/remoting/test_signatures.py::"
_WAITING: Final = "tests/unit/remoting/test_sends_that_wait.py::"
_CONNECTION: Final = "tests/unit/remoting/test_connection.py::"
_TOOLS: Final = "tests/unit/remoting/test_tool_queries.py::"
_TOOL_RIGHTS: Final = "tests/unit/remoting/test_tool_rights.py::"
_KINDS: Final = "tests/unit/remoting/test_group_kinds.py::"
_LOCKS: Final = "tests/unit/remoting/test_queue_locks.py::"
_SERVER: Final = "broker/trovemq_broker/server/remoting"

REMOTING_FAULTS: Final[tuple[Planted, ...]] = (
    Planted(
        "a group that is converted forgets its messages in flight",
        "broker/trovemq_broker/groups/delivery/own_offsets.py",
        "is_copied = state.kind is not SourceKind.TOPIC or not",
        "is_copied = state.kind is not SourceKind.TOPIC and not",
        (_KINDS + "test_a_group_that_moves_to_remoting_loses_nothing",),
    ),
    Planted(
        "a group is converted while it has members with leases",
        "broker/trovemq_broker/server/core/group_kinds.py",
        "if members := core.registry.members(name):",
        'if members := core.registry.members(""):',
        (_KINDS + "test_a_remoting_consumer_joined_a_group_with_leases",),
    ),
    Planted(
        "a next leader converts a group whose remoting consumers have not come yet",
        "broker/trovemq_broker/server/core/group_kinds.py",
        "if name in self._had_own_offsets:",
        "if name not in self._had_own_offsets:",
        (_KINDS + "test_a_next_leader_took_a_group_from_its_remoting_consumers",),
    ),
    Planted(
        "a next leader ends the leases of clients that have not come yet",
        "broker/trovemq_broker/server/core/group_kinds.py",
        "if name in self._had_leases:",
        "if name not in self._had_leases:",
        (_KINDS + "test_a_next_leader_ended_the_leases_of_clients_that_had_not_come_yet",),
    ),
    Planted(
        "the holders of queues are not known after a failover",
        f"{_SERVER}/queue_locks.py",
        "self._hold((group, topic, queue_id), client_id, now_ms + TRUST_MS)",
        "self._hold((group, topic, queue_id), client_id, now_ms)",
        (_LOCKS + "test_the_next_leader_gave_a_queue_to_a_second_member",),
    ),
    Planted(
        "the length of a remoting header is not checked",
        "proto/trovemq_proto/remoting/frame.py",
        "if header_size > total - 4 or header_size > HEADER_SIZE_MAX:",
        "if header_size > HEADER_SIZE_MAX:",
        (_FRAMES + "test_a_length_that_lies_is_refused_before_its_bytes_come",),
    ),
    Planted(
        "a client that sends a byte a second keeps its connection",
        "daemon/trovemq_daemon/remoting/connection.py",
        "if is_new or size - self._grown_size >= PROGRESS_MIN:",
        "if is_new or size > self._grown_size:",
        (_CONNECTION + "test_a_client_that_sends_a_byte_a_second_kept_its_connection",),
    ),
    Planted(
        "frames beyond those of one iteration are dropped",
        "daemon/trovemq_daemon/remoting/connection.py",
        'rest, self._rest = self._rest, b""',
        'rest, self._rest = b"", b""',
        (_BROKER + "test_messages_of_one_read_are_in_their_order",),
    ),
    Planted(
        "the body is not part of a remoting signature",
        "broker/trovemq_broker/security/remoting.py",
        "signed = [signed_text(fields, names) + body for names in variants]",
        "signed = [signed_text(fields, names) for names in variants]",
        (_SIGNATURES + "test_a_signature_of_java_is_accepted",),
    ),
    Planted(
        "a lost connection leaves its members in their groups",
        f"{_SERVER}/members.py",
        "            self._leave(connection, name)\n        for name",
        "            pass\n        for name",
        (_BROKER + "test_members_of_a_group_hear_of_each_other",),
    ),
    Planted(
        "any bytes of the log are sent back as a message",
        f"{_SERVER}/retries.py",
        "if message is None or (topic and topic not in",
        "if message is None or (not topic and topic not in",
        (_BROKER + "test_no_other_bytes_than_the_message_are_sent_back",),
    ),
    Planted(
        "a send is admitted by another field than its handler reads",
        f"{_SERVER}/rights.py",
        'yield _topic(request, ("topic",), PUB)',
        'yield _topic(request, ("b", "topic"), PUB)',
        (_SIGNATURES + "test_a_send_needs_the_right_for_the_topic_that_it_writes",),
    ),
    Planted(
        "a client forges the properties of a broker",
        f"{_SERVER}/sending.py",
        "        block = of_client(block, is_retry=is_retry)\n",
        "",
        (_BROKER + "test_properties_that_only_a_broker_writes_are_left_out",),
    ),
    Planted(
        "a send overtakes those that wait for the disk",
        f"{_SERVER}/sending.py",
        "if not self._waiting and not self._core.group_commit.full:",
        "if not self._core.group_commit.full:",
        (_WAITING + "test_a_send_does_not_overtake_those_that_wait_for_the_disk",),
    ),
    Planted(
        "a remoting connection gives its bytes back twice",
        "daemon/trovemq_daemon/remoting/connection.py",
        "        self._flush_soon()\n\n    def tick",
        "        self._kept += 1\n        self._account()\n\n    def tick",
        (_CONNECTION + "test_connections_that_wait_for_the_budget_read_on_when_it_is_free",),
    ),
    Planted(
        "a request is served before its sender is admitted",
        f"{_SERVER}/gate.py",
        "            gate.admit(caller, ROWS[request.header.code], request, path)\n",
        "",
        (_SIGNATURES + "test_a_user_without_a_rule_is_refused",),
    ),
    Planted(
        "a tool's call is made before it is admitted",
        f"{_SERVER}/native_calls.py",
        "        async with self.admission.admitted(request, call):\n",
        "        if True:\n",
        (_TOOL_RIGHTS + "test_a_request_does_nothing_before_its_call_is_admitted",),
    ),
    Planted(
        "tools list names that their user may not know",
        f"{_SERVER}/native_calls.py",
        "return [name for name in names if may_see(*_resource(kind, name))]",
        "return list(names)",
        (_TOOL_RIGHTS + "test_names_that_the_caller_may_not_know_are_left_out",),
    ),
    Planted(
        "a call of a tool is not admitted by its row",
        f"{_SERVER}/gate.py",
        "            gate.admit(caller, row, message, path)\n",
        "            peer.source.strip()\n",
        (_TOOL_RIGHTS + "test_a_call_of_a_user_without_a_rule_is_refused",),
    ),
    Planted(
        "a reset moves queues forward without being forced",
        f"{_SERVER}/progress.py",
        "if not forced and one.offset_before is not None",
        "if forced and one.offset_before is not None",
        ("tests/unit/remoting/test_group_admin.py::test_a_group_is_set_back_and_its_members_are_notified",),
    ),
    Planted(
        "the exporter misses a key of the runtime information",
        f"{_SERVER}/broker_admin.py",
        '            "bootTimestamp": str(around.started_ms),\n',
        "",
        (_TOOLS + "test_no_key_of_the_runtime_information_is_missing",),
    ),
    Planted(
        "a tool waits for ever for a member that is gone",
        "daemon/trovemq_daemon/remoting/connection.py",
        "                waiting.set_exception(TroveError(",
        "                waiting.cancel() or (TroveError(",
        (_TOOLS + "test_a_member_that_leaves_or_is_silent_ends_the_wait",),
    ),
    Planted(
        "a nameserver keeps entries of tools without a limit",
        "nameserver/trovemq_nameserver/key_values.py",
        "if (namespace, key) not in self._entries and len(self._entries) >= ENTRIES_MAX:",
        "if (namespace, key) not in self._entries and not ENTRIES_MAX:",
        ("tests/unit/remoting/test_nameserver.py::test_entries_of_tools_are_kept_listed_and_deleted",),
    ),
    Planted(
        "a nameserver lets every client change the entries of tools",
        "nameserver/trovemq_nameserver/remoting.py",
        "    if not peer_of(request.connection.peer, {}).is_private:",
        "    if not peer_of(request.connection.peer, {}).source:",
        ("tests/unit/remoting/test_nameserver.py::test_any_client_changed_the_order_of_topics_for_all",),
    ),
    Planted(
        "a nameserver gives clients an order that they cannot read",
        "nameserver/trovemq_nameserver/key_values.py",
        "_ORDER_FORM.fullmatch(value)",
        "_ORDER_FORM.search(value)",
        ("tests/unit/remoting/test_nameserver.py::test_an_order_that_no_client_can_read_was_given_to_all",),
    ),
    Planted(
        "look-ups by remoting are not counted as queries",
        f"{_SERVER}/gate.py",
        "async with self.query(request) if row.is_query else nullcontext():",
        "async with self.query(request) if not row.is_query else nullcontext():",
        ("tests/unit/remoting/test_query_quotas.py::test_lookups_took_the_loop_beyond_a_quota",),
    ),
    Planted(
        "the rights for all names of a listing are checked at once",
        f"{_SERVER}/native_calls.py",
        "names[some : some + NAMES_STEP]",
        "names[some:]",
        ("tests/unit/remoting/test_tool_rights.py::test_a_listing_checked_the_rights_for_all_names_at_once",),
    ),
    Planted(
        "a user's replies are passed on to another user with the same client id",
        f"{_SERVER}/members.py",
        "if known is None or known.user == member.user:",
        "if known is None or known.user != member.client_id:",
        ("tests/unit/remoting/test_producers_asked.py::test_replies_to_one_user_were_given_to_another",),
    ),
    Planted(
        "a reply comes only after the next heartbeat of its requester",
        f"{_SERVER}/members.py",
        "return self._by_client_id.get(client_id) or self._requesters.get(client_id)",
        "return self._by_client_id.get(client_id)",
        (
            "tests/unit/remoting/test_replies.py::"
            "test_a_reply_came_only_after_the_next_heartbeat_of_its_requester",
        ),
    ),
    Planted(
        "replies are passed on to a producer that is gone",
        f"{_SERVER}/members.py",
        "            if known is not None and known.connection is connection:\n",
        "            if known is not None and known.connection is None:\n",
        ("tests/unit/remoting/test_replies.py::test_a_reply_without_its_requester_is_an_error",),
    ),
)
