"""The loop's worlds, for preflight to look at."""

from __future__ import annotations

from tests.faults.conftest import make_world as make_world
from tests.faults.conftest import world as world
