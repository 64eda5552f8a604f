"""The daemon has as many files open as the machine allows."""

from __future__ import annotations

import resource

import pytest

from trovemq_daemon.limits import raise_descriptor_limit


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
