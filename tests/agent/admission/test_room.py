"""A cluster whose deployments a placement pool runs: one whose containers find no host is refused."""

from __future__ import annotations

from typing import Any

import pytest

from agent.admission.decision import AdmissionPart
from agent.admission.records import AdmissionDecision, AdmissionRequest, DeploymentEvent, EventKind
from agent.admission.view import admission_lines
from agent.kernel.decision import Capacity, Host
from agent.kernel.parts import parts_of
from agent.ledger import Ledger
from agent.placement.decision import PlacementPart
from agent.placement.records import PlaceRequest
from agent.settings import Settings, load_settings
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.decisions import Reason
from domain.errors import ConfigurationError
from domain.rules.admission.cluster import containers_without_room
from tests.agent.placement.hosts import START, app, inventory, kind


class Both:
    """A cluster of 1,000 cores that admits what fits, and a pool of two hosts of 16 cores, for `shop` of 4 cores."""

    def __init__(
        self, ledger: Ledger, *, asks: str | None = "shop", fleet: str | None = None, vm_cores: tuple[int, ...] = ()
    ) -> None:
        self.clock = VirtualClock(START)
        about = {"capacity_cores": 1000, "policy": "zeroth", "threshold_cores": 1000}
        pool = {} if asks is None else {"placement_pool": "hosts", "placement_application": asks}
        of_vm = {"vm_type": "m5a.xlarge", "memory_gb": 64, "price_per_hour": 0.1, "min": 1, "max": 9}
        groups = {f"vm{cores}": {**of_vm, "cores": cores} for cores in vm_cores}
        settings = Settings.model_validate(
            {
                "mode": "act",
                "clusters": {"main": about | pool},
                "placements": {"hosts": {} if fleet is None else {"fleet": fleet}},
                "fleets": {fleet: {"groups": groups}} if groups else {},
            }
        )
        parts = parts_of(Host(ledger, settings, self.clock))
        self.pool = next(part for part in parts if isinstance(part, PlacementPart)).pools["hosts"]
        self.pool.adopt(inventory(app("shop"), hosts=[kind(count=2)]), "first", epoch=1)
        self.cluster = next(part for part in parts if isinstance(part, AdmissionPart)).clusters["main"]

    def ask(self, *wanted: tuple[str, int]) -> list[AdmissionDecision]:
        return list(self.cluster.answer([AdmissionRequest(deployment_id=name, cores=cores) for name, cores in wanted]))

    def place(self, count: int) -> None:
        self.pool.request(PlaceRequest("hosts", "r1", "shop", count))


@pytest.mark.parametrize(
    ("room", "waiting", "cores", "missing"),
    [(8, [], 32, 0), (8, [], 33, 1), (8, [5, 1], 20, 0), (8, [5, 1], 21, 1), (2, [40], 8, 2), (0, [], 1, 1)],
)
def test_containers_find_no_room_beside_those_of_deployments_that_wait(
    room: int, waiting: list[int], cores: int, missing: int
) -> None:
    assert containers_without_room(room, 4, waiting, cores) == missing


def test_a_deployment_whose_containers_find_no_host_is_refused(ledger: Ledger) -> None:
    both = Both(ledger)
    both.place(3)
    (refused,) = both.ask(("large", 21))
    assert (refused.admit, refused.reason) == (False, Reason.REJECTED_PLACEMENT)
    assert "1 container of 4 cores" in refused.detail
    assert "5 containers of shop fit in the pool hosts" in refused.detail
    assert any("rejected_placement" in line for line in admission_lines(refused))
    assert both.ask(("small", 20))[0].admit


