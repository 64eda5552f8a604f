"""All faults by name, in the order in which their modules have them; see damaged_store.py."""

import tests.support.file_faults
import tests.support.log_faults
import tests.support.projection_faults  # noqa: F401  # importing the three fills the tables
from tests.support.damaged_store import FAULTS, OWN_FAULTS, DamagedStore

__all__ = ["FAULTS", "OWN_FAULTS", "DamagedStore"]
