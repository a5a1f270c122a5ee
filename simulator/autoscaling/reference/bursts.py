"""How long jobs that begin to wait go without a new VM: the time to the first core after a burst (§11)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Bursts:
    """Bursts of an episode: one begins when jobs are left without a core where none was, and ends when none is left.

    began: instants at which one began. answered: those in which a VM became ready. wait_s: seconds from the beginning
    to the first such VM, over all answered ones.
    """

    began: int = 0
    answered: int = 0
    wait_s: float = 0.0
    _since: float = math.inf
    _open: bool = False

    def placed(self, left: int, now: float) -> None:
        """Note that a pass over the queue left so many jobs without a core."""
        if left == 0:
            self._open = False
        elif not self._open:
            self._open = True
            self._since = now
            self.began += 1

    def vm_ready(self, now: float) -> None:
        """Note that a VM became ready."""
        if self._open and self._since < math.inf:
            self.answered += 1
            self.wait_s += now - self._since
            self._since = math.inf

    @property
    def first_core_s(self) -> float:
        """Mean seconds from the beginning of an answered burst to its first new VM; 0 where none was."""
        return self.wait_s / self.answered if self.answered else 0.0
