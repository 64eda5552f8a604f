"""Users and rules by RocketMQ's tools: by our own calls, and with their rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_here import broker_here
from tests.support.remoting_client import Answer, RemotingClient, remoting_client
from tests.unit.remoting.test_signatures import signature
from trovemq_proto.remoting.codes import RequestCode, ResponseCode

SECRETS = {"admin": "12345678", "alice": "alice-secret"}


class Signed:
    """Requests of one user at a time."""

    def __init__(self, client: RemotingClient) -> None:
        self.client = client

    async def ask(self, code: int, data: Any = None, user: str = "admin", **fields: str) -> Answer:
        body = b"" if data is None else json.dumps(data).encode()
        named = {**fields, "AccessKey": user}
        signed = {**named, "Signature": signature(named, body, SECRETS[user])}
        return await self.client.ask(code, signed, body)

    async def made(self, code: int, data: Any = None, **fields: str) -> None:
        answer = await self.ask(code, data, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.header.remark

    async def acl(self, subject: str = "User:alice") -> list[tuple[str, str, str, list[str]]]:
        """(resource, actions, decision, sources) of each entry, sorted."""
        found = await self.ask(RequestCode.AUTH_GET_ACL, subject=subject)
        assert found.code == ResponseCode.SUCCESS, found.header.remark
        policies = found.json()["policies"] if found.body else []
        return sorted(
            (one["resource"], ",".join(one["actions"]), one["decision"], one["sourceIps"])
            for policy in policies
            for one in policy["entries"]
        )


def secured(path: Path, run: Callable[[Signed], Awaitable[None]]) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {
            "authentication_enable": True,
            "authorization_enable": True,
            "init_authentication_user": '{"username": "admin", "password": "12345678"}',
        }
        async with (
            broker_here(path, remoting_enable=True, **settings) as broker,
            remoting_client(broker.address) as client,
        ):
            await run(Signed(client))

    asyncio.run(main())


ALICE = {"username": "alice", "password": SECRETS["alice"], "userType": "Normal"}


def policy(resource: str, actions: list[str], decision: str = "Allow", **more: Any) -> dict[str, Any]:
    return {"resource": resource, "actions": actions, "decision": decision, "sourceIps": [], **more}


def acl(*entries: dict[str, Any], policy_type: str = "Custom") -> dict[str, Any]:
    return {"subject": "User:alice", "policies": [{"policyType": policy_type, "entries": list(entries)}]}


def test_a_user_is_made_changed_shown_and_deleted(tmp_path: Path) -> None:
    async def run(admin: Signed) -> None:
        await admin.made(RequestCode.AUTH_CREATE_USER, ALICE, username="alice")
        shown = (await admin.ask(RequestCode.AUTH_GET_USER, username="alice")).json()
        assert shown == {"userStatus": "enable", "userType": "Normal", "username": "alice"}
        listed = (await admin.ask(RequestCode.AUTH_LIST_USER, filter="lic")).json()
        assert [one["username"] for one in listed] == ["alice"]
        assert (await admin.ask(RequestCode.GET_BROKER_CLUSTER_INFO, user="alice")).code == 0

        await admin.made(RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="alice")
        refused = await admin.ask(RequestCode.GET_BROKER_CLUSTER_INFO, user="alice")
        assert refused.code == ResponseCode.NO_PERMISSION
        changed = {"userStatus": "enable", "password": "another-secret"}
        await admin.made(RequestCode.AUTH_UPDATE_USER, changed, username="alice")
        refused = await admin.ask(RequestCode.GET_BROKER_CLUSTER_INFO, user="alice")
        assert refused.code == ResponseCode.NO_PERMISSION, "the former one has ended"

        await admin.made(RequestCode.AUTH_DELETE_USER, username="alice")
        assert (await admin.ask(RequestCode.AUTH_GET_USER, username="alice")).body == b""
        await admin.made(RequestCode.AUTH_DELETE_USER, username="alice")

    secured(tmp_path, run)


def test_a_user_that_another_broker_had_made_was_an_error(tmp_path: Path) -> None:
    """mqadmin sends the creation to each broker of a cluster; one of another user is an error as before."""

    async def run(admin: Signed) -> None:
        await admin.made(RequestCode.AUTH_CREATE_USER, ALICE, username="alice")
        await admin.made(RequestCode.AUTH_CREATE_USER, ALICE, username="alice")
        for other in ({"password": "another-secret"}, {"userType": "Super"}):
            refused = await admin.ask(RequestCode.AUTH_CREATE_USER, {**ALICE, **other}, username="alice")
            assert refused.code != ResponseCode.SUCCESS
            assert "exists" in refused.header.remark
        await admin.made(RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="alice")
        refused = await admin.ask(RequestCode.AUTH_CREATE_USER, ALICE, username="alice")
        assert "exists" in refused.header.remark
        disabled = {**ALICE, "userStatus": "disable"}
        await admin.made(RequestCode.AUTH_CREATE_USER, disabled, username="alice")

    secured(tmp_path, run)


def test_an_acl_is_made_replaced_by_resource_and_deleted(tmp_path: Path) -> None:
    async def run(admin: Signed) -> None:
        await admin.made(RequestCode.AUTH_CREATE_USER, ALICE, username="alice")
        both = acl(policy("Topic:orders", ["Pub", "Sub"]), policy("Group:*", ["Sub"], "Deny"))
        await admin.made(RequestCode.AUTH_CREATE_ACL, both, subject="User:alice")
        assert await admin.acl() == [
            ("Group:*", "Sub", "Deny", []),
            ("Topic:orders", "Pub,Sub", "Allow", []),
        ]
        less = acl(policy("Topic:orders", ["Pub"], sourceIps=["127.0.0.1"]))
        for _ in range(2):
            await admin.made(RequestCode.AUTH_UPDATE_ACL, less, subject="User:alice")
        assert await admin.acl() == [
            ("Group:*", "Sub", "Deny", []),
            ("Topic:orders", "Pub", "Allow", ["127.0.0.1/32"]),
        ]
        listed = await admin.ask(RequestCode.AUTH_LIST_ACL, subjectFilter="alice", resourceFilter="orders")
        (shown,) = listed.json()
        assert shown["subject"] == "User:alice"
        assert [one["resource"] for one in shown["policies"][0]["entries"]] == ["Topic:orders"]
        await admin.made(RequestCode.AUTH_DELETE_ACL, subject="User:alice", resource="Topic:orders")
        assert [entry[0] for entry in await admin.acl()] == ["Group:*"]
        await admin.made(RequestCode.AUTH_DELETE_ACL, subject="User:alice")
        assert await admin.acl() == []

    secured(tmp_path, run)


@pytest.mark.parametrize(
    ("code", "data", "fields"),
    [
        (RequestCode.AUTH_CREATE_USER, {"userType": "Normal"}, {"username": "bob"}),
        (RequestCode.AUTH_CREATE_USER, {**ALICE, "userStatus": "asleep"}, {"username": "bob"}),
        (RequestCode.AUTH_CREATE_USER, {**ALICE, "userType": "King"}, {"username": "bob"}),
        (RequestCode.AUTH_UPDATE_USER, {"userType": "Super"}, {"username": "alice"}),
        (RequestCode.AUTH_CREATE_ACL, acl(policy("Topic:a", ["Any"])), {"subject": "User:alice"}),
        (RequestCode.AUTH_CREATE_ACL, acl(policy("Queue:a", ["Pub"])), {"subject": "User:alice"}),
        (RequestCode.AUTH_CREATE_ACL, acl(policy("Topic:a", ["Pub"], "Maybe")), {"subject": "User:alice"}),
        (RequestCode.AUTH_CREATE_ACL, acl(policy("Topic:a", ["Pub"])), {"subject": "Role:alice"}),
        (
            RequestCode.AUTH_CREATE_ACL,
            acl(policy("Topic:a", ["Pub"]), policy_type="Default"),
            {"subject": "User:alice"},
        ),
        (
            RequestCode.AUTH_CREATE_ACL,
            acl(policy("Topic:a", ["Pub"], sourceIps=["x"])),
            {"subject": "User:alice"},
        ),
        (RequestCode.AUTH_CREATE_ACL, acl(), {"subject": "User:alice"}),
        (RequestCode.AUTH_DELETE_ACL, None, {"subject": "User:alice", "policyType": "Default"}),
    ],
)
def test_rules_that_ours_cannot_express_were_half_made(
    tmp_path: Path, code: int, data: Any, fields: dict[str, str]
) -> None:
    async def run(admin: Signed) -> None:
        await admin.made(RequestCode.AUTH_CREATE_USER, ALICE, username="alice")
        refused = await admin.ask(code, data, **fields)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert refused.header.remark
        assert await admin.acl() == []
        assert (await admin.ask(RequestCode.AUTH_GET_USER, username="bob")).body == b""

    secured(tmp_path, run)


def test_a_user_without_the_right_read_or_changed_users(tmp_path: Path) -> None:
    async def run(admin: Signed) -> None:
        await admin.made(RequestCode.AUTH_CREATE_USER, ALICE, username="alice")
        allowed = acl(policy("*", ["All"]))
        await admin.made(RequestCode.AUTH_CREATE_ACL, allowed, subject="User:alice")
        for code, data in (
            (RequestCode.AUTH_CREATE_USER, ALICE),
            (RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}),
            (RequestCode.AUTH_DELETE_USER, None),
            (RequestCode.AUTH_GET_USER, None),
            (RequestCode.AUTH_LIST_USER, None),
            (RequestCode.AUTH_CREATE_ACL, allowed),
            (RequestCode.AUTH_UPDATE_ACL, allowed),
            (RequestCode.AUTH_DELETE_ACL, None),
            (RequestCode.AUTH_GET_ACL, None),
            (RequestCode.AUTH_LIST_ACL, None),
        ):
            refused = await admin.ask(code, data, user="alice", username="admin", subject="User:alice")
            assert (refused.code, refused.body) == (ResponseCode.NO_PERMISSION, b""), code

    secured(tmp_path, run)


def test_a_broker_without_users_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker_here(tmp_path, remoting_enable=True) as broker,
            remoting_client(broker.address) as client,
        ):
            answer = await client.ask(RequestCode.AUTH_LIST_USER, {})
            assert "does not authenticate callers" in answer.header.remark

    asyncio.run(main())
