"""How the fit's functions are compiled, and of which other files they hold functions."""

from __future__ import annotations

from pathlib import Path

from domain.rules.admission import belief
from simulator.admission import streams
from simulator.compiling import compiled, drop_stale

__all__ = ["compiled"]

drop_stale([Path(__file__).parent], [Path(belief.__file__), Path(streams.__file__)])
