"""What `/readyz` says of the cluster's configuration: a reason where no messages are served, else a warning.

Both are texts under the name `configuration`; docs/how-to/one-configuration.md says what to do about each.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "configuration"
_TAKE_OVER: Final = "if it is lost: trovemq cluster config-owner NAME"


def reason(state: str, owner: str, *, problem: str = "") -> str:
    """Why no messages are served; empty if they are.

    Args:
        state: That of ConfigStatus in cluster_config.proto.
        owner: The owner as far as it is known: its name, or the value of config_owner.
        problem: What went wrong at the last attempt to follow; empty if nothing did.
    """
    said = f" ({problem})" if problem else ""
    match state:
        case "joining":
            return f"it joins, and waits for the owner {owner}{said}: start {owner}, or correct config_owner"
        case "waiting":
            return f"it has started, and waits up to 10 s for the owner {owner}{said}"
        case "removed":
            return "it was removed from its cluster: stop it; a broker with an empty store joins as a new one"
    return ""


def warning(state: str, owner: str, *, generation: str = "", problem: str = "", to_mend: int = 0) -> str:
    """What needs attention, although messages are served; empty if nothing does.

    Args:
        state, owner, problem: As above.
        generation: The highest that was seen, of the broker that has taken over.
        to_mend: How many entries differ, could not be made, or were dropped.
    """
    said = f" ({problem})" if problem else ""
    match state:
        case "stored":
            return (
                f"the owner {owner} is away{said}: nothing can be changed, and this broker serves by its stored"
                f" table: start {owner}; {_TAKE_OVER}"
            )
        case "superseded":
            return f"another broker has taken over, in generation {generation}{said}: changes are refused"
        case "contradicted":
            return (
                f"this store was put back from an older copy{said}: changes are refused until a broker takes"
                " over with the copy that continues: trovemq cluster config-owner NAME --source BROKER"
            )
    if problem:
        return problem
    if to_mend:
        noun = "entry needs" if to_mend == 1 else "entries need"
        return f"{to_mend:,} {noun} an operator: trovemq cluster config"
    return ""
