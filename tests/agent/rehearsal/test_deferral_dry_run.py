"""The dry run's section on deferral: the real agent between two queues fills a valley, and another takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.rehearsal.deferrals import CORES, DeferralResult, play_deferral


def played(directory: Path, mode: str, hours: int) -> DeferralResult:
    directory.mkdir()
    return play_deferral(
        directory, 1993, mode, {"TRIMTAB_DEFERRALS__valley__POLICY": "knapsack"}, lambda event: None, hours=hours
    )


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_jobs_fill_the_night_and_each_start_comes_once(tmp_path: Path) -> None:
    found = played(tmp_path / "act", "act", 50)
    assert (found.left, found.sent, found.sent_twice, found.advised) == (0, found.started, 0, 0)
    night, day = found.by_hour[3], found.by_hour[15]
    assert night[1] > 1.5 * day[1]
    assert all(demand + jobs <= CORES + 30 for demand, jobs in found.by_hour.values())
    assert found.utilisation > 0.5
    assert len(found.notes()) == 8


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_an_observing_agent_leaves_the_queues_alone(tmp_path: Path) -> None:
    found = played(tmp_path / "observe", "observe", 3)
    assert (found.left, found.sent, found.started) == (found.jobs, 0, 0)
