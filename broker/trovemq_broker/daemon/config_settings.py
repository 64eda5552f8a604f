"""Settings of the cluster's configuration: which broker owns it, and how this one logs in there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from trovemq_broker.cluster.owner_finder import OwnerNamed
from trovemq_broker.daemon.node_settings import NAME_LENGTH_MAX
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.settings import setting


@dataclass(frozen=True, kw_only=True)
class ClusterConfigSettings:
    """`config_problems()` reports contradictions."""

    config_owner: Annotated[str, setting("NAME or NAME@HOST:PORT")] = ""
    """The broker that owns the cluster's topics, groups, users and rules, which this broker then follows;
    empty = this broker itself. Without an address, that of the nameservers' routes; with nameserver_tls, the
    address of its tls_listen. A broker that has followed already follows the owner that its store names."""
    config_credentials_file: Annotated[str, setting("FILE")] = ""
    """File with the access key and secret of a super user, with which this broker logs in at the owner; read
    for each connection; empty = nameserver_credentials_file."""

    @property
    def owner_named(self) -> OwnerNamed | None:
        """The owner by the settings; None if none is given. SettingsError."""
        if not self.config_owner:
            return None
        name, at, text = self.config_owner.rpartition("@")
        if not at:
            return OwnerNamed(text, None)
        address = parse_address(text)
        if not address.port or address.is_unspecified:
            raise SettingsError(f"{text!r} cannot be dialled")
        return OwnerNamed(name, address)

    def config_problems(self) -> Iterator[str]:
        """The contradictions, one sentence each."""
        try:
            named = self.owner_named
        except SettingsError as error:
            yield f"config_owner must be NAME or NAME@HOST:PORT: {error}"
            return
        if named is not None and not (1 <= len(named.name) <= NAME_LENGTH_MAX and named.name.isprintable()):
            yield f"config_owner must name a broker, with 1 to {NAME_LENGTH_MAX} printable characters"