def test_a_decision_waits_for_no_survival_curve(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(ledger)
    monkeypatch.setattr("agent.placement.look.curves_of", None)
    assert both.ask(("small", 20))[0].admit


def test_deployments_of_a_batch_and_those_that_have_not_started_take_room(ledger: Ledger) -> None:
    both = Both(ledger)
    assert [one.admit for one in both.ask(("a", 16), ("b", 17), ("c", 16), ("d", 1))] == [True, False, True, False]
    started = DeploymentEvent(deployment_id="a", event_id="e1", kind=EventKind.STARTED, cores=16, time=both.clock.now())
    both.cluster.observe([started])
    # Its containers are in the pool from here on; this one has none, so that their room is free again.
    assert both.ask(("e", 16))[0].admit


@pytest.mark.parametrize("asks", [None, "mail"])
def test_without_a_pool_none_is_asked_and_one_that_does_not_know_the_application_has_no_room(
    ledger: Ledger, asks: str | None
) -> None:
    (found,) = Both(ledger, asks=asks).ask(("large", 900))
    assert found.reason is (Reason.ADMITTED if asks is None else Reason.REJECTED_PLACEMENT)
    assert asks is None or "does not know mail" in found.detail


def test_vms_that_the_fleet_may_start_are_room_by_their_cores(ledger: Ledger) -> None:
    both = Both(ledger, fleet="web")
    assert [one.reason for one in both.ask(("a", 33))] == [Reason.REJECTED_PLACEMENT]
    both.pool.fleet = lambda: Capacity(free=8.0, pending=7.0)
    assert [one.reason for one in both.ask(("b", 45))] == [Reason.REJECTED_PLACEMENT]
    assert [one.reason for one in both.ask(("c", 44))] == [Reason.ADMITTED]
    # At a rate of one half containers may request twice as many cores of them.
    both.pool.follow_rate(0.5, epoch=1)
    assert [one.reason for one in both.ask(("d", 17))] == [Reason.REJECTED_PLACEMENT]
    assert [one.reason for one in both.ask(("e", 16))] == [Reason.ADMITTED]


@pytest.mark.parametrize(
    ("vm_cores", "rate", "admitted"),
    [((2,), 1.0, False), ((2,), 0.5, True), ((2, 4), 1.0, True), ((2, 3), 0.8, False)],
)
def test_vms_of_which_none_takes_a_container_are_no_room(
    ledger: Ledger, vm_cores: tuple[int, ...], rate: float, admitted: bool
) -> None:
    """`shop` has 4 cores; at a rate a VM has its cores over the rate, in whole cores."""
    both = Both(ledger, fleet="web", vm_cores=vm_cores)
    both.pool.fleet = lambda: Capacity(free=800.0)
    both.pool.follow_rate(rate, epoch=1)
    assert both.ask(("a", 100))[0].admit is admitted


def test_a_vm_of_another_label_is_no_room(ledger: Ledger) -> None:
    both = Both(ledger, fleet="web", vm_cores=(2, 4))
    both.pool.fleet = lambda: Capacity(free=800.0)
    for label, admitted in (("vm2", False), ("vm4", True)):
        # `vm2` has too few cores for it.
        both.pool.adopt(inventory(app("shop", label=label), hosts=[kind(count=0, label=label)]), label, epoch=1)
        assert both.ask((label, 4))[0].admit is admitted


def test_a_refusal_names_why_the_pool_is_not_up_to_date(ledger: Ledger) -> None:
    both = Both(ledger)
    both.pool.problem = "the fleet web cannot be read"
    assert both.ask(("a", 99))[0].detail.endswith("the fleet web cannot be read")


def test_a_paused_pool_has_no_room(ledger: Ledger) -> None:
    both = Both(ledger)
    ledger.pause("placement", "hosts", Pause(PauseScope.ALL, "ada", "move", both.clock.now(), both.clock.now() + 60.0))
    (refused,) = both.ask(("a", 4))
    assert refused.reason is Reason.REJECTED_PLACEMENT
    assert "ada" in refused.detail
    both.clock.advance(61.0)
    assert both.ask(("b", 4))[0].admit


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"PLACEMENT_POOL": "hosts"}, "PLACEMENT_APPLICATION"),
        ({"PLACEMENT_APPLICATION": "shop"}, "PLACEMENT_POOL"),
        ({"PLACEMENT_POOL": "other", "PLACEMENT_APPLICATION": "shop"}, "PLACEMENT_POOL"),
    ],
)
def test_a_pool_without_an_application_or_description_is_refused(given: dict[str, str], field: str) -> None:
    environ: dict[str, Any] = {
        "TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "1000",
        "TRIMTAB_PLACEMENTS__hosts__POLICY": "bf",
        **{f"TRIMTAB_CLUSTERS__main__{name}": value for name, value in given.items()},
    }
    with pytest.raises(ConfigurationError) as refused:
        load_settings(environ)
    assert [mistake.name.rpartition("__")[2].upper() for mistake in refused.value.mistakes] == [field]
