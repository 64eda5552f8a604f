"""Every call of the seam once finds no descriptor or no memory, or is interrupted (R7; see
test_system_calls.py and test_scarce_reads.py)."""

from __future__ import annotations

import errno

import pytest

from tests.durability.failing_calls import changes, fail_each
from tests.support.trials import SOAK, Trials

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_timer_wheel")]

PARTS = 4
NUMBERS = (errno.EMFILE, errno.EINTR, *((errno.ENFILE, errno.ENOMEM) if SOAK else ()))


@pytest.mark.parametrize("part", range(PARTS))
def test_each_call_of_the_seam_may_find_no_descriptor(trials: Trials, part: int) -> None:
    fail_each(trials, NUMBERS, changes, part, PARTS)
