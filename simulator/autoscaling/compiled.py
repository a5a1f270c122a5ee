"""How this package's functions are compiled, and of which other files they hold the constants."""

from __future__ import annotations

from pathlib import Path

from simulator.compiling import ROOT, compiled, drop_stale

__all__ = ["compiled"]

_FROZEN = (
    *("simulator/reference/accounting.py", "simulator/reference/actions.py", "simulator/reference/configuration.py"),
    *("simulator/reference/compat.py", "simulator/reference/streams.py"),
    *("domain/observations/autoscale.py", "domain/workload.py"),
)
"""Where the constants come from that are compiled in."""

drop_stale([Path(__file__).parent], [ROOT / name for name in _FROZEN])
