"""A fleet's own signals: which readings are taken, what a minute holds of them, and when one is absent."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent.autoscaling.fleets import ManagedFleet, managed_fleets
from agent.autoscaling.snapshot.aggregate import AggregationSettings
from agent.autoscaling.snapshot.series import SeriesStore
from agent.ledger import codec
from agent.settings import load_settings
from domain.errors import RejectReason
from domain.fleet import Fleet
from domain.samples import SignalSeries, parse_path
from domain.snapshot import OnMissing, Signal, SignalKind, SignalSnapshot, Snapshot
from tests.agent.autoscaling.snapshot.scene import FLEET, Scene

RPS, LAG = Signal("rps", 50.0), Signal("lag", 1000.0, on_missing=OnMissing.IGNORE, max_age_s=90.0)


def scene() -> Scene:
    settings = AggregationSettings(needed=("signal rps",), signals=(LAG, RPS))
    return Scene(settings=settings, store=SeriesStore(watched=[FLEET], signals={"web": ("lag", "rps")}))


def values(snapshot: Snapshot) -> list[float | None]:
    return [one.value for one in snapshot.signals]


@pytest.mark.parametrize("path", ["trimtab.web.signal.rps", "trimtab.signal.rps;fleet=web"])
def test_a_signal_has_a_dotted_and_a_tagged_path(path: str) -> None:
    assert parse_path(path) == SignalSeries("web", "rps")


def test_a_minute_has_the_mean_of_its_readings_else_the_newest_that_is_not_too_old() -> None:
    here = scene()
    here.send(*(f"trimtab.web.signal.rps {value} {here.now + at}" for at, value in ((10, 100), (20, 200), (60, 600))))
    here.send(f"trimtab.web.signal.lag 7 {here.now + 5}")
    assert values(here.minute()) == [7.0, 300.0]
    second = here.minute()
    assert values(second) == [None, 600.0], "115 s old, with 90 s allowed; 60 s old, with 120 s allowed"
    assert "signal lag" in second.absent
    third = here.minute()
    assert values(third) == [None, 600.0]
    fourth = here.minute()
    assert values(fourth) == [None, None]


def test_minutes_without_a_signal_that_holds_count_as_stale() -> None:
    here = scene()
    here.send(f"trimtab.web.signal.rps 100 {here.now + 30}")
    assert [here.minute().stale_bins for _ in range(4)] == [0, 0, 1, 2]


def test_signals_that_are_not_the_fleets_own_and_values_that_are_no_amount_are_refused() -> None:
    here = scene()
    at = here.now
    here.send(
        f"trimtab.web.signal.other 1 {at}",
        f"trimtab.batch.signal.rps 1 {at}",
        f"trimtab.web.signal.rps -1 {at}",
        f"trimtab.web.signal.rps nan {at}",
    )
    rejected = here.counters.rejected
    reasons = (RejectReason.FOREIGN_PATH, RejectReason.OUT_OF_RANGE, RejectReason.NOT_FINITE)
    assert [rejected[reason] for reason in reasons] == [2, 1, 1]


def test_a_snapshot_with_signals_is_stored_and_read_back() -> None:
    here = scene()
    here.send(f"trimtab.web.signal.rps 100 {here.now + 30}")
    snapshot = here.minute()
    assert codec.decode(Snapshot, codec.encode(snapshot)) == snapshot
    assert snapshot.signals == (SignalSnapshot(LAG, None), SignalSnapshot(RPS, 100.0))


def of_settings(**more: str) -> ManagedFleet:
    group = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MIN": "1", "MAX": "9"}
    given = {f"GROUPS__s__{name}": text for name, text in group.items()} | {
        "SIGNALS__rps__TARGET": "50",
        "SIGNALS__latency__TARGET": "0.2",
        "SIGNALS__latency__KIND": "level",
        "SIGNALS__latency__ON_MISSING": "no_scale_in",
    }
    environ = {f"TRIMTAB_FLEETS__web__{name}": text for name, text in (given | more).items()}
    (managed,) = managed_fleets(load_settings(environ))
    return managed


@pytest.mark.parametrize(
    ("usual", "meanwhile", "needed", "needed_meanwhile"),
    [
        ("queue-rule", "signal-tracking", ("queue",), ("signal rps",)),
        ("signal-tracking", "queue-rule", ("signal rps",), ("queue",)),
        ("signal-tracking", "hold", ("signal rps",), ()),
    ],
)
def test_a_minute_needs_the_signals_only_while_signal_tracking_decides(
    usual: str, meanwhile: str, needed: tuple[str, ...], needed_meanwhile: tuple[str, ...]
) -> None:
    window = {"BEGINS": "2026-11-27T18:00", "ENDS": "2026-11-27T19:00", "POLICY": meanwhile}
    managed = of_settings(POLICY=usual, **{f"SCHEDULE__evening__{name}": text for name, text in window.items()})
    six = datetime(2026, 11, 27, 18, tzinfo=UTC).timestamp()
    assert managed.in_minute(six - 60.0)[0].aggregation.needed == needed
    assert managed.in_minute(six)[0].aggregation.needed == needed_meanwhile
    assert managed.in_minute(six + 3600.0)[0].aggregation.needed == needed


def test_the_settings_of_signals_reach_the_loop() -> None:
    managed = of_settings(POLICY="signal-tracking")
    latency = Signal("latency", 0.2, SignalKind.LEVEL, OnMissing.NO_SCALE_IN)
    assert managed.aggregation.signals == (latency, Signal("rps", 50.0))
    assert managed.aggregation.needed == ("signal rps",)
    assert isinstance(managed.fleet, Fleet)
    assert managed.policy == "signal-tracking:scale_in_factor=0.9,out_periods=1,in_periods=15"
