"""The page's figures as it is served: each number stands beside what it is a share, a count or the age of."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx

from tests.agent.api.running import Running
from tests.agent.web.serving import Served
from tests.faults.test_weighted_groups import weigh
from tests.faults.world import QUICK, SMALL, MakeWorld


def words(html: str) -> str:
    """Return what a reader sees, without markup."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_coverage_and_overdue_vms_are_shown_with_what_they_mean(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), policy="hold", limits=replace(QUICK, boot_deadline_s=120.0))
    agent = Running(world)
    world.silent = {world.in_service("small")[0]}
    agent.tick(5)
    with Served(agent.parts) as served:
        page = httpx.get(served.url).text
    seen = words(page)
    assert re.search(r"Coverage 50% 1 of 2 VMs .* \d+ s old", seen), seen
    assert "small m5a.large 2 2 1 0 1 0" in seen
    assert 'title="launched or requested longer' in page, "what overdue means"
    assert '<rect class="overdue" x="50.0%"' in page


def test_the_age_beside_coverage_is_that_of_vm_reports_and_not_the_queue_s(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    agent = Running(world)
    agent.tick(2)
    world.cpu = None
    agent.tick(2)
    with Served(agent.parts) as served:
        seen = words(httpx.get(served.url).text)
    assert re.search(r"Coverage 0% 0 of 1 VM .* 2 min old", seen), seen


def test_a_size_that_aws_counts_in_other_units_is_shown_with_both(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), policy="hold")
    agent = Running(world)
    weigh(world, 3, DesiredCapacity=6, MaxSize=30)
    agent.tick(2)
    with Served(agent.parts) as served:
        page = httpx.get(served.url).text
    assert "2 = 6 units 2 2 0 0 0" in words(page)
    assert "VM counts as 3" in page
