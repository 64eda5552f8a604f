"""The daemon has as many files open as the machine allows."""

from __future__ import annotations

import resource

import pytest

from trovemq_daemon.limits import (
    CONNECTIONS_MIN,
    RESERVED_DESCRIPTORS,
    ConnectionLimit,
    raise_descriptor_limit,
)


def test_the_soft_limit_becomes_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (256, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: asked.append(limits))
    assert raise_descriptor_limit() == 4_096
    assert asked == [(4_096, 4_096)]


def test_a_limit_that_may_not_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_kind: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (256, 4_096))
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert raise_descriptor_limit() == 256


class Inner:
    """Refuses one peer."""

    def __init__(self) -> None:
        self.open: list[str] = []

    def opened(self, peer: str) -> bool:
        if peer == "refused":
            return False
        self.open.append(peer)
        return True

    def closed(self, peer: str) -> None:
        self.open.remove(peer)


def test_idle_connections_took_every_descriptor_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (300, 300))
    inner = Inner()
    limit = ConnectionLimit(inner)
    limit.needed = lambda: 200
    assert limit.limit == 300 - 200 - RESERVED_DESCRIPTORS
    assert all(limit.opened("one address") for _ in range(limit.limit))
    assert not limit.opened("another")
    assert (limit.refused, len(inner.open)) == (1, limit.limit)
    limit.closed("one address")
    assert not limit.opened("refused"), "a quota counts, too"
    assert limit.opened("another")
    limit.needed = lambda: 300
    assert limit.limit == CONNECTIONS_MIN, "some are served in any case"
