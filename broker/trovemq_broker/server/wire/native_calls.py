"""Calls of the native services, as their handlers see them: only modules of the wire read a request or make a
reply."""

from __future__ import annotations

from typing import Any, TypeAlias

Request: TypeAlias = Any
"""A message as protobuf has read it. Handlers pass it to a function of the wire, which returns a command."""
Reply: TypeAlias = Any
"""A message that a function of the wire has made. Handlers return it."""
