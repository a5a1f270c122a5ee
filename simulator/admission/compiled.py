"""How this package's functions and the rules are compiled."""

from __future__ import annotations

from pathlib import Path

from simulator.compiling import ROOT, compiled, drop_stale

__all__ = ["compiled"]

drop_stale([Path(__file__).parent, ROOT / "domain/rules/admission"])
