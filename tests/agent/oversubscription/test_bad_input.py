"""What a pool is told and cannot use: each is refused with row and field, or handled, and counted (§11)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agent.autoscaling.snapshot.series import SeriesStore
from agent.kernel.checks import State
from agent.oversubscription.fold import hour_of_day
from agent.oversubscription.inventory import parse_inventory
from agent.oversubscription.memory import HourSums, SubscriberMemory
from agent.oversubscription.profiles import profiles_of
from agent.oversubscription.rate_policies import policy_of
from agent.oversubscription.records import RateRequest
from agent.oversubscription.usage import PoolSink, UsageBook
from agent.preflight.check import check_everything
from agent.settings import Settings
from collectors.base import Refusal
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.errors import BadInput, RejectReason
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from tests.agent.oversubscription.pools import START, House, rules, vm

HEADER = "vm,subscriber,machine,cores,memory_gb,network_gbit,rate\n"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, rules(), [vm(f"v{k}", "web" if k % 2 else "batch", f"m{k % 2 + 1}") for k in range(12)])
    yield made
    made.ledger.close()


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("v1,web,m1,0,16,1,1", "row 3, cores"),
        ("v1,web,m1,-4,16,1,1", "row 3, cores"),
        ("v1,web,m1,nan,16,1,1", "row 3, cores"),
        ("v1,web,m1,inf,16,1,1", "row 3, cores"),
        ("v1,web,m1,four,16,1,1", "row 3, cores"),
        ("v1,web,m1,48.1,16,1,1", "row 3, cores"),
        ("v1,web,m1,4,-1,1,1", "row 3, memory_gb"),
        ("v1,web,m1,4,513,1,1", "row 3, memory_gb"),
        ("v1,web,m1,4,,1,1", "row 3, memory_gb"),
        ("v1,web,m1,4,16,-1,1", "row 3, network_gbit"),
        ("v1,web,m1,4,16,101,1", "row 3, network_gbit"),
        ("v1,web,m1,4,16,1,0", "row 3, rate"),
        ("v1,web,m1,4,16,1,1.1", "row 3, rate"),
        ("v1,web,m1,4,16,1", "row 3, rate"),
        ("v0,web,m1,4,16,1,1", "row 3, vm"),
        ("a b,web,m1,4,16,1,1", "row 3, vm"),
        (",web,m1,4,16,1,1", "row 3, vm"),
        ("v1,,m1,4,16,1,1", "row 3, subscriber"),
        ("v1,web,,4,16,1,1", "row 3, machine"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_its_field(row: str, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_inventory(f"{HEADER}v0,web,m1,4,16,1,1\n{row}\n", rules())
    assert refused.value.field == field


def test_missing_columns_are_all_named() -> None:
    with pytest.raises(BadInput, match="add the columns machine, rate"):
        parse_inventory("vm,subscriber,cores,memory_gb,network_gbit\n", rules())


def test_an_inventory_that_cannot_be_used_leaves_the_one_before_in_force(house: House) -> None:
    house.hour()
    house.file.write_text(HEADER + "v0,web,m1,-4,16,1,1\n")
    events = house.turn()
    assert [event.reason for event in events] == [Reason.METRICS_LOST]
    assert "row 2, cores is -4.0" in events[0].detail
    assert len(house.pool.alive.vms) == 12
    assert house.turn() == ()


@pytest.mark.exhaustive
def test_an_inventory_that_nobody_writes_any_more_reserves_everything(house: House) -> None:
    house.live(180)
    assert house.rate() == 0.3
    for _ in range(5):
        house.send({one.vm: 0.2 for one in house.vms})
        house.clock.advance(3600.0)
        house.pool.turn(house.clock.now(), house.epoch, paused=False)
    assert house.reasons() == (Reason.STALE_INPUT,)
    assert house.rate() == 1.0


@pytest.mark.parametrize(
    ("percent", "reason"),
    [
        (math.nan, RejectReason.NOT_FINITE),
        (math.inf, RejectReason.NOT_FINITE),
        (-0.1, RejectReason.OUT_OF_RANGE),
        (105.1, RejectReason.OUT_OF_RANGE),
    ],
)
def test_usage_that_is_none_is_refused_and_counted(percent: float, reason: RejectReason) -> None:
    book = UsageBook()
    assert book.add("web", "v1", percent, START, START) is reason
    assert book.rejected == 1
    assert book.close(int(START // 3600)) == {}


def test_usage_a_little_above_one_is_clipped_and_counted() -> None:
    book = UsageBook()
    assert book.add("web", "v1", 104.9, START, START) is None
    assert (book.clipped, book.rejected) == (1, 0)
    assert book.close(int(START // 3600))["web", "v1"] == 1.0


@pytest.mark.parametrize(
    ("at", "reason"),
    [(START + 61.0, RejectReason.FUTURE), (START - 601.0, RejectReason.TOO_OLD), (math.nan, RejectReason.NOT_FINITE)],
)
def test_readings_from_another_time_are_refused(at: float, reason: RejectReason) -> None:
    assert UsageBook().add("web", "v1", 20.0, at, START) is reason


def test_a_reading_for_an_hour_that_is_closed_is_late() -> None:
    book = UsageBook()
    book.close(int(START // 3600))
    assert book.add("web", "v1", 20.0, START + 3590.0, START + 3640.0) is RejectReason.LATE
    assert book.add("web", "v1", 20.0, START + 3610.0, START + 3640.0) is None


def test_a_line_sent_twice_counts_once() -> None:
    book = UsageBook()
    for percent in (12.5, 12.5, 37.5):
        book.add("web", "v1", percent, START + (0.0 if percent == 12.5 else 60.0), START + 60.0)
    assert book.close(int(START // 3600))["web", "v1"] == 0.25


def test_more_vms_than_there_can_be_are_refused() -> None:
    book = UsageBook(most_vms=1)
    book.add("web", "v1", 20.0, START, START)
    assert book.add("web", "v2", 20.0, START, START) is RejectReason.TOO_MANY_SERIES


def test_lines_of_a_pool_go_to_it_and_all_others_to_the_store_at_their_own_positions() -> None:
    book, store = UsageBook(), SeriesStore()
    sink = PoolSink(store, {"main": book})
    paths = [
        b"trimtab.main.web.v1.cpu_percent",
        b"trimtab.fleet.workers.v1.cpu_percent",
        b"trimtab.main.web.v2.cpu_percent",
        b"nonsense",
        b"trimtab.cpu_percent;fleet=main;group=batch;vm=v3",
        b"trimtab.main.web.v1.ram_percent",
    ]
    refused = sink.append(paths, [20.0, 30.0, 900.0, 1.0, 50.0, 50.0], [START] * 6, START)
    assert refused == [Refusal(2, RejectReason.OUT_OF_RANGE), Refusal(3, RejectReason.FOREIGN_PATH)]
    assert len(store) == 1
    held = book.close(int(START // 3600))
    assert held == {("web", "v1"): 0.2, ("batch", "v3"): 0.5}


def test_gaps_of_three_hours_are_held_and_longer_ones_are_stale(house: House) -> None:
    house.live(30, sd=0.0)
    silent = {one.vm: (None if one.vm == "v1" else 0.2) for one in house.vms}
    house.hour({**silent, "v1": 0.875})
    in_use = []
    for _ in range(5):
        house.hour(silent)
        table = house.pool.memory.table
        in_use.append(table.last[table.names.index("web/v1")])
    assert in_use == [0.875] * 5
    table = house.pool.memory.table
    assert house.pool.memory.hour - table.last_hour[table.names.index("web/v1")] == 5


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cores": 0.0}, "cores"),
        ({"cores": math.nan}, "cores"),
        ({"cores": "4"}, "cores"),
        ({"memory_gb": -1.0}, "memory_gb"),
        ({"subscriber": ""}, "subscriber"),
        ({"vm": "x" * 129}, "vm"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_value_that_cannot_be_is_no_request(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RateRequest.model_validate({"subscriber": "web", "cores": 4.0, "memory_gb": 16.0, **changes})
    assert [error["loc"] for error in refused.value.errors()] == [(field,)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cores": 48.5}, "cores"),
        ({"memory_gb": 513.0}, "memory_gb"),
        ({"subscriber": "a b"}, "subscriber"),
        ({"vm": "x.y"}, "vm"),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_by_its_field(
    house: House, changes: dict[str, Any], field: str
) -> None:
    house.hour()
    with pytest.raises(BadInput) as refused:
        house.ask(**changes)
    assert refused.value.field == field
    assert house.pool.memory.counts.requests == 0


def test_a_request_of_somebody_unknown_gets_everything_and_is_counted(house: House) -> None:
    house.hour()
    before = house.pool.memory.counts.fallbacks
    found = house.ask("stranger")
    assert (found.rate, found.reasons) == (1.0, (Reason.UNKNOWN_SUBSCRIBER,))
    assert house.pool.memory.counts.fallbacks == before + 1


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"kind": "other"}',
        '{"kind": "oversubscription-rates", "rates": [0.4]}',
        '{"kind": "oversubscription-rates", "subscribers": ["a", "a"], "rates": [0.4, 0.5]}',
        '{"kind": "oversubscription-rates", "rates": {"a": 0}}',
        '{"kind": "oversubscription-rates", "rates": {"a": NaN}}',
        '{"kind": "oversubscription-rates", "rates": {"a": "0.4"}}',
        '{"kind": "oversubscription-rates", "rates": {"a": true}}',
        f'{{"kind": "oversubscription-rates", "rates": {{"a": {10**400}}}}}',
        '{"kind": "oversubscription-rates", "rates": {"a": 1}, "multiplier": NaN}',
    ],
)
def test_a_file_of_rates_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(text)
    with pytest.raises(BadInput, match="rates file"):
        policy_of(f"rates:{file}", rules())


def test_hours_without_samples_take_their_neighbours_then_the_day_and_spreads_of_zero_are_used() -> None:
    count = [0.0] * 24
    total = [0.0] * 24
    squares = [0.0] * 24
    for hour, usage in ((6, 0.2), (8, 0.4)):
        count[hour], total[hour], squares[hour] = 50.0, 50.0 * usage, 50.0 * usage**2
    memory = SubscriberMemory(long=HourSums(tuple(count), tuple(total), tuple(squares)), history_h=50.0, vm_hours=50.0)
    found = profiles_of({"web": memory}, 0, 0.0, None)
    assert found.mean[0, [5, 6, 7, 8, 9]] == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.4], abs=1e-12)
    assert found.mean[0, 15] == pytest.approx(0.3, abs=1e-12)
    assert np.isfinite(found.variance).all()
    assert np.isfinite(found.third).all()


def test_one_subscriber_alone_and_an_empty_pool_are_decided_on(tmp_path: Path) -> None:
    house = House(tmp_path, rules(subscribers={"web": SubscriberRules(internal=True)}))
    house.hour({})
    assert house.pool.hour is not None
    assert house.pool.hour.risk.saved_share is None
    assert house.pool.hour.risk.violation == 0.0
    house.ledger.close()


def test_a_pool_without_room_reserves_everything_counts_it_and_raises_an_alarm(tmp_path: Path) -> None:
    house = House(tmp_path, rules(machines=1), [vm("v1", cores=46.0)])
    house.hour()
    found = house.ask(cores=4.0)
    assert (found.rate, found.machine, found.safe) == (1.0, "", False)
    assert Reason.NO_MACHINE in found.reasons
    assert house.pool.memory.counts.rejects == 1
    assert [entry.reason for entry in house.ledger.journal(0)][-1] == Reason.NO_MACHINE
    house.ledger.close()


def test_more_machines_than_the_rules_know_are_taken_as_they_are_listed(tmp_path: Path) -> None:
    house = House(tmp_path, rules(machines=1), [vm("v1", machine="m1"), vm("v2", machine="m2")])
    house.hour()
    assert house.pool.loads is not None
    assert house.pool.loads.names == ["m1", "m2"]
    house.ledger.close()


def test_days_of_23_and_25_hours_go_by_the_clock_on_the_wall() -> None:
    berlin: PoolRules = rules(timezone="Europe/Berlin")
    # 2026-03-29 01:00 UTC: 02:00 does not exist. 2026-10-25 00:00 and 01:00 UTC: 02:00 twice.
    spring, autumn = 1_774_746_000 // 3600, 1_792_886_400 // 3600
    assert [hour_of_day(spring + k, berlin) for k in (-1, 0, 1)] == [1, 3, 4]
    assert [hour_of_day(autumn + k, berlin) for k in (-1, 0, 1, 2)] == [1, 2, 2, 3]


def test_a_clock_that_was_set_back_is_lived_again(house: House) -> None:
    house.live(5)
    house.clock.step(-3 * 3600.0)
    house.live(2)
    assert house.pool.hour is not None
    assert house.pool.hour.hour == house.pool.memory.hour
    assert house.pool.hour.at == house.clock.now()


@pytest.mark.parametrize(
    ("policy", "of_inventory", "of_policy"),
    [
        ("moving-average", State.OK, State.OK),
        ("rule:placement.json", State.OK, State.MISSING),
        ("rates:absent.json", State.MISSING, State.MISSING),
    ],
)
def test_preflight_reads_a_pools_files_before_it_needs_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, of_inventory: State, of_policy: State
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    (tmp_path / "placement.json").write_text('{"kind": "placement-policy", "version": 1}')
    size = 48 if of_inventory is State.OK else 49
    (tmp_path / "vms.csv").write_text(f"{HEADER}v0,web,m1,{size},16,1,1\n")
    kind, _, file = policy.partition(":")
    pool = {
        "machines": 2,
        "machine_cores": 48,
        "machine_memory_gb": 512,
        "inventory_file": tmp_path / "vms.csv",
        "policy": f"{kind}:{tmp_path / file}" if file else kind,
    }
    settings = Settings.model_validate({"state_directory": tmp_path, "pools": {"main": pool}})
    found = list(check_everything(settings, VirtualClock(START)))
    assert [(one.subject, one.state) for one in found[2:]] == [
        ("pool main", of_inventory),
        ("pool main", of_policy),
        ("region", State.MISSING),
    ]
    assert all(str(tmp_path) in one.detail for one in found[2:4] if file)
    if of_policy is State.MISSING:
        assert "TRIMTAB_POOLS__main__POLICY" in found[3].remedy
