"""The part of a channel that its calls need. channel.py implements it, so calls need not import that."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from trovemq_rpc.channel.target import Target
from trovemq_rpc.credentials import ChannelCredentials
from trovemq_rpc.loop_parts import LoopParts
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.options import Options


class CallChannel(Protocol):
    """`call` is always a Call of this channel."""

    target: Target
    credentials: ChannelCredentials | None
    authority: str
    user_agent: str
    options: Options
    compression: Any
    metrics: Metrics
    calls: set[Any]

    @property
    def closed(self) -> bool: ...
    @property
    def parts(self) -> LoopParts: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def submit(self, call: Any) -> None: ...
    @staticmethod
    def log_failed_iterator(path: str, error: Exception) -> None: ...
