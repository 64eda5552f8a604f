"""cluster config: the cluster's configuration on each broker. cluster config-owner: another owner of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import YesOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.config_problems import ConfigProblem, lacked_versions, newest, problems_of, unanswering
from trovemq.cli.figures import counted
from trovemq.cli.session import Session, verb
from trovemq.models.config import ConfigName, ConfigStatus, ConfigTakeOver
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import BrokerAnswers, ClusterState

SHOWN_MAX: Final = 20
"""Entries of one list of one broker that people are shown; objects have all."""
IN_DOUBT: Final = "see trovemq cluster config, and repeat it if no broker is the owner"
NOT_ANSWERED: Final = (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT, errors.SERVICE_NOT_AVAILABLE)


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    verb(app, "config")(config)
    verb(app, "config-owner")(config_owner)


@dataclass(frozen=True, slots=True)
class _Row:
    status: ConfigStatus
    lacks: int | None
    problems: Sequence[ConfigProblem]


async def config(
    session: Session,
    clear_dropped: Annotated[
        bool,
        typer.Option(
            "--clear-dropped",
            help="Forget the changes that a take-over has dropped, once they were repeated.",
        ),
    ] = False,
) -> None:
    """Show the cluster's configuration on each broker. Its owner, versions, and entries to mend."""
    async with session.client() as client:
        statuses = await session.call(client.admin.config.status())
        if having := [one.broker for one in statuses if clear_dropped and one.dropped]:
            for broker in having:
                count = await session.call(client.admin.config.clear_dropped(broker))
                session.output.remark(f"{broker}: {counted(count, 'dropped change')} cleared")
            statuses = await session.call(client.admin.config.status())
    session.away.add("missing", unanswering(statuses, statuses.missing))
    found = list(problems_of(statuses))
    rows = [_row(one, statuses, found) for one in sorted(statuses, key=lambda one: one.broker)]
    session.show_list(rows, _ROWS)
    if whole := [one for one in found if one.kind == "cluster"]:
        session.output.note(problems=[{"what": one.what, "toDo": one.to_do} for one in whole])
    if not session.output.objects:
        if newest(statuses) is None:
            session.output.remark("each broker has its own configuration: set config_owner to share one")
        _show_problems(session, found)


def _row(status: ConfigStatus, statuses: Sequence[ConfigStatus], found: Sequence[ConfigProblem]) -> _Row:
    own = [one for one in found if one.broker == status.broker and one.kind != "cluster"]
    return _Row(status, lacked_versions(status, statuses), own)


def _show_problems(session: Session, found: Sequence[ConfigProblem]) -> None:
    if lines := list(problem_lines(found)):
        from rich.text import Text

        from trovemq.cli.render import printable

        session.output.show(Text("\n".join(map(printable, lines))))


def problem_lines(found: Sequence[ConfigProblem]) -> Iterator[str]:
    """A line for each problem, for people: of a long list its first entries, and how many more there are."""
    for (broker, kind), group in groupby(found, key=lambda one: (one.broker, one.kind)):
        same = list(group)
        for one in same[:SHOWN_MAX]:
            yield f"{one.broker}: {one.what} → {one.to_do}"
        if len(same) > SHOWN_MAX:
            yield f"{broker}: {len(same) - SHOWN_MAX:,} more {kind} → see --json"


_ROWS: Final[Columns[_Row]] = Columns(
    Column("broker", "broker", lambda row: row.status.broker),
    Column("state", "state", lambda row: row.status.state),
    Column("problem", None, lambda row: row.status.problem or None),
    Column("cluster", None, lambda row: row.status.cluster or None),
    Column("owner", "owner", lambda row: row.status.owner or None),
    Column(
        "generation",
        "generation",
        lambda row: row.status.generation.number if row.status.has_table else None,
        lambda row: str(row.status.generation) if row.status.has_table else None,
    ),
    Column("mark", None, lambda row: row.status.generation.mark or None),
    Column(
        "version",
        "version",
        lambda row: row.status.version if row.status.has_table else None,
        number=True,
    ),
    Column("lacks", "lacks", lambda row: row.lacks, number=True),
    Column(
        "problems",
        "problems",
        lambda row: [_problem(one) for one in row.problems],
        lambda row: len(row.problems),
        number=True,
    ),
)


def _problem(one: ConfigProblem) -> dict[str, object]:
    entry = {} if one.entry is None else {"kind": one.entry.kind, "name": one.entry.name}
    return {"problem": one.kind, **entry, "what": one.what, "toDo": one.to_do}


