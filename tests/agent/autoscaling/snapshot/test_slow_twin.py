"""The vectorised fold gives what a plain reading-by-reading account gives, whatever the readings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.observed import Instance, Lifecycle
from domain.snapshot import GroupSnapshot, Snapshot
from tests.agent.autoscaling.snapshot.scene import FLEET, T0, Scene

METRICS = ("cpu_percent", "ram_percent", "busy_cores")
END = T0 + 120.0
START = END - 60.0
NOW = END + 5.0


@dataclass(frozen=True)
class Reading:
    key: str
    vm: str
    metric: str
    value: float
    at: float


# A coarse grid around the minute's edges makes repeats and readings exactly at an edge common; its 31 times fit a ring.
times = st.integers(-5, 25).map(lambda k: START + 2.5 * k)
values = st.one_of(st.just(0.0), st.floats(0.0, 100.0), st.integers(0, 8).map(float))
readings = st.lists(
    st.builds(Reading, st.sampled_from("sl"), st.sampled_from("abcd"), st.sampled_from(METRICS), values, times),
    max_size=31 * 3,
)
instances = st.lists(
    st.builds(
        Instance,
        st.sampled_from("abcd"),
        st.just("z"),
        st.sampled_from(list(Lifecycle)),
        st.booleans(),
        st.booleans(),
        st.one_of(st.none(), st.integers(0, 20).map(lambda k: NOW - 50.0 * k)),
    ),
    max_size=4,
    unique_by=lambda instance: instance.vm,
)


def kept(sent: list[Reading], key: str, vm: str, metric: str) -> dict[float, float]:
    """The readings of one series by time, the last one winning."""
    return {r.at: r.value for r in sent if (r.key, r.vm, r.metric) == (key, vm, metric) and r.at <= NOW}


def in_minute(series: dict[float, float]) -> list[float]:
    return [value for at, value in series.items() if START < at <= END]


@dataclass
class Account:
    """What one group should show, counted one VM at a time."""

    warm: int = 0
    silent: int = 0
    expected: int = 0
    cpu: list[float] = field(default_factory=list)
    ram: list[float] = field(default_factory=list)
    booting: int = 0
    overdue: int = 0
    unheard: int = 0
    mature: int = 0


def account(sent: list[Reading], key: str, vms: list[Instance]) -> Account:
    found = Account()
    for vm in vms:
        if not vm.serving:
            continue
        series = {metric: kept(sent, key, vm.vm, metric) for metric in METRICS}
        first = min((at for metric in METRICS for at in series[metric]), default=math.inf)
        since = NOW if vm.launched_at is None else vm.launched_at
        if vm.lifecycle is not Lifecycle.IN_SERVICE or first > END:
            late = NOW - since > 300.0
            found.overdue += late
            found.booting += not late
            found.unheard += late and vm.lifecycle is Lifecycle.IN_SERVICE
            continue
        found.warm += 1
        found.mature += NOW - since >= 300.0
        cpu, ram = in_minute(series["cpu_percent"]), in_minute(series["ram_percent"])
        if len(cpu) >= 3:
            found.cpu.append(sum(cpu) / len(cpu) / 100.0)
            if len(ram) >= 3:
                found.ram.append(sum(ram) / len(ram) / 100.0)
        elif first <= START:
            found.silent += 1
        found.expected += len(cpu) >= 3 or first <= START
    return found


def percentile_90(shares: list[float]) -> float:
    ordered = sorted(shares)
    rank = 0.9 * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def check_group(shown: GroupSnapshot, account: Account) -> None:
    assert (shown.warm, shown.silent, shown.mature) == (account.warm, account.silent, account.mature)
    assert (shown.booting, shown.overdue) == (account.booting, account.overdue)
    for mean, shares in ((shown.cpu_mean, account.cpu), (shown.ram_mean, account.ram)):
        if shares:
            assert mean == pytest.approx(sum(shares) / len(shares), abs=1e-12)
        else:
            assert mean == (None if account.warm else 0.0)


def check_fleet(shown: Snapshot, accounts: list[Account]) -> None:
    expected = sum(a.expected for a in accounts)
    reporting = sum(len(a.cpu) for a in accounts)
    unheard = sum(a.unheard for a in accounts)
    assert shown.coverage == (reporting / (expected + unheard) if expected + unheard else 1.0)
    exists = unheard > 0 or any(a.warm for a in accounts)
    pairs = (
        ("cpu", shown.cpu_mean, shown.cpu_p90, [s for a in accounts for s in a.cpu]),
        ("ram", shown.ram_mean, shown.ram_p90, [s for a in accounts for s in a.ram]),
    )
    for name, mean, p90, shares in pairs:
        assert (name in shown.absent) == (exists and not shares)
        if shares:
            assert mean == pytest.approx(sum(shares) / len(shares), abs=2e-7)
            assert p90 == pytest.approx(percentile_90(shares), abs=2e-7)
        else:
            assert (mean, p90) == ((None, None) if exists else (0.0, 0.0))


@given(readings, instances, instances, st.integers(0, 60))
def test_the_fold_equals_a_plain_account_of_the_readings(
    sent: list[Reading], small: list[Instance], large: list[Instance], split: int
) -> None:
    scene = Scene(now=NOW)
    scene.place("s", *small)
    scene.place("l", *large)
    for part in (sent[:split], sent[split:]):
        scene.send(*(f"trimtab.web.{r.key}.{r.vm}.{r.metric} {r.value!r} {r.at!r}" for r in part))
    snapshot = scene.fold()
    accounts = [account(sent, "s", small), account(sent, "l", large)]
    assert scene.counters.rejected_total == 0
    for shown, counted in zip(snapshot.groups, accounts, strict=True):
        check_group(shown, counted)
    check_fleet(snapshot, accounts)
    assert [g.key for g in FLEET.groups] == [g.key for g in snapshot.groups]
