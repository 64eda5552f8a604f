"""Whether a Python was built with optimisation, by the variables of its build."""

from __future__ import annotations

import pytest

from trovemq_proto.interpreter import interpreter_text, is_unoptimised


@pytest.mark.parametrize(
    ("variables", "prefix", "unoptimised"),
    [
        ({"CONFIG_ARGS": "'--prefix=/opt/python' '--enable-shared'"}, "/opt/python", True),
        ({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"}, "/usr/local", False),
        (
            {"CONFIG_ARGS": "'--enable-shared' '--prefix=/usr'"},
            "/usr",
            False,
        ),  # Debian's, made by profile-opt
        ({"CONFIG_ARGS": "'--enable-optimizations'", "Py_DEBUG": 1}, "/usr/local", True),
        ({"CONFIG_ARGS": None}, "C:\\Python", False),
        ({}, "/opt/python", False),
    ],
)
def test_the_arguments_of_its_build_say_so(
    variables: dict[str, object], prefix: str, unoptimised: bool
) -> None:
    assert is_unoptimised(variables, prefix) == unoptimised


def test_the_text_names_implementation_and_version() -> None:
    assert interpreter_text().startswith("CPython 3.")
