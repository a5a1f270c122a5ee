"""The senders of a VM's busy cores: two that report by turns, and the reading that counts where they disagree.

A sender is an address, or a connection where several share an address. One that reconnects never returns to an earlier
connection; one that reports again after another did is a second sender. Their readings need not have the same times:
the last reading of each lasts until its next one is due, and the highest of them counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collectors.base import address_of

MOST_SENDERS: Final = 4
LASTS_PERIODS: Final = 1.5
LONGEST_S: Final = 60.0
"""A reading lasts for 1.5 periods of its sender, and no longer than this."""
DISAGREEMENTS: Final = 12
"""Readings in a row at which the same sender is idle and the other busy. Two that agree differ once, at a change."""


@dataclass(slots=True)
class _Report:
    at: float
    value: float
    period_s: float = 0.0
    returned: bool = False
    """Whether it reported again after another sender did."""
    idle_beside_busy: int = 0


class Senders:
    """The last reading of each sender of one series, those of the last minute, by order of arrival."""

    __slots__ = ("_last",)

    def __init__(self, sender: str, value: float, at: float) -> None:
        """Begin with the sender known so far and its newest reading."""
        self._last = {sender: _Report(at, value)}

    @property
    def single(self) -> bool:
        """Whether only one sender reported in the last minute."""
        return len(self._last) == 1

    @property
    def disagreement(self) -> tuple[tuple[float, str], tuple[float, str]] | None:
        """The two last readings (value, sender) of two that have disagreed for long whether the VM works."""
        *_, (other, said), (sender, last) = self._last.items()
        if max(said.idle_beside_busy, last.idle_beside_busy) < DISAGREEMENTS:
            return None
        return (said.value, other), (last.value, sender)

    def busiest(self, sender: str, value: float, at: float) -> float:
        """Take a reading; return the highest of it and of the last ones of senders that report by turns with it."""
        before = next(reversed(self._last))
        mine = self._last.pop(self._known_as(sender, before), None)
        self._last = {name: one for name, one in self._last.items() if abs(at - one.at) <= LONGEST_S}
        if mine is None:
            mine = _Report(at, value)
        else:
            mine.returned = mine.returned or sender != before
        mine.period_s = at - mine.at if at > mine.at else mine.period_s
        mine.at, mine.value = at, value
        beside = [
            one
            for one in self._last.values()
            if one.returned and abs(at - one.at) <= min(LASTS_PERIODS * one.period_s, LONGEST_S)
        ]
        if mine.returned and beside:
            for one, other in ((mine, beside[-1]), (beside[-1], mine)):
                one.idle_beside_busy = one.idle_beside_busy + 1 if one.value == 0.0 < other.value else 0
        self._last[sender] = mine
        if len(self._last) > MOST_SENDERS:
            del self._last[next(iter(self._last))]
        return max(value, *(one.value for one in beside)) if beside else value

    def _known_as(self, sender: str, before: str) -> str:
        """Return the earlier connection of a sender that came back from its address, after one of another address."""
        address = address_of(sender)
        if sender in self._last or address == address_of(before):
            return sender
        return next((name for name in reversed(self._last) if address_of(name) == address), sender)
