"""The scenario of a pool: what the agent recorded hour by hour comes back as weeks, lives, usage and profiles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.kernel.parts import kept
from agent.ledger import Ledger, codec
from agent.oversubscription.recorded_hours import MOST_VMS, HourRecorder, read_hours, share_of
from agent.oversubscription.records import Vm
from domain.errors import BadInput, LedgerError
from domain.units import DAY_S
from simulator.oversubscription.scenario import Scenario, read_usage, scenario_of
from tests.agent.oversubscription.pools import HOUR_S, OURS, START, House, rules, vm
from tests.trainer.learning.steps import trimtab
from trainer.learning.pools import export_scenario, read_pool
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import Task, policy_of

MEANS = {"web": 0.30, "batch": 0.12}
HORIZON = 24


def lived(folder: Path, days: int = 3, every_h: int = 6, **changes: Any) -> House:
    """A pool of twenty VMs, one of which goes, and one comes, now and then; usage is normal around a mean."""
    vms = [vm(f"v{n}", "web" if n % 2 else "batch", f"m{n % 4}") for n in range(20)]
    house = House(folder, rules(horizon_h=HORIZON, hot_hours=2, **changes), vms)
    draws = np.random.default_rng(3)
    for hour in range(HORIZON * days):
        if hour % every_h == every_h - 1:
            n = 20 + hour // every_h
            house.place([*house.vms[1:], vm(f"v{n}", "web" if n % 2 else "batch", f"m{n % 4}")])
        house.hour({one.vm: float(np.clip(draws.normal(MEANS[one.subscriber], 0.05), 0, 1)) for one in house.vms})
    return house


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    lived(folder).ledger.close()
    return folder / "ledger.db"


def scenario_in(path: Path, folder: Path, **span: float) -> Scenario:
    export_scenario(read_pool(str(path), "main", **span), folder)
    return scenario_of(str(folder))


def test_weeks_lives_and_profiles_come_back_and_the_simulator_plays_them(recorded: Path, tmp_path: Path) -> None:
    done = trimtab("trace", "from-ledger", recorded, "--pool", "main", "--out", tmp_path / "main", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) | {"folder": ""} == {
        "folder": "",
        "weeks": 3,
        "hours": 72,
        "vms": 72,
        "gaps": 0,
        "subscribers": 2,
        "share_of_vms": 1.0,
    }
    scenario = scenario_of(str(tmp_path / "main"))
    assert (scenario.weeks, scenario.hours, scenario.violation_hours) == (("w0", "w1", "w2"), HORIZON, 2)
    assert (scenario.machines, scenario.machine_cores, scenario.beta) == (12, 48.0, 0.6)
    first, second = scenario.week("w0"), scenario.week("w1")
    # Those of the beginning came before the record did, as far as it knows in its first hour.
    assert (first.warm, first.requests) == (0, 24)
    assert (second.warm, second.requests) == (20, 4)
    assert second.arrival[second.warm :].tolist() == [5, 11, 17, 23]
    assert sorted(second.departure.tolist())[:4] == [5, 11, 17, 23]
    assert (second.departure - second.arrival).max() >= HORIZON
    order = sorted(MEANS)
    for n, name in enumerate(order):
        assert scenario.mu[n].mean() == pytest.approx(MEANS[name], abs=0.01)
        assert scenario.sd[n].mean() == pytest.approx(0.05, abs=0.01)
    usage = read_usage(tmp_path / "main" / "main_w1_usage.csv.gz", second.ids, scenario.hours)
    assert np.nanmean(usage) == pytest.approx(0.21, abs=0.01)
    assert judge(policy_of("grid:0.5"), Task(scenario, second, "warm"), episodes=5).s_cores == pytest.approx(0.5)
    assert trimtab("simulate", "oversubscription", "--scenario", tmp_path / "main", "--week", "w1").exit_code == 0


def test_no_vm_is_named_and_the_same_record_gives_the_same_files(recorded: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        scenario_in(recorded, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(files) == 8
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    with Ledger.open(f"sqlite:///{recorded}", read_only=True) as ledger, ledger.database.read() as connection:
        bodies = connection.exec_driver_sql("SELECT body FROM learning_hours").scalars().all()
    assert not any(re.search(rb'"v\d', codec.unpack(body)) for body in bodies)


def test_a_gap_is_listed_and_a_week_that_lacks_too_much_is_left_out(tmp_path: Path) -> None:
    house = lived(tmp_path, 1)
    house.clock.advance(10 * HOUR_S)
    house.live(14)
    house.live(24)
    house.ledger.close()
    found = export_scenario(read_pool(str(tmp_path / "ledger.db"), "main"), tmp_path / "main")
    assert list(found["recorded"]["weeks"]) == ["w0", "w2"]
    (gap,) = found["recorded"]["gaps"]
    assert [at[:13] for at in gap] == ["2026-09-29T00", "2026-09-29T10"]


def test_a_span_without_a_whole_week_writes_nothing(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no week of 24 h"):
        scenario_in(recorded, tmp_path / "main", since=START, until=START + 10 * HOUR_S)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="has main") as refused:
        read_pool(str(recorded), "other")
    assert refused.value.field == "pool", "an option of one verb and an argument of another"
    with pytest.raises(BadInput, match="no hour of it"):
        read_pool(str(recorded), "main", START + 90 * DAY_S)


def test_a_process_that_starts_anew_writes_a_whole_row_and_vms_stay_the_same(tmp_path: Path) -> None:
    house = lived(tmp_path, 1)
    before = list(read_hours(house.ledger.database, "main"))[-1]
    house.open()
    house.hour({one.vm: 0.25 for one in house.vms})
    after = list(read_hours(house.ledger.database, "main"))[-1]
    assert after.vms == before.vms
    assert set(after.usage.values()) == {0.25}
    assert list(read_hours(house.ledger.database, "main", after.hour)) == [after]
    with house.ledger.database.read() as connection:
        whole = connection.exec_driver_sql("SELECT whole FROM learning_hours ORDER BY seq").scalars().all()
    assert whole == [1, *[0] * 23, 1]


def test_hours_are_kept_longer_than_decisions_and_begin_with_a_whole_row(tmp_path: Path) -> None:
    house = lived(tmp_path, 2)
    now = house.clock.now()
    house.ledger.compact(now, HOUR_S, kept(), longer_s={"learning": 1.5 * DAY_S})
    found = list(read_hours(house.ledger.database, "main"))
    # Of the first day half is left, but nothing to begin it with.
    assert len(found) == 24
    house.ledger.compact(now + 9 * DAY_S, DAY_S, kept(), longer_s={"learning": 2 * DAY_S})
    assert list(read_hours(house.ledger.database, "main")) == []


def test_of_very_many_vms_the_same_part_is_recorded_every_hour() -> None:
    assert [share_of(n) for n in (0, MOST_VMS, MOST_VMS + 1, 4 * MOST_VMS + 1)] == [1.0, 1.0, 0.5, 0.125]
    recorder, pool = HourRecorder(), rules(subscribers={"web": OURS})
    many = {f"v{n}": Vm(f"v{n}", "web", "m", 4.0, 16.0, 1.0, 1.0) for n in range(MOST_VMS + 100)}
    first = recorder.row(pool, many, {("web", "v1"): 0.5}, 10, 0, "static:0.3")
    second = recorder.row(pool, many, {}, 11, 0, "static:0.3")
    assert (first["whole"], second["whole"]) == (1, 0)
    assert len(second["body"]) < len(first["body"]) / 10
    # As after a row that could not be written.
    recorder.begin_anew()
    assert recorder.row(pool, many, {}, 12, 0, "static:0.3")["whole"] == 1


def test_a_damaged_row_is_said(tmp_path: Path) -> None:
    house = lived(tmp_path, 1)
    damaged = codec.encode_mapping({"g": [], "c": [], "u": "AA=="})
    with house.ledger.database.write() as connection:
        connection.exec_driver_sql("UPDATE learning_hours SET body = ? WHERE seq = 2", (damaged,))
    with pytest.raises(LedgerError, match="cannot be read"):
        list(read_hours(house.ledger.database, "main"))
