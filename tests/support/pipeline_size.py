"""How much the tests of the pipeline do: little in `make test`, the whole in `make test-pipeline-long`."""

from __future__ import annotations

import os
from typing import Final

PIPELINE_LONG: Final = os.environ.get("PIPELINE_LONG", "") not in ("", "0")
"""PIPELINE_LONG=1 stands in the environment."""
