"""What operators may switch for any subject: pause and resume, the same from the command line and over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from agent.ledger import Ledger
from domain.controls import Pause, PauseScope
from domain.errors import BadInput
from domain.units import DAY_S

LONGEST_S = 366 * DAY_S
LONGEST_WORDS = 500
"""Characters of a reason; an owner's name may have a fifth of that."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Whether there was a pause to lift, and the pauses that still hold."""

    lifted: bool
    left: tuple[Pause, ...]


def pause(
    ledger: Ledger,
    decision: str,
    subject: str,
    scope: PauseScope,
    *,
    owner: str,
    reason: str,
    now: float,
    lasting_s: float | None,
) -> Pause:
    """Hold one decision's subject in one direction or both, for a time or (None) until resumed; return the pause."""
    until = None if lasting_s is None else now + checked_length(lasting_s)
    made = Pause(scope, checked_owner(owner), checked_reason(reason), now, until)
    ledger.pause(decision, subject, made)
    return made


def resume(ledger: Ledger, decision: str, subject: str, scope: PauseScope, *, owner: str, now: float) -> Resumption:
    """Lift the pause of this scope, ALL lifts every one; say whether there was one and what still holds."""
    lifted = ledger.resume(decision, subject, scope, at=now, owner=checked_owner(owner))
    return Resumption(lifted, tuple(pause for pause in ledger.controls(decision, subject).pauses if pause.active(now)))


def checked_length(seconds: float) -> float:
    """Return for how many seconds an order holds; BadInput when it is not above 0 or too long."""
    if not 0.0 < seconds <= LONGEST_S:
        raise BadInput("duration", seconds, f"give seconds above 0 and up to {LONGEST_S:.0f} (366 days)")
    return seconds


def checked_owner(owner: str) -> str:
    """Return who asks, as it may stand in a journal; BadInput says what is wrong with it."""
    return _printable("owner", owner, LONGEST_WORDS // 5)


def checked_reason(reason: str) -> str:
    """Return why, as it may stand in a journal; BadInput says what is wrong with it."""
    return _printable("reason", reason, LONGEST_WORDS)


def _printable(field: str, text: str, longest: int) -> str:
    """Return the text as it may stand in a log line, a terminal and a page."""
    if not text.strip() or len(text) > longest or not text.isprintable():
        raise BadInput(field, text, f"give 1 to {longest} printable characters")
    return text
