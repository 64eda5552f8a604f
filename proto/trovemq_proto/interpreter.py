"""The interpreter that runs this process, and whether it was built for speed.

CPython's own `configure` builds without profile-guided optimisation unless an argument asks for it; so does
pyenv.
A broker on such a build takes 1.2 to 1.6 times the processor time for a message.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Mapping
from typing import Final

UNOPTIMISED: Final = "built without optimisation"
REMEDY: Final = (
    "use the Python of the distribution, of a container image or of `uv python install`; with pyenv:"
    " PYTHON_CONFIGURE_OPTS='--enable-optimizations --with-lto' pyenv install --force VERSION"
)
_OPTIMISED: Final = ("--enable-optimizations", "profile-opt")
_OF_DISTRIBUTIONS: Final = ("/usr",)
"""Prefixes of Pythons that are optimised by other means than the arguments of `configure`, as Debian's is."""


def interpreter_text() -> str:
    """For example `CPython 3.12.4`, or `CPython 3.12.4, built without optimisation`."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{name}, {UNOPTIMISED}" if is_unoptimised(sysconfig.get_config_vars(), sys.base_prefix) else name


def is_unoptimised(variables: Mapping[str, object], prefix: str) -> bool:
    """Whether these variables of its build say so; False also if they do not say."""
    if variables.get("Py_DEBUG"):
        return True
    arguments = variables.get("CONFIG_ARGS")
    if not isinstance(arguments, str) or prefix in _OF_DISTRIBUTIONS:
        return False
    return not any(word in arguments for word in _OPTIMISED)
