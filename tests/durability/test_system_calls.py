"""Every call of the seam fails once, under a whole engine with all that works on it (R7).

Whatever fails, the answer is a documented error, no file stays open, acknowledged messages are there at the
next start and refused ones are not; after a failed sync nothing is acknowledged.
"""

from __future__ import annotations

import errno

import pytest

from tests.durability.failing_calls import changes, fail_each, reads
from tests.support.trials import Trials

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_timer_wheel")]

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_each_call_of_the_seam_may_fail(trials: Trials, part: int) -> None:
    fail_each(trials, (errno.EIO, errno.ENOSPC), changes, part, PARTS)


def test_each_read_may_fail(trials: Trials) -> None:
    fail_each(trials, (errno.EIO,), reads, 0, 1)
