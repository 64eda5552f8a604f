"""A topic or group that is created on every broker, where some have it already."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Generic, Protocol, TypeVar

from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import TopicDescription
from trovemq.models.group import GroupDescription
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ARRIVAL_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""The pauses before a broker is asked again that has said that the name exists, and does not have it yet."""


class _Described(Protocol):
    @property
    def broker(self) -> str: ...


_Description = TypeVar("_Description", bound=_Described)


@dataclass(frozen=True, slots=True)
class Created(Generic[_Description]):
    """One broker's description; `existed`: its error if it had the topic or group already."""

    found: _Description
    existed: TroveError | None = None


async def found_there(
    describe: Callable[[], Awaitable[_Description]],
    existed: TroveError,
    stated: _Description | None = None,
) -> Created[_Description]:
    """The existing one, for a comparison. A broker that has passed the creation on to the owner of the
    configuration gets the entry a moment after the owner has it; if it does not come, the owner's words
    count: `stated`. Raises TroveError: `existed` if the user may not see it, or there are none."""
    for pause_s in (*ARRIVAL_S, 0.0):
        try:
            return Created(await describe(), existed)
        except TroveError as error:
            if error.spec is errors.ACCESS_DENIED:
                raise existed from error
            if error.spec not in (errors.TOPIC_NOT_FOUND, errors.GROUP_NOT_FOUND):
                raise
        await asyncio.sleep(pause_s)
    if stated is None:
        raise existed
    return Created(stated, existed)


def stated_topic(existed: TroveError, broker: str) -> TopicDescription | None:
    """The topic as the error of the configuration's owner describes it; None if it does not."""
    fields = existed.fields
    try:
        placement = {str(name): int(count) for name, count in json.loads(fields["placement"]).items()}
        queues, kind = int(fields["queue_count"]), fields["message_type"]
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return TopicDescription(fields.get("topic", ""), queues, kind, False, (), broker, {}, None, placement)


def topics_created(
    name: str, answers: BrokerAnswers[Created[TopicDescription]], *, exist_ok: bool
) -> BrokerAnswers[TopicDescription]:
    """The topic on each broker. Raises TroveError TOPIC_EXISTS, TOPIC_SETTINGS_DIFFER."""
    return _created(
        f"topic {name}", answers, _topic_settings, errors.TOPIC_SETTINGS_DIFFER, exist_ok=exist_ok
    )


def groups_created(
    name: str, answers: BrokerAnswers[Created[GroupDescription]], *, exist_ok: bool
) -> BrokerAnswers[GroupDescription]:
    """The group on each broker. Raises TroveError GROUP_EXISTS, GROUP_SETTINGS_DIFFER."""
    return _created(
        f"group {name}", answers, _group_settings, errors.GROUP_SETTINGS_DIFFER, exist_ok=exist_ok
    )


def _created(
    what: str,
    answers: BrokerAnswers[Created[_Description]],
    settings_of: Callable[[_Description], dict[str, object]],
    differ: errors.ErrorSpec,
    *,
    exist_ok: bool,
) -> BrokerAnswers[_Description]:
    made = [one.found for one in answers if one.existed is None]
    existing = [one.found for one in answers if one.existed is not None]
    found = BrokerAnswers(
        (one.found for one in answers),
        pending=answers.pending,
        later=answers.later,
        existing=(one.broker for one in existing),
    )
    if exist_ok:
        return found
    if not made:
        raise _exists(what, answers)
    wanted = settings_of(made[0])
    others = [text for one in existing if (text := _difference(wanted, settings_of(one), one.broker))]
    if others:
        text = f"{what} is created on {_names(made)}; with other settings it exists on {'; '.join(others)}"
        raise TroveError(differ, text, created=_names(made), existing=_names(existing))
    return found


def _exists(what: str, answers: BrokerAnswers[Created[_Description]]) -> TroveError:
    """The broker's own error if there is one broker."""
    first = answers[0].existed
    assert first is not None, "no broker created it"
    if len(answers) == 1 and not answers.pending:
        return first
    text = f"{what} exists already on {_names([one.found for one in answers])}"
    if answers.pending:
        text += f", and {', '.join(answers.pending)} did not answer"
    return TroveError(first.spec, text, **first.fields)


def _names(found: Sequence[_Described]) -> str:
    return ", ".join(sorted(one.broker for one in found))


def _difference(wanted: dict[str, object], there: dict[str, object], broker: str) -> str:
    """`broker-a (queues 4 instead of 8)`; empty if nothing differs."""
    changed = [
        f"{name} {there[name]} instead of {wanted[name]}" for name in wanted if wanted[name] != there[name]
    ]
    return f"{broker} ({', '.join(changed)})" if changed else ""


def _topic_settings(topic: TopicDescription) -> dict[str, object]:
    options = ", ".join(f"{name} {value}" for name, value in sorted(topic.options.items()))
    return {"queues": topic.queue_count, "type": topic.message_type, "options": options or "none"}


def _group_settings(group: GroupDescription) -> dict[str, object]:
    return asdict(group.settings)
