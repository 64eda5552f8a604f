"""Settings of a node that agrees by etcd: an illegal combination is refused at the start, with the remedy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.errors import SettingsError
from trovemq_proto.channels import ChannelSettings

NODE = BrokerSettings(
    coordination="etcd",
    node_name="a",
    replication_listen="127.0.0.1:8181",
    etcd_endpoints=("127.0.0.1:2379", "127.0.0.1:3379"),
)
REMOTE = ("etcd-1:2379",)


def problems(settings: BrokerSettings, **changes: Any) -> str:
    return "; ".join(replace(settings, **changes).problems())


def test_etcd_on_this_machine_needs_no_more_than_its_address() -> None:
    assert problems(NODE) == ""
    assert NODE.is_node
    assert NODE.is_elected
    assert not replace(NODE, coordination="manual", etcd_endpoints=()).is_elected


def test_etcd_on_other_machines_needs_tls_and_a_log_in() -> None:
    said = "call it by TLS"
    assert said in problems(NODE, etcd_endpoints=REMOTE)
    assert said in problems(NODE, etcd_endpoints=REMOTE, etcd_tls_ca="ca.pem")
    log_in = {"etcd_user": "trovemq", "etcd_password_file": "password"}
    assert said in problems(NODE, etcd_endpoints=REMOTE, **log_in)
    assert problems(NODE, etcd_endpoints=REMOTE, etcd_tls_ca="ca.pem", **log_in) == ""
    pair = {"etcd_tls_certificate": "c.pem", "etcd_tls_key": "k.pem"}
    assert problems(NODE, etcd_endpoints=REMOTE, **pair) == "", "the certificate names the user"
    assert problems(NODE, etcd_endpoints=REMOTE, insecure=True) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"etcd_endpoints": ()}, "needs 1 to 16 etcd_endpoints"),
        ({"etcd_endpoints": tuple(f"127.0.0.1:{port}" for port in range(1, 18))}, "needs 1 to 16"),
        ({"etcd_endpoints": ("127.0.0.1",)}, "etcd_endpoints: "),
        ({"etcd_endpoints": ("127.0.0.1:0",)}, "cannot be dialled"),
        ({"etcd_user": "trovemq"}, "given together or not at all"),
        ({"etcd_tls_key": "k.pem"}, "given together or not at all"),
        ({"etcd_prefix": "trovemq"}, "must begin with /"),
        ({"leader_lease_ms": 2_500}, "whole seconds"),
        ({"coordination": "manual"}, "with coordination = etcd"),
    ],
)
def test_an_illegal_combination_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in problems(NODE, **changes)


def test_the_password_is_read_for_each_log_in(tmp_path: Path) -> None:
    file = tmp_path / "password"
    settings = replace(NODE, etcd_user="trovemq", etcd_password_file=str(file))
    with pytest.raises(SettingsError, match="no such file"):
        settings.etcd_access(ChannelSettings())
    for content in (b"", b"\n", b"x" * 1_025):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match="1 to 1024 characters"):
            settings.etcd_access(ChannelSettings())
    file.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="not UTF-8"):
        settings.etcd_access(ChannelSettings())
    file.write_bytes(b"first\n")
    file.chmod(0o600)
    access = settings.etcd_access(ChannelSettings())
    assert (access.user, access.endpoints) == ("trovemq", ("127.0.0.1:2379", "127.0.0.1:3379"))
    file.write_bytes(b"second")

    async def read() -> str:
        assert access.password is not None
        return await access.password()

    assert asyncio.run(read()) == "second"


def test_files_of_tls_that_cannot_be_used_are_named() -> None:
    with pytest.raises(SettingsError, match=r"missing\.pem"):
        replace(NODE, etcd_tls_ca="missing.pem").etcd_access(ChannelSettings())
