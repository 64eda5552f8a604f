"""Planted faults of trovemq_rpc: HTTP/2, channel, server, wire format. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

RPC_FAULTS: Final = (
    Planted(
        "DATA beyond the stream's window is accepted",
        "rpc/trovemq_rpc/http2/receiving.py",
        "        if stream.receive_window < 0:\n            raise ConnectionFault",
        "        if False:\n            raise ConnectionFault",
        (
            "tests/unit/rpc/test_window_bytes.py::"
            "test_a_peer_that_ignored_the_window_of_its_stream_was_not_ended",
        ),
    ),
    Planted(
        "padding is never acknowledged",
        "rpc/trovemq_rpc/http2/receiving.py",
        "        if padding:\n            self.acknowledge(padding)\n",
        "        if padding:\n",
        (
            "tests/unit/rpc/test_window_bytes.py::"
            "test_the_window_of_a_connection_shrank_by_bytes_that_nobody_gets[padding]",
        ),
    ),
    Planted(
        "DATA for a stream that was reset shrinks the connection's window for good",
        "rpc/trovemq_rpc/http2/receiving.py",
        '            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the '
        "connection's window\")\n        self.acknowledge(length)\n        if stream is "
        "not None:",
        '            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the '
        "connection's window\")\n        if stream is not None:",
        (
            "tests/unit/rpc/test_window_bytes.py::"
            "test_the_window_of_a_connection_shrank_by_bytes_that_nobody_gets",
        ),
    ),
    Planted(
        "a header block's CONTINUATION frames have no limit",
        "rpc/trovemq_rpc/http2/header_blocks.py",
        "            self._block_size > limits.header_block_size_max\n            or "
        "len(self._block_parts) > limits.continuations_max\n",
        "            self._block_size > limits.header_block_size_max\n",
        ("tests/unit/rpc/test_hostile_bytes.py::test_a_flood_is_ended",),
    ),
    Planted(
        "one stream more than the limit is open",
        "rpc/trovemq_rpc/http2/header_blocks.py",
        "if len(self.streams) + self.lingering > self.limits.concurrent_streams_max:",
        "if len(self.streams) > self.limits.concurrent_streams_max:",
        ("tests/unit/rpc/test_window_bytes.py::test_a_client_had_one_stream_more_than_it_may",),
    ),
    Planted(
        "trailers overtake the data before them",
        "rpc/trovemq_rpc/http2/sending.py",
        "        if stream.pending:\n            assert end",
        "        if stream.pending and not end:\n            assert end",
        ("tests/unit/rpc/test_connections.py::test_tls_with_alpn_carries_calls_of_all_sizes",),
    ),
    Planted(
        "a stream that waits takes all turns",
        "rpc/trovemq_rpc/http2/sending.py",
        "            self._drain(stream, one_frame=True)",
        "            self._drain(stream)",
        ("tests/unit/rpc/test_window_bytes.py::test_a_stream_whose_data_waits_took_the_turns_of_the_others",),
    ),
    Planted(
        "a smaller initial window leaves the open streams' windows",
        "rpc/trovemq_rpc/http2/control.py",
        "            stream.send_window += difference\n",
        "            stream.send_window += max(difference, 0)\n",
        ("tests/unit/rpc/test_hostile_bytes.py::test_a_shrunk_window_below_zero_only_stops_the_stream",),
    ),
    Planted(
        "a flood of PING frames is answered",
        "rpc/trovemq_rpc/http2/control.py",
        "            self.allowances.pings.take()  # beside data an honest peer measures "
        "its round trip, very often\n",
        "            pass\n",
        ("tests/unit/rpc/test_hostile_bytes.py::test_a_flood_is_ended[pings]",),
    ),
    Planted(
        "a call that no server looked at fails",
        "rpc/trovemq_rpc/channel/call.py",
        "        if self._attempts >= ATTEMPTS_MAX or",
        "        if self._attempts or self._attempts >= ATTEMPTS_MAX or",
        ("tests/unit/rpc/test_sent_again.py::test_a_refused_stream_is_sent_again",),
    ),
    Planted(
        "a call that a server may have done is sent again",
        "rpc/trovemq_rpc/channel/call.py",
        "        if code == ErrorCode.REFUSED_STREAM and self._info is None:",
        "        if code in (ErrorCode.REFUSED_STREAM, ErrorCode.INTERNAL_ERROR) and self._info is None:",
        ("tests/unit/rpc/test_sent_again.py::test_another_reset_ends_the_call[2-StatusCode.INTERNAL]",),
    ),
    Planted(
        "calls above GOAWAY's last id are not sent again",
        "rpc/trovemq_rpc/channel/endpoint.py",
        "            if stream.id > last_id and stream.owner is not None:",
        "            if stream.id > last_id + 2 and stream.owner is not None:",
        ("tests/unit/rpc/test_sent_again.py::test_calls_above_the_last_id_of_a_goaway_are_sent_again",),
    ),
    Planted(
        "waiting calls are forgotten when a connection fails",
        "rpc/trovemq_rpc/channel/channel.py",
        "            if call.wait_for_ready:\n                self._waiting.append(call)\n",
        "            if call.wait_for_ready:\n                pass\n",
        (
            "tests/unit/rpc/test_waiting_calls.py::"
            "test_a_call_waited_for_ever_behind_a_server_that_drained_at_once",
        ),
    ),
    Planted(
        "the pause after a failure does not grow",
        "rpc/trovemq_rpc/channel/subchannel.py",
        "BACKOFF_FACTOR ** min(self._failures - 1, 64)",
        "BACKOFF_FACTOR ** min(self._failures - 1, 0)",
        (
            "tests/unit/rpc/test_waiting_calls.py::"
            "test_calls_waited_behind_a_server_that_closes_each_connection",
        ),
    ),
    Planted(
        "the limit of calls lets one more begin",
        "rpc/trovemq_rpc/server/endpoint.py",
        "calls_max is not None and self.metrics.calls_active >= calls_max:",
        "calls_max is not None and self.metrics.calls_active > calls_max:",
        ("tests/unit/rpc/test_calls.py::test_calls_above_the_servers_limit_are_refused",),
    ),
    Planted(
        "a lost connection leaves its calls' handlers running",
        "rpc/trovemq_rpc/server/endpoint.py",
        "        for call in tuple(self.calls):\n            call.on_reset()\n        self.lose_guest()",
        "        self.lose_guest()",
        (
            "tests/unit/rpc/test_calls_in_memory.py::"
            "test_every_answer_is_whole_and_in_order_or_an_error_with_a_reason",
        ),
    ),
    Planted(
        "a message that is as large as allowed is refused",
        "rpc/trovemq_rpc/wire/framing.py",
        "        if length > self.size_max:",
        "        if length >= self.size_max:",
        ("tests/unit/rpc/test_wire.py::test_a_message_of_just_the_limit_is_taken",),
    ),
    Planted(
        "a time limit is rounded down for the server",
        "rpc/trovemq_rpc/wire/deadline.py",
        "        value = math.ceil(seconds / unit)",
        "        value = math.floor(seconds / unit)",
        ("tests/unit/rpc/test_wire.py::test_a_timeout_is_never_shortened_and_hardly_lengthened",),
    ),
    Planted(
        "one connection may fill the whole budget",
        "rpc/trovemq_rpc/budget.py",
        "        if self.held < self.total and holder.held < self.connection_share:\n      "
        "      return False",
        "        if self.held < self.total:\n            return False",
        ("tests/unit/rpc/test_budget.py::test_windows_are_withheld_until_there_is_space",),
    ),
    Planted(
        "a request above the last id of our GOAWAY is served",
        "rpc/trovemq_rpc/http2/header_blocks.py",
        "        if self.goaway_sent is not None and stream_id > self.goaway_sent:\n"
        "            return None\n",
        "",
        (
            "tests/unit/rpc/test_goaway_and_cuts.py::"
            "test_a_request_above_the_last_id_of_our_goaway_was_served",
        ),
    ),
    Planted(
        "the header fields of a request above our GOAWAY are not decoded",
        "rpc/trovemq_rpc/http2/header_blocks.py",
        "        fields: Fields | None\n        try:\n",
        "        fields: Fields | None\n"
        "        if self.goaway_sent is not None and stream_id > self.goaway_sent:\n"
        "            return\n        try:\n",
        (
            "tests/unit/rpc/test_goaway_and_cuts.py::"
            "test_a_request_above_the_last_id_of_our_goaway_was_served",
        ),
    ),
    Planted(
        "an answer that ends inside of a message is whole",
        "rpc/trovemq_rpc/channel/call.py",
        "elif code is StatusCode.OK and self.reader is not None and not self.reader.at_boundary:",
        "elif False:",
        ("tests/unit/rpc/test_goaway_and_cuts.py::test_an_answer_that_was_cut_counted_as_whole",),
    ),
    Planted(
        "the slower of two connections stays open",
        "rpc/trovemq_rpc/channel/subchannel.py",
        "            for task in running:\n                task.cancel()\n",
        "            for task in running:\n",
        ("tests/unit/rpc/test_goaway_and_cuts.py::test_the_loser_of_two_connections_stayed_open[late]",),
    ),
    Planted(
        "of two connections that are ready at once both stay open",
        "rpc/trovemq_rpc/channel/subchannel.py",
        "                for endpoint in won[1:]:\n                    endpoint.abort()\n",
        "",
        ("tests/unit/rpc/test_goaway_and_cuts.py::test_the_loser_of_two_connections_stayed_open[together]",),
    ),
    Planted(
        "an attempt to connect that is given up keeps its connection",
        "rpc/trovemq_rpc/channel/subchannel.py",
        "        except BaseException:\n            endpoint.abort()\n            raise\n",
        "        except BaseException:\n            raise\n",
        ("tests/unit/rpc/test_goaway_and_cuts.py::test_the_loser_of_two_connections_stayed_open[late]",),
    ),
    Planted(
        "a callback's response may be above the limit",
        "rpc/trovemq_rpc/server/outgoing.py",
        "            self._refuse_response(size)\n            return\n        self._answer(",
        "            pass\n        self._answer(",
        (
            "tests/unit/rpc/test_goaway_and_cuts.py::test_a_callback_sent_a_response_above_the_limit[reply-101]",
        ),
    ),
    Planted(
        "one of several responses of a callback may be above the limit",
        "rpc/trovemq_rpc/server/outgoing.py",
        "                self._refuse_response(size)\n",
        "                pass\n",
        (
            "tests/unit/rpc/test_goaway_and_cuts.py::"
            "test_a_callback_sent_a_response_above_the_limit[reply_all-101]",
        ),
    ),
)
