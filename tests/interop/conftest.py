"""These tests start Apache RocketMQ itself, half a minute each: only on demand, and where it is to be had."""

from __future__ import annotations

import os

import pytest

from tests.interop.probe import NotHereError, classpath


@pytest.fixture(scope="session", autouse=True)
def rocketmq() -> None:
    if os.environ.get("RUN_INTEROP") != "1":
        pytest.skip("half a minute a test: set RUN_INTEROP=1 (needs java, mvn and Maven Central)")
    try:
        classpath()
    except NotHereError as error:
        pytest.skip(f"Apache RocketMQ cannot be run here: {error}")
