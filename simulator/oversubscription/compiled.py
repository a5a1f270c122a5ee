"""How this package's functions are compiled, and of which other files they hold functions and constants."""

from __future__ import annotations

from pathlib import Path

from simulator.compiling import ROOT, compiled, drop_stale, inlined

__all__ = ["compiled", "inlined"]

_FROZEN = ("simulator/admission/streams.py", "domain/observations/oversubscription.py")
"""Where functions and constants come from that are compiled in, beside the rules."""

_RULES = ROOT / "domain/rules/oversubscription"

drop_stale([Path(__file__).parent], [*_RULES.glob("*.py"), *(ROOT / name for name in _FROZEN)])
