"""The texts of `/readyz` about the configuration: a reason while no messages are served, else a warning.

Both are texts under the name `configuration`; docs/how-to/one-configuration.md says what to do about each.
"""

from __future__ import annotations

from typing import Final

_TAKE_OVER: Final = "if it is lost: trovemq cluster config-owner NAME"


def reason(state: str, owner: str, *, problem: str = "") -> str:
    """Why no messages are served; empty if they are.

    Args:
        state: As in cluster_config.proto, ConfigStatus.
        owner: The owner as far as it is known: its name, or the value of config_owner.
        problem: The failure of the last attempt to follow; empty if there was none.
    """
    said, owner = f" ({problem})" if problem else "", owner or "(unknown)"
    match state:
        case "joining":
            waits = f"it joins the cluster, and waits for its owner {owner}{said}"
            return f"{waits}: start that, or correct config_owner"
        case "waiting":
            return f"it has a stored table, and waits for its owner {owner}{said}, 10 s at most"
        case "removed":
            return "it was removed from its cluster: stop it; a broker with an empty store joins as a new one"
    return ""


def warning(state: str, owner: str, *, generation: str = "", problem: str = "") -> str:
    """The conditions that deserve attention while messages are served; empty if there is none.

    Args:
        state, owner, problem: As above.
        generation: The highest that was seen, of the broker that has taken over.
    """
    said, owner = f" ({problem})" if problem else "", owner or "(unknown)"
    match state:
        case "stored":
            return (
                f"the owner {owner} is away{said}: nothing can be changed, and this broker serves by its"
                f" stored table: start that; {_TAKE_OVER}"
            )
        case "superseded":
            return f"another broker has taken over, in generation {generation}{said}: changes are refused"
        case "contradicted":
            return (
                f"this store was put back from an older copy{said}: changes are refused until a broker takes"
                " over with the copy that continues: trovemq cluster config-owner NAME --source BROKER"
            )
    return problem
