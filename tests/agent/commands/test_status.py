"""`trimtab status`: each fleet as the ledger knows it, for people and as data."""

import json
from pathlib import Path

import pytest
import time_machine

from agent.ledger import Ledger
from domain.controls import Pause, PauseScope, Pin
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import POLICY, SHADOW, START, story

pytestmark = pytest.mark.usefixtures("at_200_s")


def test_it_tells_sizes_queue_cost_decision_and_what_is_under_way(trimtab: Trimtab, ledger: str) -> None:
    with Ledger.open(ledger) as book:
        book.pause("web", Pause(PauseScope.IN, "ada", "load test", START + 100, START + 1100))
        book.pin("web", Pin({"workers_s": 3}, "bob", "launch", START + 100, START + 7400))
    result = trimtab("status")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "web  act  last turn 20 s ago",
        f"  policy {POLICY}, shadow {SHADOW}",
        "  group      type         requested  in service  warm  booting  bounds  decided",
        "  workers_s  m5a.large            1           1     1        0  1..4    -> 2",
        "  workers_l  m5a.2xlarge          1           1     1        0  0..3",
        "  reports: 2 of 2 VMs due reported (100%); newest of a VM 8 s old; newest of the queue 3 s old",
        "  queue: 22 wait, the oldest for 30 s; 2 run",
        "  cost: $0.430 an hour, $0.03 today (UTC)",
        "  web-4: grew workers_s 1 -> 2: CPU 90 %, 22 jobs wait, the oldest for 30 s",
        "  paused (in) by ada for 15 min more: load test",
        "  pinned at workers_s 3 by bob for 2 h more: launch",
        "  under way: web-4.workers_s: workers_s 1 -> 2 (out), for 20 s",
        "  no capacity: m5a.2xlarge in us-east-1b, not asked again for 7 min",
        "  cooling down: workers_l scale-out for 100 s more",
        "  cooling down: workers_s scale-out for 5 min more",
    ]


def test_as_data_it_holds_the_same(trimtab: Trimtab, ledger: str) -> None:
    data = json.loads(trimtab("status", "--json").stdout)
    assert data["at"] == START + 200
    (web,) = data["fleets"]
    assert (web["fleet"], web["mode"], web["policy"]) == ("web", "act", POLICY)
    assert web["last_tick_at"] == START + 180
    assert web["groups"][0] == {
        "key": "workers_s",
        "vm_type": "m5a.large",
        "price_per_hour": 0.086,
        "minimum": 1,
        "maximum": 4,
        "requested": 1,
        "requested_units": None,
        "weight": 1,
        "observed": 1,
        "warm": 1,
        "booting": 0,
        "overdue": 0,
        "draining": 0,
        "silent": 0,
        "unhealthy": 0,
        "desired": 2,
    }
    assert web["cost_per_hour"] == pytest.approx(0.430)
    assert web["last_decision"]["id"] == "web-4"
    assert web["open_intents"][0]["intent_id"] == "web-4.workers_s"
    assert web["pauses"] == []
    assert web["pin"] is None


def test_a_loop_that_stands_still_is_told(trimtab: Trimtab, ledger: str) -> None:
    with time_machine.travel(START + 1000.0, tick=False):
        first = trimtab("status").stdout.splitlines()[0]
    assert first == "web  act  last turn 14 min ago, stale: is the agent running?"


def test_what_was_spent_yesterday_is_not_todays(trimtab: Trimtab, ledger: str) -> None:
    with time_machine.travel(START + 86_400.0, tick=False):
        assert "$0.00 today" in trimtab("status").stdout


def test_a_switch_that_is_over_is_not_shown(trimtab: Trimtab, ledger: str) -> None:
    with Ledger.open(ledger) as book:
        book.pause("web", Pause(PauseScope.ALL, "ada", "load test", START, START + 199))
    assert "paused" not in trimtab("status").stdout


def test_a_fleet_of_the_settings_that_never_ticked_is_shown_as_such(
    trimtab: Trimtab, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("VM_TYPE", "m5a.large"), ("CORES", "2"), ("MEMORY_GB", "8"), ("PRICE_PER_HOUR", "1")):
        monkeypatch.setenv(f"TRIMTAB_FLEETS__batch__GROUPS__s__{name}", value)
    monkeypatch.setenv("TRIMTAB_FLEETS__batch__GROUPS__s__MAX", "2")
    assert trimtab("status").stdout.splitlines()[0] == "batch  no turn yet"


def test_the_ledger_may_be_named_by_its_path(trimtab: Trimtab, tmp_path: Path) -> None:
    story(tmp_path / "other.db", "batch")
    assert trimtab("status", "--ledger", str(tmp_path / "other.db")).stdout.startswith("batch  act")


def test_an_unknown_fleet_is_answered_with_those_there_are(trimtab: Trimtab, ledger: str) -> None:
    result = trimtab("status", "--fleet", "blue")
    assert (result.exit_code, result.stderr) == (2, "error: --fleet is 'blue': choose one of: web\n")
