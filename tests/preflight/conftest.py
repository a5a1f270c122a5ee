"""The loop's worlds, for preflight to look at."""

from __future__ import annotations

from tests.loop.conftest import make_world as make_world
from tests.loop.conftest import world as world
