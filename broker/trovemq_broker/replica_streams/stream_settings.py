"""Limits and times of a node's streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Times in milliseconds, sizes in bytes.

    Attributes:
        tick_ms: How often a leader looks for lost copies and a follower for a silent leader.
        probe_timeout_ms: How long a connection to a follower may take that is only tried, after its stream
            has ended.
        message_size_max: Of one frame with its fields; a log has no record that is larger.
        streams_max: Streams of followers at a leader, also of ones that are refused in a moment.
        queued_frames_max: Frames to one follower that are not sent yet.
        read_size_max: Of the answer to ReadLog; one record may be larger.
        reads_max: Calls of ReadLog and ReadConsumers of one node at a time.
    """

    tick_ms: int = 100
    probe_timeout_ms: int = 300
    message_size_max: int = 16 << 20
    streams_max: int = 16
    queued_frames_max: int = 65_536
    read_size_max: int = 1 << 20
    reads_max: int = 2


FRAME_FAULTS_MAX: Final = 3
FRAME_FAULTS_WITHIN_MS: Final = 60_000
HELD_OUT_MS: Final = 60_000
"""Wait of a node after FRAME_FAULTS_MAX illegal frames within FRAME_FAULTS_WITHIN_MS."""
