"""Garbage collection between turns, so that its long pass over everything alive never falls into one.

With 10,000 VMs there are a quarter of a million objects to look at, which takes longer than the rest of a turn.
"""

from __future__ import annotations

import ctypes
import gc


def set_aside_what_stays() -> None:
    """Exempt everything alive now, modules above all, from collection; to be called once, when all parts are up."""
    gc.collect()
    gc.freeze()
    _give_back()


def collect_between_turns() -> None:
    """Collect everything now, while nobody waits; the next turn then allocates too little to begin a full pass."""
    gc.collect()
    _give_back()


def _give_back() -> None:
    """Return freed memory to the system, where the C library can: glibc keeps it per thread otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
