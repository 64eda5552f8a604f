"""The servers of a node that takes no messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry

from tests.support.engine import open_store
from trovemq_broker.daemon.replica.waiting_servers import WaitingServers
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.memory import MemoryFileSystem


@pytest.mark.asyncio
async def test_a_follower_whose_callers_log_in_ended_at_its_start(tmp_path: Path) -> None:
    """Calls with several replies were refused by a coroutine, which the check of rights does not take."""
    settings = BrokerSettings(
        store=str(tmp_path),
        http="off",
        authentication_enable=True,
        authorization_enable=True,
        sealing_key_file=str(tmp_path / "sealing.key"),
    )
    unused: Any = None

    def refusal() -> TroveError:
        return TroveError(errors.NOT_LEADER, "this node follows")

    servers = WaitingServers(settings, "1", unused, refusal, lambda: "", (), CollectorRegistry())
    await servers.open(open_store(MemoryFileSystem()))
    await servers.stop()
