"""What learning needs of each minute, on PostgreSQL: written by several agents, read in a stream, kept and exported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.admission.cluster import AdmissionService
from agent.admission.state import AdmissionStore
from agent.autoscaling import minutes
from agent.autoscaling.minutes import Boot, MinuteMeasurements, read_minutes
from agent.autoscaling.state import FleetStore
from agent.kernel.parts import kept
from agent.ledger import Ledger
from agent.oversubscription.recorded_hours import HourRecorder, append, read_hours
from domain.clock import VirtualClock
from tests.agent.admission import clusters as cluster_times
from tests.agent.ledger.records import START, made
from tests.agent.oversubscription.pools import rules as pool_rules
from tests.agent.oversubscription.pools import vm

pytestmark = pytest.mark.needs_postgresql
DAY_S = 86400.0
MEASURED = {"web": MinuteMeasurements(finished=3, boots=(Boot(1, 70.5),))}


def test_two_agents_write_one_recording_and_share_its_settings(open_ledger: Callable[..., Ledger]) -> None:
    first, second = open_ledger(), open_ledger()
    FleetStore(first).record([made(1, epoch=0)], measured=MEASURED)
    FleetStore(second).record([made(2, epoch=0)], measured=MEASURED)
    found = list(read_minutes(first.database, "web"))
    assert [(one.finished, one.boots, one.submitted is None) for one in found] == [(3, (Boot(1, 70.5),), False)] * 2
    with first.database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM learning_contexts").scalar() == 1


def test_it_is_kept_longer_than_decisions(open_ledger: Callable[..., Ledger]) -> None:
    ledger = open_ledger()
    FleetStore(ledger).record([made(day, at=START + day * DAY_S, epoch=0) for day in range(4)], measured=MEASURED)
    ledger.compact(START + 4 * DAY_S, DAY_S, (minutes.KEPT,), longer_s={"learning": 3 * DAY_S})
    assert len(list(read_minutes(ledger.database, "web"))) == 2


def test_the_events_of_a_cluster_and_the_hours_of_a_pool_are_read_in_their_order(
    open_ledger: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger()
    monkeypatch.setattr("agent.admission.state._PAGE", 2)
    monkeypatch.setattr("agent.oversubscription.recorded_hours._PAGE", 2)
    now = cluster_times.START + 10 * DAY_S
    service = AdmissionService(cluster_times.rules(), AdmissionStore(ledger), VirtualClock(now))
    service.observe(
        [cluster_times.event(f"d{n % 4}", "scaled" if n > 3 else "started", 1, now - 100.0 + n // 2) for n in range(9)]
    )
    store = AdmissionStore(ledger)
    times = [event.time for event in store.stream("main", now)]
    assert times == sorted(times)
    assert len(times) == 9
    assert (store.span_of_events("main"), store.turned_away("main", 0.0, now)) == ((times[0], times[-1]), 0)
    recorder, vms = HourRecorder(), {f"v{n}": vm(f"v{n}") for n in range(3)}
    for hour in range(5):
        row = recorder.row(pool_rules(), vms, {("web", "v1"): hour / 10}, 1000 + hour, 0, "static:0.3")
        with ledger.database.write() as connection:
            append(connection, row)
    found = list(read_hours(ledger.database, "main"))
    assert [one.hour for one in found] == [1000, 1001, 1002, 1003, 1004]
    assert [list(one.usage.values()) for one in found] == [[0.0], [0.1], [0.2], [0.3], [0.4]]
    ledger.compact(1004 * 3600.0, DAY_S, kept(), longer_s={"learning": 3600.0})
    assert list(read_hours(ledger.database, "main")) == []
