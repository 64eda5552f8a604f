"""Planted faults of every package but the engine's own, which test_planted_bugs.py has.

Each is a slip that a tired engineer could make there: a limit that is off by one, a right that one call does
not ask for, a slot that is not released, a boundary that is open instead of closed, an error that is
swallowed.
"""

from __future__ import annotations

from typing import Final

from tests.durability.ack_faults import ACK_FAULTS
from tests.durability.cluster_config_faults import CLUSTER_CONFIG_FAULTS
from tests.durability.console_faults import CONSOLE_FAULTS
from tests.durability.coordination_faults import COORDINATION_FAULTS
from tests.durability.daemon_faults import DAEMON_FAULTS
from tests.durability.election_faults import ELECTION_FAULTS
from tests.durability.engine_faults import ENGINE_FAULTS
from tests.durability.failover_faults import FAILOVER_FAULTS
from tests.durability.pipeline_faults import PIPELINE_FAULTS
from tests.durability.planted import Planted
from tests.durability.record_faults import RECORD_FAULTS
from tests.durability.remoting_faults import REMOTING_FAULTS
from tests.durability.replica_faults import REPLICA_FAULTS
from tests.durability.replica_read_faults import REPLICA_READ_FAULTS
from tests.durability.replication_faults import REPLICATION_FAULTS
from tests.durability.rpc_faults import RPC_FAULTS
from tests.durability.sdk_faults import SDK_FAULTS
from tests.durability.security_faults import SECURITY_FAULTS
from tests.durability.server_faults import SERVER_FAULTS
from tests.durability.stream_faults import STREAM_FAULTS
from tests.durability.table_faults import TABLE_FAULTS

PACKAGE_FAULTS: Final[tuple[Planted, ...]] = (
    *SERVER_FAULTS,
    *SECURITY_FAULTS,
    *ENGINE_FAULTS,
    *DAEMON_FAULTS,
    *RPC_FAULTS,
    *SDK_FAULTS,
    *CONSOLE_FAULTS,
    *RECORD_FAULTS,
    *PIPELINE_FAULTS,
    *CLUSTER_CONFIG_FAULTS,
    *ACK_FAULTS,
    *REPLICA_FAULTS,
    *TABLE_FAULTS,
    *REPLICA_READ_FAULTS,
    *REPLICATION_FAULTS,
    *STREAM_FAULTS,
    *REMOTING_FAULTS,
    *FAILOVER_FAULTS,
    *COORDINATION_FAULTS,
    *ELECTION_FAULTS,
)
