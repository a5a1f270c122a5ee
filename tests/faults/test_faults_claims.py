"""A source that claims what cannot be moves nothing: the fleet is held as if that source had not reported."""

from __future__ import annotations

import pytest

from domain.decisions import Reason
from domain.errors import RejectReason
from tests.faults.world import MakeWorld, World

LIES = [
    "trimtab.web.queue.waiting 1e15",
    "trimtab.web.queue.waiting -40",
    "trimtab.web.queue.waiting 1000001",
    "trimtab.web.queue.job_core_seconds 1e15",
    "trimtab.web.queue.submitted_total 1e14",
    "trimtab.web.queue.oldest_wait_seconds 1e12",
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_beside_the_truth_changes_no_decision(make_world: MakeWorld, lie: str) -> None:
    decided = []
    for noise in (b"", f"{lie} ".encode()):
        world = make_world(sizes=(2, 0, 0))
        world.noise = lambda at, noise=noise: noise and noise + f"{at + 0.5!r}\n".encode()
        world.submit(1)
        world.tick(3)
        decided.append([(d.desired, d.reason) for report in world.reports for d in report.decisions])
        assert world.intake.rejected_total == (18 if noise else 0)
        assert world.mutations == []
        world.close()
    assert decided[0] == decided[1]


def test_a_queue_of_a_million_billion_jobs_holds_the_fleet_instead_of_driving_it_to_its_maximum(world: World) -> None:
    world.tick(2)
    size, changes = world.desired(), len(world.mutations)
    world.queue_reports = False
    world.noise = lambda at: f"trimtab.web.queue.waiting 1e15 {at!r}\ntrimtab.web.queue.running 0 {at!r}\n".encode()
    world.tick(3)
    assert (world.desired(), len(world.mutations)) == (size, changes)
    assert (world.last.reason, world.snapshot.queue, world.snapshot.stale_bins) == (Reason.STALE_INPUT, None, 3)
    assert world.intake.rejected[RejectReason.IMPLAUSIBLE] == 18
