"""The containers of a pool as readings of its fleet: VMs that hold some are at work, and refused ones ask for cores."""

from dataclasses import replace

import pytest

from agent.autoscaling.policies.rules import SignalTrackingPolicy
from agent.autoscaling.snapshot.aggregate import AggregationSettings
from agent.autoscaling.snapshot.series import SeriesStore
from agent.kernel.decision import Host
from agent.ledger import Ledger
from agent.placement.decision import PlacementPart
from agent.placement.demand import REFUSED_S, SIGNAL, FleetDemand, unplaced
from agent.placement.records import HostRecord, HostState, Origin
from agent.placement.reserve import PlacementPool
from agent.settings import load_settings
from domain.clock import VirtualClock
from domain.decisions import Mode
from domain.samples import SignalSeries, VmMetric, VmSeries
from domain.snapshot import GroupSnapshot, Signal
from tests.agent.autoscaling.snapshot.scene import FLEET as FLEET_OF_TWO
from tests.agent.autoscaling.snapshot.scene import T0, Scene, group, running
from tests.agent.placement.hosts import app, ask, host, inventory, kind, made

VM = HostRecord("i-1", (8, 31, 100), Origin.FLEET, HostState.UP, "us-east-1a", "m", (8, 31, 100), "m5a.2xlarge")


def pool_on_vms(ledger: Ledger, clock: VirtualClock, mode: Mode = Mode.ACT, count: int = 2) -> PlacementPool:
    """A pool of VMs of 8 cores in the group `m`, for containers of 4 cores and of 2."""
    pool = made(ledger, clock, inventory(app("shop"), app("mail", 2), hosts=[kind(count=0)]), mode=mode)
    pool.follow({f"i-{k}": replace(VM, name=f"i-{k}") for k in range(1, count + 1)}, (), epoch=1)
    return pool


def readings(pool: PlacementPool, clock: VirtualClock, *, signal: bool = True) -> dict[str, float]:
    """What is measured now, by path."""
    found = list(FleetDemand(pool, "web", signal=signal).collect(clock.now()))
    assert {one.at for one in found} == {clock.now()}
    return {one.series.path: one.value for one in found}


def busy(vm: str) -> str:
    return VmSeries("web", "m", vm, VmMetric.BUSY_CORES).path


PLACED = SignalSeries("web", SIGNAL).path


def test_a_vm_is_as_busy_as_its_containers_are_large(ledger: Ledger, clock: VirtualClock) -> None:
    pool = pool_on_vms(ledger, clock)
    assert readings(pool, clock) == {busy("i-1"): 0.0, busy("i-2"): 0.0, PLACED: 0.0}
    pool.request(ask("r1", count=3))
    assert readings(pool, clock) == {busy("i-1"): 8.0, busy("i-2"): 4.0, PLACED: 12.0}
    pool.confirm("r1")
    pool.release("r1", [2])
    assert readings(pool, clock) == {busy("i-1"): 8.0, busy("i-2"): 0.0, PLACED: 8.0}


def test_a_vm_that_drains_is_at_work_until_its_containers_are_released(ledger: Ledger, clock: VirtualClock) -> None:
    pool = pool_on_vms(ledger, clock)
    pool.request(ask("r1"))
    pool.follow({"i-1": replace(VM, state=HostState.DRAINING)}, (), epoch=1)
    assert readings(pool, clock)[busy("i-1")] == 4.0
    pool.fail("i-1")
    assert readings(pool, clock) == {busy("i-2"): 4.0, PLACED: 4.0}


