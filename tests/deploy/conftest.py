"""The loop's worlds, for what deployment files say about the calls that are really made."""

from __future__ import annotations

from tests.faults.conftest import make_world as make_world
