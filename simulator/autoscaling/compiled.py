"""How this package's functions are compiled, and of which other files they hold the constants."""

from __future__ import annotations

from pathlib import Path

from simulator.compiling import ROOT, compiled, drop_stale

__all__ = ["compiled"]

_FROZEN = (
    *(
        "simulator/autoscaling/reference/accounting.py",
        "simulator/autoscaling/reference/actions.py",
        "simulator/autoscaling/reference/configuration.py",
    ),
    *("simulator/autoscaling/reference/compat.py", "simulator/autoscaling/reference/streams.py"),
    *("domain/observations/autoscaling.py", "domain/workload.py"),
)
"""Where the constants come from that are compiled in."""

drop_stale([Path(__file__).parent], [ROOT / name for name in _FROZEN])