def test_containers_that_found_no_host_ask_for_their_cores_until_they_are_placed(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_on_vms(ledger, clock, count=1)
    pool.request(ask("r1", count=2))
    for k, count in enumerate((3, 5, 3)):
        pool.request(ask(f"again-{k}", count=count))
    pool.request(ask("post", "mail"))
    # Five of shop at most, asked for again and again, and one of mail.
    assert readings(pool, clock)[PLACED] == 8.0 + 5 * 4.0 + 2.0
    pool.follow({"i-2": replace(VM, name="i-2")}, (), epoch=1)
    pool.request(ask("placed", count=1))
    assert readings(pool, clock)[PLACED] == 12.0 + 2.0
    clock.advance(REFUSED_S + 1.0)
    assert readings(pool, clock)[PLACED] == 12.0


def test_a_fleet_without_the_signal_gets_none(ledger: Ledger, clock: VirtualClock) -> None:
    assert set(readings(pool_on_vms(ledger, clock), clock, signal=False)) == {busy("i-1"), busy("i-2")}


def test_hosts_that_are_none_of_the_fleets_are_left_out(ledger: Ledger, clock: VirtualClock) -> None:
    pool = pool_on_vms(ledger, clock, count=0)
    pool.join(host("mine"))
    pool.request(ask("r1"))
    assert readings(pool, clock) == {PLACED: 0.0}


def test_advice_asks_for_nothing(ledger: Ledger, clock: VirtualClock) -> None:
    pool = pool_on_vms(ledger, clock, Mode.OBSERVE, count=1)
    advised = [pool.request(ask("r1", count=9))]
    assert advised[0].unplaced == 9
    assert unplaced(advised) == {}


FLEET = {
    "TRIMTAB_FLEETS__web__GROUPS__m__VM_TYPE": "m5a.2xlarge",
    "TRIMTAB_FLEETS__web__GROUPS__m__CORES": "8",
    "TRIMTAB_FLEETS__web__GROUPS__m__MEMORY_GB": "32",
    "TRIMTAB_FLEETS__web__GROUPS__m__PRICE_PER_HOUR": "0.344",
    "TRIMTAB_FLEETS__web__GROUPS__m__MIN": "0",
    "TRIMTAB_FLEETS__web__GROUPS__m__MAX": "5",
}


@pytest.mark.parametrize(
    ("more", "signals"),
    [
        ({}, [False]),
        ({f"TRIMTAB_FLEETS__web__SIGNALS__{SIGNAL}__TARGET": "0.85"}, [True]),
        ({"TRIMTAB_MODE": "observe"}, []),
        ({"TRIMTAB_PLACEMENTS__main__FLEET": ""}, []),
    ],
)
def test_each_pool_on_a_fleet_is_a_collector_of_an_agent_that_acts(
    ledger: Ledger, clock: VirtualClock, more: dict[str, str], signals: list[bool]
) -> None:
    environ = {"TRIMTAB_MODE": "act", **FLEET, "TRIMTAB_PLACEMENTS__main__FLEET": "web", **more}
    part = PlacementPart(Host(ledger, load_settings({k: v for k, v in environ.items() if v}), clock))
    collectors = part.collectors()
    assert [one.name for one in collectors] == ["placement:main"][: len(signals)]
    assert [one._signal for one in collectors if isinstance(one, FleetDemand)] == signals


def test_the_fleet_keeps_vms_with_containers_and_grows_for_those_that_found_no_host(ledger: Ledger) -> None:
    clock = VirtualClock(T0)
    pool = pool_on_vms(ledger, clock, count=0)
    pool.follow({f"i-{k}": replace(VM, name=f"i-{k}", label="l") for k in (1, 2)}, (), epoch=1)
    signals = (Signal(SIGNAL, 0.85),)
    scene = Scene(
        settings=AggregationSettings(signals=signals, idle_s=60.0),
        store=SeriesStore(watched=[FLEET_OF_TWO], signals={"web": (SIGNAL,)}),
    )
    scene.place("l", running("i-1"), running("i-2"), desired=2)

    def minute() -> tuple[GroupSnapshot, float]:
        """Let a minute pass; return the large VMs, and what the policy proposes of them."""
        for _ in range(4):
            clock.advance(15.0)
            assert not scene.store.append_samples(
                list(FleetDemand(pool, "web", signal=True).collect(clock.now())), clock.now()
            )
        for vm in ("i-1", "i-2"):
            scene.report("l", vm, (scene.now + 10.0 * k for k in range(1, 7)), cpu_percent=40.0, ram_percent=30.0)
        snapshot = scene.minute()
        proposal, _ = SignalTrackingPolicy().decide(FLEET_OF_TWO, snapshot, {})
        return group(snapshot, "l"), sum(n * c for n, c in zip(proposal.desired, FLEET_OF_TWO.cores, strict=True))

    pool.request(ask("r1"))
    minute()
    large, cores = minute()
    # One VM has nothing on it; the other one is no candidate for scale-in, however little its processor does.
    assert (large.removable, large.idle_long, large.busy_cores) == (("i-2",), 1, 4.0)
    assert cores == 16
    pool.request(ask("r2", count=6))
    large, cores = minute()
    # 4 cores are held, and 24 found no host: 33 cores at 85 %.
    assert large.busy_cores == 4.0
    assert cores >= 28.0 / 0.85
