"""The synchronous client has the asyncio client's names, signatures and documentation."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import trovemq
from trovemq import ReceivedMessage, sync
from trovemq._admin import brokers, config, groups, stores, users
from trovemq.sync import admin

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (trovemq.Client, sync.Client),
    (trovemq.Producer, sync.Producer),
    (trovemq.Transaction, sync.Transaction),
    (trovemq.AtomicTransaction, sync.AtomicTransaction),
    (trovemq.Subscription, sync.Subscription),
    (trovemq.Running, sync.Running),
    (ReceivedMessage, sync.ReceivedMessage),
    (trovemq.Admin, sync.Admin),
    (groups.Groups, admin.Groups),
    (stores.Stores, admin.Stores),
    (users.Users, admin.Users),
    (users.Rules, admin.Rules),
    (users.Quotas, admin.Quotas),
    (brokers.Brokers, admin.Brokers),
    (config.Config, admin.Config),
]
# A former name, and what only the asyncio classes need among themselves.
LEFT_OUT = {"biography", "next", "next_batch", "return_after"}
# What a message is to the connection that it came by.
OF_THE_CONNECTION = {
    *("receipt_handle", "lease_end", "poll", "settlement", "place", "nbytes", "take_over", "tracing"),
    "receipt",
}


def public(cls: type[Any]) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} - LEFT_OUT - OF_THE_CONNECTION


@pytest.mark.parametrize(("asyncio_class", "waiting_class"), PAIRS, ids=lambda cls: cls.__name__)
def test_names_are_the_same(asyncio_class: type[Any], waiting_class: type[Any]) -> None:
    assert public(asyncio_class) <= public(waiting_class)


@pytest.mark.parametrize(("asyncio_class", "waiting_class"), PAIRS, ids=lambda cls: cls.__name__)
def test_arguments_are_the_same(asyncio_class: type[Any], waiting_class: type[Any]) -> None:
    for name in public(asyncio_class):
        method, waiting = getattr(asyncio_class, name), getattr(waiting_class, name)
        if inspect.isfunction(method):
            expected = inspect.signature(method).parameters
            assert list(inspect.signature(waiting).parameters) == list(expected), name
            assert waiting.__doc__, name
            assert not inspect.iscoroutinefunction(waiting), name


def test_connect_takes_the_same_arguments() -> None:
    assert inspect.signature(sync.connect).parameters == inspect.signature(trovemq.connect).parameters
