"""Planted faults of the console. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

CONSOLE_FAULTS: Final = (
    Planted(
        "pages are served under another site's name",
        "console/trovemq_console/guard.py",
        '        if headers.get("host", "").lower() not in self._hosts:',
        '        if headers.get("host", "").lower() not in self._hosts and scope["method"] == "POST":',
        (
            "tests/unit/console/test_refusals.py::"
            "test_a_name_that_is_not_the_consoles_is_refused[evil.example]",
        ),
    ),
    Planted(
        "a form of another site is accepted",
        "console/trovemq_console/guard.py",
        '            origin not in (None, *self._origins) or site not in ("same-origin", "none")',
        '            origin not in (None, *self._origins) and site not in ("same-origin", "none")',
        ("tests/unit/console/test_refusals.py::test_a_form_of_another_site_does_nothing",),
    ),
    Planted(
        "an expired session is still valid",
        "console/trovemq_console/sessions.py",
        "        return session if session.expiry > self._clock() else None",
        "        return session",
        ("tests/unit/console/test_refusals.py::test_an_expired_session_says_so_and_a_new_page_works",),
    ),
    Planted(
        "a form's token is not its session's own",
        "console/trovemq_console/sessions.py",
        '        return self._mac("form", session.nonce)',
        '        return self._mac("form", "")',
        ("tests/unit/console/test_refusals.py::test_the_token_of_another_browser_is_none",),
    ),
    Planted(
        "a read-only console makes changes that are confirmed",
        "console/trovemq_console/pages/acts.py",
        "    if not console.settings.allow_changes:\n",
        "    if False:\n",
        (
            "tests/unit/console/test_changes.py::"
            "test_a_form_with_its_token_changed_something_in_a_read_only_console",
        ),
    ),
    Planted(
        "a secret is shown over plain HTTP",
        "console/trovemq_console/pages/acts.py",
        "    if chosen.shows_secret and not console.settings.may_show_secrets:",
        "    if False:",
        ("tests/unit/console/test_changes.py::test_a_secret_is_shown_once_and_not_over_plain_http",),
    ),
    Planted(
        "a list shows a change a minute later",
        "console/trovemq_console/pages/acts.py",
        "        console.cluster.expire()\n",
        "        pass\n",
        ("tests/unit/console/test_changes.py::test_a_list_shows_a_change_at_once",),
    ),
    Planted(
        "a search over too many topics is called complete",
        "console/trovemq_console/finding.py",
        "        if len(topics) > TOPICS_MAX:\n",
        "        if False:\n",
        ("tests/unit/console/test_pages.py::test_a_search_over_many_topics_says_that_it_was_cut",),
    ),
    Planted(
        "a restarted broker's rate is below zero",
        "console/trovemq_console/sampling.py",
        "if seconds > 0 and growth >= 0 else None",
        "if seconds > 0 else None",
        ("tests/unit/console/test_pages.py::test_a_counter_that_began_again_gives_no_rate",),
    ),
    Planted(
        "the last byte of a part of a body is left out",
        "console/trovemq_console/bodies.py",
        "    part = body[begin : begin + HEX_BYTES]",
        "    part = body[begin : begin + HEX_BYTES - 1]",
        ("tests/unit/console/test_parts.py::test_the_last_bytes_of_a_part_of_the_hex_view_were_in_none",),
    ),
)
