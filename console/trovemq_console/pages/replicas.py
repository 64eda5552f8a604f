"""The replica groups: their leaders, and how far each copy of the log is."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import ReplicaGroup, ReplicaNode
from trovemq_console.pages.console import Console

ROLES: Final = {"leader": "good", "opening": "warn", "follower": "quiet", "new": "warn", "unknown": "bad"}


async def replicas(console: Console, request: Request) -> Response:
    """The page."""
    client = await console.client()
    groups = await client.admin.replicas.groups()
    return console.respond(
        request,
        "replicas.html",
        groups=[(group, notice_of(group)) for group in groups],
        roles=ROLES,
        copy_of=copy_of,
        command=console.settings.command("cluster", "status"),
    )


def copy_of(group: ReplicaGroup, node: ReplicaNode) -> tuple[str, str]:
    """The part of the node's copy in the group, in a word with its level."""
    if node.node in group.in_sync:
        return "in sync", "good" if node.is_reachable else "warn"
    if node.is_voter:
        return "not in sync", "warn"
    return "joining" if node.is_joining else "learner", "quiet"


def notice_of(group: ReplicaGroup) -> tuple[str, str]:
    """The group's fault, with its level; "" if it has none."""
    if group.leader is None:
        return "bad", "No node leads: messages are refused until one does."
    voters = sum(node.is_voter for node in group.nodes)
    copies = len(group.in_sync)
    if copies < min(group.in_sync_min, voters):
        return (
            "bad",
            f"Fewer copies are in sync than the group needs, {group.in_sync_min}: messages are refused.",
        )
    away = [node.node for node in group.nodes if node.node in group.in_sync and not node.is_reachable]
    if away:
        return "warn", f"No answer from {', '.join(away)}."
    lagging = [node.node for node in group.nodes if node.is_voter and node.node not in group.in_sync]
    if lagging:
        return "warn", f"Not in sync: {', '.join(lagging)}."
    return "", ""
