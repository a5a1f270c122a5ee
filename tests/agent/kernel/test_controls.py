"""Operators hold and resume any subject, with an owner and a reason that fit a journal and a page."""

from __future__ import annotations

import pytest

from agent.kernel.controls import LONGEST_S, LONGEST_WORDS, Resumption, checked_length, pause, resume
from agent.kernel.decision import held_lines
from agent.ledger import Ledger
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.errors import BadInput
from tests.agent.rails.scenes import NOON

ALL, IN, OUT = PauseScope.ALL, PauseScope.IN, PauseScope.OUT


def hold(
    ledger: Ledger,
    scope: PauseScope = ALL,
    *,
    owner: str = "ana",
    reason: str = "deploying",
    now: float = NOON,
    lasting_s: float | None = None,
) -> Pause:
    return pause(ledger, "queue", "desk", scope, owner=owner, reason=reason, now=now, lasting_s=lasting_s)


def test_a_pause_holds_until_resumed_or_for_a_time(ledger: Ledger) -> None:
    endless = hold(ledger)
    assert endless == Pause(ALL, "ana", "deploying", NOON, None)
    ends = hold(ledger, OUT, lasting_s=60.0)
    assert ends == Pause(OUT, "ana", "deploying", NOON, NOON + 60.0)
    assert set(ledger.controls("queue", "desk").pauses) == {endless, ends}
    assert ledger.controls("queue", "counter").pauses == ()


def test_resuming_says_whether_there_was_a_pause_and_what_still_holds(ledger: Ledger) -> None:
    assert resume(ledger, "queue", "desk", IN, owner="ben", now=NOON) == Resumption(False, ())
    hold(ledger, IN)
    out = hold(ledger, OUT, lasting_s=60.0)
    assert resume(ledger, "queue", "desk", IN, owner="ben", now=NOON + 59.0) == Resumption(True, (out,))
    # A pause whose time is over holds nothing, and is there to be lifted.
    assert resume(ledger, "queue", "desk", IN, owner="ben", now=NOON + 60.0) == Resumption(False, ())
    assert resume(ledger, "queue", "desk", ALL, owner="ben", now=NOON + 60.0) == Resumption(True, ())


def test_resuming_all_lifts_every_pause(ledger: Ledger) -> None:
    for scope in PauseScope:
        hold(ledger, scope)
    assert resume(ledger, "queue", "desk", ALL, owner="ben", now=NOON) == Resumption(True, ())
    assert ledger.controls("queue", "desk") == Controls()


@pytest.mark.parametrize("seconds", [0.0, -1.0, LONGEST_S + 1.0, float("nan"), float("inf")])
def test_a_length_that_is_none_or_beyond_a_year_and_a_day_is_refused(ledger: Ledger, seconds: float) -> None:
    with pytest.raises(BadInput, match=r"duration is .* 31622400 \(366 days\)"):
        hold(ledger, lasting_s=seconds)
    assert ledger.controls("queue", "desk") == Controls()


@pytest.mark.parametrize("seconds", [1e-3, 60.0, LONGEST_S])
def test_a_length_within_it_holds(seconds: float) -> None:
    assert checked_length(seconds) == seconds


def test_owner_and_reason_are_one_printable_line_of_bounded_length(ledger: Ledger) -> None:
    for bad in ("", "   ", "two\nlines", "\x1b[31mred", "x" * (LONGEST_WORDS + 1)):
        with pytest.raises(BadInput, match=r"reason is .*: give 1 to 500 "):
            hold(ledger, reason=bad)
    for bad in ("", "\t", "x" * (LONGEST_WORDS // 5 + 1)):
        with pytest.raises(BadInput, match=r"owner is .*: give 1 to 100 "):
            hold(ledger, owner=bad)
        with pytest.raises(BadInput, match="owner"):
            resume(ledger, "queue", "desk", ALL, owner=bad, now=NOON)
    assert ledger.controls("queue", "desk") == Controls()
    hold(ledger, owner="ü" * (LONGEST_WORDS // 5), reason="ü" * LONGEST_WORDS)


def test_what_is_held_is_said_in_lines() -> None:
    pauses = (Pause(OUT, "ben", "deploying", NOON), Pause(IN, "ana", "over", NOON, NOON + 60.0))
    controls = Controls(pauses, Pin({"m": 3, "l": 0}, "cy", "load test", NOON, NOON + 120.0))
    paused, pinned = held_lines(controls, NOON + 90.0)
    assert (paused.split()[0], "by ben since 12:00:00" in paused) == ("scale-out", True)
    assert pinned.startswith("pinned at m 3, l 0 by cy since 12:00:00 UTC until 12:02:00 UTC")
    assert len(held_lines(controls, NOON)) == 3
    assert len(held_lines(controls, NOON + 120.0)) == 1
    assert held_lines(Controls(), NOON) == []
