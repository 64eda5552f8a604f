"""Actions, resources and patterns of resources, by the names of RocketMQ's ACL 2.0.

| pattern           | matches                                               |
|-------------------|-------------------------------------------------------|
| Topic:orders      | the topic `orders`                                    |
| Topic:orders*     | topics whose name begins with `orders`                |
| Topic:*           | every topic                                           |
| Group:… Cluster:… | groups, clusters; the same forms                      |
| Namespace:eu      | topics and groups of the namespace `eu` (`eu%orders`) |
| *                 | everything                                            |

Read, Command, Backup and Audit are TroveMQ's own: they are for operators, and RocketMQ has no names for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Final, NamedTuple

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ANY: Final = "*"
NAME_LENGTH_MAX: Final = 255

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_.+-]{1,255}")
_INTERNAL_PREFIXES: Final = ("%RETRY%", "%DLQ%")


class Action(IntFlag):
    """The actions of rules. A set of actions is one number."""

    PUB = 1
    SUB = 2
    CREATE = 4
    UPDATE = 8
    DELETE = 16
    GET = 32
    LIST = 64
    READ = 128  # messages, by look-ups of an operator
    COMMAND = 256  # ask a client to consume a message now, or for its stack
    BACKUP = 512  # copy or check the store
    AUDIT = 1024  # read the audit records


ALL_ACTIONS: Final = Action(sum(Action))
_BY_NAME: Final = {ANY: ALL_ACTIONS, "all": ALL_ACTIONS, **{(one.name or "").lower(): one for one in Action}}


class Kind(StrEnum):
    """Kinds of resources."""

    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


_KINDS: Final = {kind.lower(): kind for kind in Kind}


class Resource(NamedTuple):
    """The object of a call: a topic, a group, the cluster."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def namespace(self) -> str | None:
        """The namespace of a topic or group, "" if it has none; None for a cluster."""
        if self.kind is Kind.CLUSTER:
            return None
        if self.kind is Kind.NAMESPACE:
            return self.name
        name = self.name
        for prefix in _INTERNAL_PREFIXES:
            name = name.removeprefix(prefix)
        namespace, separator, _ = name.partition("%")
        return namespace if separator else ""


class Form(StrEnum):
    """How a pattern compares names."""

    EXACT = "exact"
    PREFIX = "prefix"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of resources. `kind` None: every kind; `form` is then ANY."""

    kind: Kind | None
    form: Form
    name: str = ""

    def __str__(self) -> str:
        if self.kind is None:
            return ANY
        star = "" if self.form is Form.EXACT else ANY
        return f"{self.kind}:{self.name}{star}"

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """TroveError RULE_ILLEGAL."""
        if text == ANY:
            return cls(None, Form.ANY)
        kind_text, separator, name = text.partition(":")
        kind = _KINDS.get(kind_text.lower())
        if kind is None or not separator:
            raise _illegal(f"resource {text[:80]!a} is not Cluster:, Namespace:, Topic: or Group: and a name")
        if name == ANY:
            return cls(kind, Form.ANY)
        form = Form.PREFIX if name.endswith(ANY) else Form.EXACT
        name = name.removesuffix(ANY)
        if not _NAME.fullmatch(name):
            raise _illegal(
                f"resource {text[:80]!a}: a name has 1 to 255 letters, digits, %, |, ., +, - and _"
            )
        return cls(kind, form, name)

    def matches(self, resource: Resource) -> bool:
        if self.kind is None:
            return True
        if self.kind is not resource.kind:
            if self.kind is not Kind.NAMESPACE or resource.namespace is None:
                return False
            return self._matches_name(resource.namespace)
        return self._matches_name(resource.name)

    def _matches_name(self, name: str) -> bool:
        if self.form is Form.ANY:
            return True
        return name == self.name if self.form is Form.EXACT else name.startswith(self.name)


def parse_actions(text: str) -> Action:
    """Parses names that are separated by commas, in any case; `All` or `*` for all. TroveError
    RULE_ILLEGAL."""
    actions = Action(0)
    for name in text.split(","):
        action = _BY_NAME.get(name.strip().lower())
        if action is None:
            known = ", ".join(["All", *(action_text(one) for one in Action)])
            raise _illegal(f"action {name.strip()[:40]!a} is unknown; there are {known}")
        actions |= action
    return actions


def action_text(actions: Action) -> str:
    """The text of these actions: their names, separated by commas."""
    if actions == ALL_ACTIONS:
        return "All"
    return ",".join((one.name or "").capitalize() for one in Action if one in actions)


def _illegal(message: str) -> TroveError:
    return TroveError(errors.RULE_ILLEGAL, message)
