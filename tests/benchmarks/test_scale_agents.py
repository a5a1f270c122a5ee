"""The figures of several agents on one ledger, on records made by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.scale_agents import double_acts


def call(minute: int, epoch: int, newest: int | None = None, fleet: str = "web") -> dict[str, Any]:
    return {"minute": minute, "fleet": fleet, "epoch": epoch, "newest": newest or epoch}


def test_calls_of_one_leader_in_a_minute_are_no_double_act() -> None:
    assert double_acts([call(1, 1), call(1, 1), call(1, 2, fleet="batch"), call(2, 3)]) == 0


def test_a_second_epoch_in_a_minute_of_a_fleet_is_one() -> None:
    assert double_acts([call(1, 1), call(1, 2)]) == 1


def test_each_call_under_a_deposed_epoch_is_one() -> None:
    assert double_acts([call(1, 1, newest=2), call(1, 1, newest=2)]) == 2
