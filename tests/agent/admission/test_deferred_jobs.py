"""A cluster whose cores a deferral pool uses admits newcomers to what its jobs leave, and says how much that is."""

from __future__ import annotations

from typing import Any

import pytest

from agent.admission.decision import AdmissionPart
from agent.admission.records import AdmissionRequest
from agent.admission.view import admission_lines
from agent.deferral.decision import DeferralPart
from agent.kernel.decision import Host, Turn
from agent.kernel.leads import Leads
from agent.kernel.parts import parts_of
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger
from agent.settings import Settings, load_settings
from domain.clock import BothTimes, VirtualClock
from domain.decisions import Reason
from domain.errors import ConfigurationError
from domain.units import HOUR_S
from tests.agent.deferral.pools import START, order


class Both:
    """A cluster of 100 cores and a deferral pool on it, in one agent."""

    def __init__(self, ledger: Ledger, *, pool_mode: str = "enforce", **cluster: Any) -> None:
        self.clock = VirtualClock(START)
        about = {"capacity_cores": 100, "policy": "zeroth", "threshold_cores": 100, **cluster}
        pools = {"night": {"policy": "knapsack", "mode": pool_mode}, "day": {"policy": "knapsack"}}
        settings = Settings.model_validate({"mode": "act", "clusters": {"main": about}, "deferrals": pools})
        parts = parts_of(Host(ledger, settings, self.clock))
        self.deferral = next(part for part in parts if isinstance(part, DeferralPart))
        self.admission = next(part for part in parts if isinstance(part, AdmissionPart))
        self.cluster = self.admission.clusters["main"]
        self.pool = self.deferral.pools["night"]

    def start(self, cores: int) -> None:
        """Let a deferred job run for an hour."""
        self.pool.submit(order(f"j{cores}", cores=cores, duration=1))
        self.pool.report(100)
        now = self.clock.now()
        self.deferral.turn(Turn(now, BothTimes(now, self.clock.monotonic()), Leads(every=1), TurnReport(now)))

    def ask(self, name: str, cores: int) -> Any:
        return self.cluster.answer([AdmissionRequest(deployment_id=name, cores=cores)])[0]


def test_cores_of_deferred_jobs_are_no_room_until_they_end(ledger: Ledger) -> None:
    both = Both(ledger, deferral_pools="night,day")
    both.start(40)
    refused, admitted = both.ask("large", 70), both.ask("small", 50)
    assert (refused.admit, refused.reason, refused.capacity_cores) == (False, Reason.REJECTED_FEASIBILITY, 60)
    assert (refused.deferred_cores, refused.threshold_cores) == (40, 60.0)
    assert "  40 more are held by deferred jobs" in admission_lines(refused)
    assert admitted.admit
    assert both.cluster.rules.capacity_cores == both.cluster.gauges(START).capacity_cores == 100
    free = both.admission.capacity("main")
    assert free is not None
    assert free.free == 10.0
    both.clock.advance(HOUR_S)
    later = both.ask("medium", 45)
    assert (later.admit, later.deferred_cores, later.capacity_cores) == (True, 0, 100)


def test_a_rule_that_looks_ahead_counts_them_too(ledger: Ledger) -> None:
    both = Both(ledger, deferral_pools="night", policy="second", threshold_cores=None, kappa=0.0)
    both.start(60)
    assert not both.ask("a", 38).admit
    both.pool.cancel("j60")
    both.clock.advance(HOUR_S)
    assert both.ask("b", 38).admit


def test_more_deferred_cores_than_the_cluster_has_admit_nobody(ledger: Ledger) -> None:
    both = Both(ledger, deferral_pools="night", capacity_cores=30, threshold_cores=30)
    both.start(40)
    assert [both.ask(name, cores).admit for name, cores in (("a", 1), ("b", 2), ("c", 30))] == [False] * 3


@pytest.mark.parametrize(("pools", "mode"), [("", "enforce"), ("day", "enforce"), ("night", "observe")])
def test_pools_on_other_machines_and_advice_take_no_room(ledger: Ledger, pools: str, mode: str) -> None:
    both = Both(ledger, deferral_pools=pools, pool_mode=mode)
    both.start(40)
    found = both.ask("large", 70)
    assert (found.admit, found.deferred_cores) == (True, 0)


def test_a_pool_that_is_not_described_is_refused() -> None:
    named = {"TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "10", "TRIMTAB_CLUSTERS__main__DEFERRAL_POOLS": "night"}
    with pytest.raises(ConfigurationError, match="no deferral pool is called night"):
        load_settings(named)
