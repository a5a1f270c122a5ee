"""Compares this host's clock with the `Date` of every answer of AWS."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

LARGEST_DIFFERENCE_S: Final = 30.0
"""Readings are refused from a minute on; a clock that drifts is named before."""
REMEDY: Final = "set it by NTP, such as chrony with AWS's 169.254.169.123"


def ahead_s(date: str, sent_at: float, received_at: float) -> float | None:
    """Return by how many seconds at least the clock is ahead of AWS, below 0 when it is behind; None without a date.

    sent_at, received_at: epoch seconds by this clock. A date has whole seconds, and the answer may take its time: 0.0
    where the clock can be right.
    """
    try:
        at = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    return max(0.0, sent_at - (at + 1.0)) + min(0.0, received_at - at)


@dataclass(slots=True)
class ClockCheck:
    """What the answers said last: seconds ahead of AWS, and how many since the start differed too much."""

    ahead_s: float = 0.0
    differing: int = 0

    def compare(self, date: str, sent_at: float, received_at: float) -> None:
        """Take an answer, see `ahead_s`; one without a date says nothing."""
        found = ahead_s(date, sent_at, received_at)
        if found is not None:
            self.ahead_s = found
            self.differing += abs(found) > LARGEST_DIFFERENCE_S

    @property
    def difference(self) -> str:
        """How this host's clock differs from AWS's, in a sentence; "" where it agrees well enough."""
        if abs(self.ahead_s) <= LARGEST_DIFFERENCE_S:
            return ""
        side = "ahead of" if self.ahead_s > 0.0 else "behind"
        return f"this host's clock is {abs(self.ahead_s):.0f} s {side} AWS: {REMEDY}"
