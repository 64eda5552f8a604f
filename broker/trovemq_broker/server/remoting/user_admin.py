"""Users and rules of access, for RocketMQ's tools (its ACL 2.0).

| RocketMQ                     | here                                                                   |
|------------------------------|------------------------------------------------------------------------|
| user, password               | user, secret. A secret is not shown; a new one ends the former at once |
| userType, userStatus         | kind, which stays as it is; enabled or not                             |
| entry of a policy            | one rule for each decision, resource and sources                       |
| policy of type Default       | refused: rules have no defaults                                        |
| the most specific entry wins | a deny wins                                                            |

A policy of a subject for a resource replaces the rules of that resource, as in RocketMQ. A tool sends a
change to each broker of a cluster in turn; so the deletion of a user or a rule that is not there is no error,
and neither is the creation of a user that is there with the same password, type and status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from trovemq_broker.security.actions import Pattern, action_text, parse_actions
from trovemq_broker.security.rules import parse_sources
from trovemq_broker.server.remoting.bodies import read_body
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.wire import tool_users as calls
from trovemq_broker.server.wire.tool_calls import NativeCall
from trovemq_broker.server.wire.tool_users import ShownRule, ShownUser
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.json_text import json_text

SUBJECT: Final = "User:"
CUSTOM: Final = "Custom"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
ARRIVAL_STEPS: Final = 40
ARRIVAL_STEP_S: Final = 0.05
ENTRIES_MAX: Final = 256
"""Of one request."""


class UserInfo(msgspec.Struct, rename="camel"):
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntry(msgspec.Struct, rename="camel"):
    resource: str
    actions: list[str] = []
    source_ips: list[str] | None = None
    decision: str = "Allow"


class Policy(msgspec.Struct, rename="camel"):
    policy_type: str | None = CUSTOM
    entries: list[PolicyEntry] = []


class AclInfo(msgspec.Struct, rename="camel"):
    policies: list[Policy] = []


_USER: Final = msgspec.json.Decoder(UserInfo)
_ACL: Final = msgspec.json.Decoder(AclInfo)


class UserAdmin:
    """For use on the event loop only."""

    def __init__(self, native: NativeCalls) -> None:
        self._native = native

    # --- users ------------------------------------------------------------------------------------------
    def create_user(self, request: Request) -> None:
        """AUTH_CREATE_USER."""
        name, info = request.fields.text("username"), read_body(_USER, request)
        if not info.password:
            raise _illegal("a user needs a password", "password")
        request.run(self._create_user(request, name, info, info.password, enabled=_is_enabled(info)))

    async def _create_user(
        self, request: Request, name: str, info: UserInfo, password: str, *, enabled: bool
    ) -> None:
        try:
            await self._native.make(request, calls.create_user(name, info.user_type or "", password))
        except TroveError as error:
            if error.spec is not errors.USER_EXISTS or not await self._is_made(request, name, info, password):
                raise
        await self._make(request, [] if enabled else [calls.alter_user(name, enabled=False)])

    async def _is_made(self, request: Request, name: str, info: UserInfo, password: str) -> bool:
        """Whether the user is as the request wants it. One that another broker has made just now comes here
        a moment later."""
        for _ in range(ARRIVAL_STEPS):
            if (found := await self._user(request, name)) is not None:
                kind_is_same = (info.user_type or found.kind).lower() == found.kind.lower()
                is_same = kind_is_same and found.enabled == _is_enabled(info)
                return is_same and self._native.admission.has_secret(name, password)
            await asyncio.sleep(ARRIVAL_STEP_S)
        return False

    def update_user(self, request: Request) -> None:
        """AUTH_UPDATE_USER: the values that the request has are changed."""
        request.run(self._update_user(request, request.fields.text("username"), read_body(_USER, request)))

    async def _update_user(self, request: Request, name: str, info: UserInfo) -> None:
        found = await self._user(request, name)
        if found is None:
            raise TroveError(errors.USER_NOT_FOUND, f"user {name[:80]!a} does not exist")
        if info.user_type and info.user_type.lower() != found.kind.lower():
            text = f"user {name} is {found.kind}, and stays so: delete it, and create another one"
            raise _illegal(text, "userType")
        made = []
        if info.password:
            made += [calls.rotate_secret(name, info.password), calls.drop_old_secret(name)]
        if info.user_status:
            made.append(calls.alter_user(name, enabled=_is_enabled(info)))
        await self._make(request, made)

    def delete_user(self, request: Request) -> None:
        """AUTH_DELETE_USER, with its rules."""
        request.run(self._delete_user(request, request.fields.text("username")))

    async def _delete_user(self, request: Request, name: str) -> None:
        try:
            await self._native.make(request, calls.delete_user(name))
        except TroveError as error:
            if error.spec is not errors.USER_NOT_FOUND:
                raise
        request.answer()

    def get_user(self, request: Request) -> None:
        """AUTH_GET_USER: the answer for an unknown user has no body, as in RocketMQ."""
        request.run(self._get_user(request, request.fields.text("username")))

    async def _get_user(self, request: Request, name: str) -> None:
        found = await self._user(request, name)
        request.answer(body=b"" if found is None else json_text(_shown_user(found)))

    def list_users(self, request: Request) -> None:
        """AUTH_LIST_USER: those whose name has the text `filter`."""
        request.run(self._list_users(request, request.fields.text("filter", "")))

    async def _list_users(self, request: Request, part: str) -> None:
        found = await self._users(request)
        request.answer(body=json_text([_shown_user(one) for one in found if part in one.name]))

    async def _users(self, request: Request) -> list[ShownUser]:
        return calls.users_of(await self._native.make(request, calls.list_users()))

    async def _user(self, request: Request, name: str) -> ShownUser | None:
        return next((one for one in await self._users(request) if one.name == name), None)

    # --- rules ------------------------------------------------------------------------------------------
    def put_acl(self, request: Request) -> None:
        """AUTH_CREATE_ACL, AUTH_UPDATE_ACL."""
        user = _user_of(request.fields.text("subject"))
        wanted = list(_rules_of(user, read_body(_ACL, request).policies))
        request.run(self._put_acl(request, user, wanted))

    async def _put_acl(self, request: Request, user: str, wanted: Sequence[ShownRule]) -> None:
        """The new rules come first: nothing is denied in between that is allowed before and after."""
        resources = {one.resource for one in wanted}
        before = [one for one in await self._rules(request, user) if one.resource in resources]
        kept = [one._replace(number=0) for one in before]
        made = [calls.create_rule(one) for one in wanted if one not in kept]
        gone = [one.number for one in before if one._replace(number=0) not in wanted]
        await self._make(request, [*made, *map(calls.delete_rule, gone)])

    def delete_acl(self, request: Request) -> None:
        """AUTH_DELETE_ACL: of one resource, or all of the subject."""
        fields = request.fields
        _check_type(fields.text("policyType", ""))
        user, resource = _user_of(fields.text("subject")), fields.text("resource", "")
        pattern = str(Pattern.parse(resource)) if resource else ""
        request.run(self._delete_acl(request, user, pattern))

    async def _delete_acl(self, request: Request, user: str, pattern: str) -> None:
        found = await self._rules(request, user)
        gone = [one.number for one in found if pattern in ("", one.resource)]
        await self._make(request, [calls.delete_rule(number) for number in gone])

    def get_acl(self, request: Request) -> None:
        """AUTH_GET_ACL: the answer for a subject without rules has no body, as in RocketMQ."""
        request.run(self._get_acl(request, _user_of(request.fields.text("subject"))))

    async def _get_acl(self, request: Request, user: str) -> None:
        found = [one for one in await self._rules(request) if one.user == user]
        request.answer(body=json_text(_shown_acl(user, found)) if found else b"")

    def list_acls(self, request: Request) -> None:
        """AUTH_LIST_ACL: of subjects and resources that have these texts."""
        fields = request.fields
        request.run(
            self._list_acls(request, fields.text("subjectFilter", ""), fields.text("resourceFilter", ""))
        )

    async def _list_acls(self, request: Request, subject: str, resource: str) -> None:
        by_user: dict[str, list[ShownRule]] = {}
        for one in await self._rules(request):
            if subject in SUBJECT + one.user and resource in one.resource:
                by_user.setdefault(one.user, []).append(one)
        request.answer(body=json_text([_shown_acl(user, by_user[user]) for user in sorted(by_user)]))

    async def _rules(self, request: Request, user: str = "") -> list[ShownRule]:
        return calls.rules_of(await self._native.make(request, calls.list_rules(user)))

    async def _make(self, request: Request, made: Iterable[NativeCall]) -> None:
        """One after the other, to the first that is refused."""
        for call in made:
            await self._native.make(request, call)
        request.answer()


def _is_enabled(info: UserInfo) -> bool:
    """TroveError REQUEST_ILLEGAL."""
    status = (info.user_status or ENABLED).lower()
    if status not in (ENABLED, DISABLED):
        raise _illegal(f"userStatus {status[:40]!a} is not {ENABLED} or {DISABLED}", "userStatus")
    return status == ENABLED


def _user_of(subject: str) -> str:
    """TroveError REQUEST_ILLEGAL."""
    if not subject.startswith(SUBJECT) or len(subject) == len(SUBJECT):
        raise _illegal(
            f"subject {subject[:80]!a} is not {SUBJECT} and a name: only users have rules", "subject"
        )
    return subject.removeprefix(SUBJECT)


def _check_type(policy_type: str) -> None:
    if policy_type and policy_type.lower() != CUSTOM.lower():
        text = (
            f"policy type {policy_type[:40]!a} is not supported: rules have no defaults, only {CUSTOM} ones"
        )
        raise _illegal(text, "policyType")


def _rules_of(user: str, policies: Iterable[Policy]) -> Iterable[ShownRule]:
    """Checked before the first is made. TroveError RULE_ILLEGAL, REQUEST_ILLEGAL."""
    count = 0
    for policy in policies:
        _check_type(policy.policy_type or "")
        for entry in policy.entries:
            count += 1
            if count > ENTRIES_MAX:
                raise TroveError(errors.LIMIT_EXCEEDED, f"a request has {ENTRIES_MAX} entries at most")
            decision = entry.decision.lower()
            if decision not in ("allow", "deny"):
                raise _illegal(f"decision {entry.decision[:40]!a} is not Allow or Deny", "decision")
            actions = action_text(parse_actions(",".join(entry.actions)))
            sources = [str(one) for one in parse_sources(entry.source_ips or ())]
            yield ShownRule(
                0, user, decision == "allow", actions, str(Pattern.parse(entry.resource)), sources
            )
    if not count:
        raise _illegal("the policy has no entries", "policies")


def _shown_user(user: ShownUser) -> dict[str, object]:
    """Without a password."""
    status = ENABLED if user.enabled else DISABLED
    return {"userStatus": status, "userType": user.kind, "username": user.name}


def _shown_acl(user: str, rules: Iterable[ShownRule]) -> dict[str, object]:
    entries = [
        {
            "actions": one.actions.split(","),
            "decision": "Allow" if one.allow else "Deny",
            "resource": one.resource,
            "sourceIps": list(one.sources),
        }
        for one in rules
    ]
    return {"policies": [{"entries": entries, "policyType": CUSTOM}], "subject": SUBJECT + user}


def _illegal(text: str, field: str) -> TroveError:
    return TroveError(errors.REQUEST_ILLEGAL, text, field=field)