async def config_owner(
    session: Session,
    broker: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ID",
            help="The configuration that stays, where brokers have several (cluster config --json).",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="BROKER",
            help="Whose copy continues, where copies contradict each other; else the highest.",
            show_default=False,
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Make a broker the owner of the cluster's configuration. For an owner that is lost."""
    async with session.client() as client:
        state = await session.call(client.admin.brokers.awaited(broker, within_s=session.wait_s))
        _check_live(state, broker)
        statuses = await session.call(client.admin.config.status())
        _check(statuses, broker, cluster, source)
        session.confirm(_question(statuses, state, broker, cluster, source), yes=yes)
        session.output.say_if_interrupted(f"the take-over may continue: {IN_DOUBT}")
        try:
            made = await session.call(client.admin.config.take_over(broker, cluster=cluster, source=source))
        except TroveError as error:
            if error.spec not in NOT_ANSWERED:
                raise
            raise TroveError(error.spec, f"{error.message}; {IN_DOUBT}", **error.fields) from error
    _show(session, made)


def _check_live(state: ClusterState, broker: str) -> None:
    """TroveError BROKER_NOT_FOUND."""
    if state.broker(broker) is not None:
        return
    names = ", ".join(route.broker.name for route in state.brokers) or "none"
    if any(one.name == broker for one in state.lost):
        text = f"broker {broker} is lost, so it cannot take over: name a live one ({names}), or start it"
    else:
        text = f"there is no broker {broker} (live: {names})"
    raise TroveError(errors.BROKER_NOT_FOUND, text, broker=broker)


def _check(
    statuses: BrokerAnswers[ConfigStatus], broker: str, cluster: str | None, source: str | None
) -> None:
    """TroveError BROKER_UNREACHABLE, BROKER_NOT_FOUND, CONFIG_ABSENT, CONFIG_OTHER_CLUSTER,
    CONFIG_OWNER_ALREADY."""
    by_name = {one.broker: one for one in statuses}
    if broker not in by_name:
        text = f"broker {broker} is in the routes and does not answer, so it cannot take over"
        raise TroveError(errors.BROKER_UNREACHABLE, text, broker=broker)
    if newest(statuses) is None:
        raise TroveError(
            errors.CONFIG_ABSENT, f"none of {', '.join(sorted(by_name))} has a configuration of the cluster"
        )
    if cluster is not None and cluster not in {one.cluster for one in statuses}:
        known = sorted({one.cluster for one in statuses if one.has_table})
        text = f"no broker has the configuration of cluster {cluster} (there is {', '.join(known)})"
        raise TroveError(errors.CONFIG_OTHER_CLUSTER, text, cluster=cluster)
    if source is not None and not (source in by_name and by_name[source].has_table):
        having = ", ".join(sorted(one.broker for one in statuses if one.has_table))
        text = f"broker {source} does not answer, or has no copy; these have one: {having}"
        raise TroveError(errors.BROKER_NOT_FOUND, text, broker=source)
    if by_name[broker].is_owner and cluster is None and source is None:
        generation = by_name[broker].generation
        text = f"broker {broker} owns the configuration already, in generation {generation}"
        raise TroveError(errors.CONFIG_OWNER_ALREADY, text, broker=broker)


def _question(
    statuses: BrokerAnswers[ConfigStatus],
    state: ClusterState,
    broker: str,
    cluster: str | None,
    source: str | None,
) -> str:
    """The change, the brokers that take part, and the possible loss."""
    reached = ", ".join(
        f"{one.broker} ({f'version {one.version}' if one.has_table else 'no copy'})"
        for one in sorted(statuses, key=lambda one: one.broker)
    )
    away = {*unanswering(statuses, statuses.missing), *(one.name for one in state.lost)}
    away |= {one.owner for one in statuses if one.owner} - {one.broker for one in statuses}
    lines = [f"Reachable: {reached}."]
    if away:
        lines.append(f"Not reachable: {', '.join(sorted(away))}. Changes that only these hold are lost.")
    else:
        lines.append("No broker is known to be unreachable.")
    owners = [one.broker for one in statuses if one.is_owner and one.broker != broker]
    if owners:
        lines.append(f"{', '.join(owners)} owns it now and is reachable; it will follow {broker}.")
    if source is not None:
        lines.append(f"The copy of {source} continues: changes that it lacks are dropped.")
    what = "cluster's configuration" if cluster is None else f"configuration of cluster {cluster}"
    lines.append(f"Make {broker} the owner of the {what}?")
    return "\n".join(lines)


def _show(session: Session, made: ConfigTakeOver) -> None:
    dropped = [_DROPPED.fields(one) for one in made.dropped]
    shown: dict[str, object] = {
        "broker": made.owner,
        "cluster": made.cluster,
        "generation": made.generation.number,
        "mark": made.generation.mark,
        "version": made.version,
        "source": made.source,
        "promised": list(made.promised),
        "unreached": list(made.unreached),
        "dropped": dropped,
    }
    session.output.item(shown)
    if session.output.objects:
        return
    from trovemq.cli.render import card

    text = {
        "owner": made.owner,
        "generation": str(made.generation),
        "version": made.version,
        "copy of": made.source,
        "took part": ", ".join(made.promised) or "no other broker",
        "not reached": ", ".join(made.unreached) or "none",
        "dropped": counted(len(dropped), "change") if dropped else "nothing",
    }
    session.output.show(card(text))
    if made.dropped:
        session.show_table(_DROPPED, map(_DROPPED.row, made.dropped))
    session.output.remark(
        f"set config_owner={made.owner} on every broker, so that new ones and restarts find it"
    )


_DROPPED: Final[Columns[ConfigName]] = Columns(
    Column("kind", "kind", lambda one: one.kind),
    Column("name", "dropped", lambda one: one.name, escaped=True),
    Column("message", "why", lambda one: one.message or None, lambda one: one.message, escaped=True),
)
