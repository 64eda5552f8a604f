"""Acts on users and rules of access. Secrets are made by the SDK and shown once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trovemq import AccessRule, Client, UserCredentials
from trovemq.cli.figures import counted
from trovemq_console.pages.act_parts import Act, Outcome, Preview, in_words, not_done_on
from trovemq_console.pages.forms import Form
from trovemq_console.settings import ConsoleSettings

_PAGE: Final = (("users and rules", "/access"),)


# --- users ------------------------------------------------------------------------------------------
async def _preview_create(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    user, is_super = form.required("user"), bool(form.text("super"))
    may = "everything, without rules" if is_super else "nothing until a rule allows it"
    return Preview(
        f"Make the user {user}, who may do {may}? The secret is shown once, on the next page.",
        settings.command("user", "create", user, *(["--super"] if is_super else [])),
        "Create",
    )


async def _create(client: Client, form: Form) -> Outcome:
    user = form.required("user")
    made = await client.admin.users.create(user, is_super=bool(form.text("super")))
    return _shown_once(f"{user} is there.", made)


async def _preview_rotate(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    user = form.required("user")
    return Preview(
        f"Make a new secret for {user}? The one before stays valid until it is dropped, or until the next "
        "rotation; one from before that ends now. The new one is shown once, on the next page.",
        settings.command("user", "rotate", user),
        "Rotate",
    )


async def _rotate(client: Client, form: Form) -> Outcome:
    user = form.required("user")
    return _shown_once(f"{user} has a new secret.", await client.admin.users.rotate(user))


def _shown_once(sentence: str, made: UserCredentials) -> Outcome:
    return Outcome(
        f"{sentence} Keep the secret now: it is not shown again.{not_done_on(made.pending)}",
        ("of a credentials file", "value"),
        (("access_key", made.access_key), ("secret_key", made.secret_key)),
        _PAGE,
    )


async def _preview_drop(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    user = form.required("user")
    return Preview(
        f"End every secret of {user} but the newest? Clients that still use an older one are refused.",
        settings.command("user", "rotate", user, "--drop-old"),
        "Drop",
    )


async def _drop(client: Client, form: Form) -> Outcome:
    user = form.required("user")
    done = await client.admin.users.drop_old_secret(user)
    return Outcome(f"Only the newest secret of {user} is valid.{not_done_on(done.pending)}", links=_PAGE)


async def _preview_enable(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    user = form.required("user")
    return Preview(f"Accept calls of {user} again?", settings.command("user", "enable", user), "Enable")


async def _enable(client: Client, form: Form) -> Outcome:
    user = form.required("user")
    done = await client.admin.users.enable(user)
    return Outcome(f"Calls of {user} are accepted.{not_done_on(done.pending)}", links=_PAGE)


async def _preview_disable(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    user = form.required("user")
    return Preview(
        f"Take no more calls of {user}, from now on? The user, the secrets and the rules stay.",
        settings.command("user", "disable", user),
        "Disable",
    )


async def _disable(client: Client, form: Form) -> Outcome:
    user = form.required("user")
    done = await client.admin.users.enable(user, enabled=False)
    return Outcome(f"Calls of {user} are refused.{not_done_on(done.pending)}", links=_PAGE)


async def _preview_delete(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    user = form.required("user")
    rules = await client.admin.rules.list_all(user)
    return Preview(
        f"Delete the user {user} and {counted(len(rules), 'rule')}?",
        settings.command("user", "delete", user, "--yes"),
        "Delete",
        ("broker", "rule", "may", "on"),
        tuple(_row(rule) for rule in rules),
        destructive=True,
    )


async def _delete(client: Client, form: Form) -> Outcome:
    user = form.required("user")
    brokers = await client.admin.users.delete(user)
    sentence = f"{user} is deleted on {in_words(brokers)}.{not_done_on(brokers.pending)}"
    return Outcome(sentence, links=_PAGE)


# --- rules ------------------------------------------------------------------------------------------
_DECISIONS: Final = ("allow", "deny")


async def _preview_add_rule(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    user, actions, resource = (
        form.required("user"),
        ",".join(form.words("actions")),
        form.required("resource"),
    )
    form.required("actions")
    decision, sources = form.choice("decision", _DECISIONS), form.words("sources")
    words = [word for source in sources for word in ("--from", source)]
    where = f" from {in_words(sources)}" if sources else ""
    wins = " A deny wins over every allow." if decision == "deny" else ""
    return Preview(
        f"{decision.capitalize()} {user} {actions} on {resource}{where}?{wins}",
        settings.command("acl", decision, user, actions, resource, *words),
        decision.capitalize(),
    )


async def _add_rule(client: Client, form: Form) -> Outcome:
    rules = client.admin.rules
    add = rules.allow if form.choice("decision", _DECISIONS) == "allow" else rules.deny
    made = await add(
        form.required("user"),
        ",".join(form.words("actions")),
        form.required("resource"),
        sources=form.words("sources"),
    )
    rows = tuple(_row(rule) for rule in made)
    sentence = f"The rule holds from the next call on.{not_done_on(made.pending)}"
    return Outcome(sentence, ("broker", "rule", "may", "on"), rows, _PAGE)


async def _preview_delete_rule(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    number, broker = form.number("number"), form.required("broker")
    rules = [rule for rule in await client.admin.rules.list_all(broker=broker) if rule.number == number]
    return Preview(
        f"Delete rule {number} on {broker}? It holds no more from the next call on.",
        settings.command("acl", "delete", str(number), "--broker", broker),
        "Delete",
        ("broker", "rule", "may", "on"),
        tuple(_row(rule) for rule in rules),
        destructive=True,
    )


async def _delete_rule(client: Client, form: Form) -> Outcome:
    number, broker = form.number("number"), form.required("broker")
    await client.admin.rules.delete(number, broker=broker)
    return Outcome(f"Rule {number} on {broker} is deleted.", links=_PAGE)


def _row(rule: AccessRule) -> tuple[str, ...]:
    may = f"{rule.access_key} {'may' if rule.allow else 'may not'} {rule.actions}"
    return (rule.broker, str(rule.number), may, rule.resource)


ACTS: Final[Mapping[str, Act]] = {
    "create-user": Act("Create a user", _preview_create, _create, shows_secret=True),
    "rotate-secret": Act("Rotate a secret", _preview_rotate, _rotate, shows_secret=True),
    "drop-secret": Act("Drop an old secret", _preview_drop, _drop),
    "enable-user": Act("Enable a user", _preview_enable, _enable),
    "disable-user": Act("Disable a user", _preview_disable, _disable),
    "delete-user": Act("Delete a user", _preview_delete, _delete),
    "add-rule": Act("Add a rule", _preview_add_rule, _add_rule),
    "delete-rule": Act("Delete a rule", _preview_delete_rule, _delete_rule),
}
