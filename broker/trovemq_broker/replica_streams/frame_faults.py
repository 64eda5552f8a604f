"""Illegal frames of a node: after several within a minute it has to wait."""

from __future__ import annotations

from collections import deque

from trovemq_broker.replica_streams.stream_settings import (
    FRAME_FAULTS_MAX,
    FRAME_FAULTS_WITHIN_MS,
    HELD_OUT_MS,
)
from trovemq_broker.replication.frames import NODES_MAX, Node, NowMs
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class FrameFaults:
    """Of each node, the times of the last ones."""

    def __init__(self) -> None:
        self._times: dict[Node, deque[NowMs]] = {}

    def note(self, node: Node, now_ms: NowMs) -> None:
        if node in self._times or len(self._times) < NODES_MAX:
            self._times.setdefault(node, deque(maxlen=FRAME_FAULTS_MAX)).append(now_ms)

    def wait_ms(self, node: Node, now_ms: NowMs) -> int:
        """How long the node still has to wait; 0: not at all."""
        times = self._times.get(node)
        if times is None or len(times) < FRAME_FAULTS_MAX or times[-1] - times[0] > FRAME_FAULTS_WITHIN_MS:
            return 0
        return max(0, times[-1] + HELD_OUT_MS - now_ms)

    def check(self, node: Node, now_ms: NowMs) -> None:
        """TroveError LIMIT_EXCEEDED."""
        if wait_ms := self.wait_ms(node, now_ms):
            text = f"{FRAME_FAULTS_MAX} illegal frames within a minute: wait for {wait_ms // 1_000 + 1} s"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
