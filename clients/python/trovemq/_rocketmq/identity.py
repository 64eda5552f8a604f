"""How a client identifies itself in RocketMQ's settings."""

from __future__ import annotations

import platform

from trovemq._common.identity import hostname, metadata_of, new_client_id, sdk_version
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

__all__ = ["metadata_of", "new_client_id", "user_agent"]


def user_agent() -> v2.UA:
    return v2.UA(
        language=v2.Language.PYTHON, version=sdk_version(), platform=platform.system(), hostname=hostname()
    )
