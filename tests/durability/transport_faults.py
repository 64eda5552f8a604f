"""Old faults of the transport and of the nameserver: a part of old_faults.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

TRANSPORT_FAULTS: Final = (
    Planted(
        "A nameserver that did not run for a while (a stopped process, a paused machine) lost all its brokers"
        " when it ran again, although their heartbeats were there, unread",
        "nameserver/trovemq_nameserver/service.py",
        "        async with asyncio.timeout(None) as timeout:\n",
        "        async with asyncio.timeout(self.limits.broker_silent_ms / 1000) as timeout:\n",
        (
            "tests/unit/nameserver/test_silence.py::"
            "test_a_nameserver_that_was_stopped_for_a_while_lost_its_brokers",
        ),
    ),
    Planted(
        "Two daemons that were not started yet shared a port, and the second one's start failed by OSError",
        "rpc/trovemq_rpc/listening.py",
        "            bound.bind((where[0], port, *where[2:]))\n            bound.listen(BACKLOG)",
        "            bound.bind((where[0], port, *where[2:]))\n            ",
        ("tests/unit/rpc/test_accepting.py::test_two_servers_that_were_not_started_shared_a_port",),
    ),
)
