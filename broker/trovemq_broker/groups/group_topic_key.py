"""The key by which deliveries, waiting receives and lag know a consumer group's use of one topic."""

from __future__ import annotations

from typing import TypeAlias

GroupTopicKey: TypeAlias = tuple[str, str]
"""(consumer group, topic that it reads)."""
