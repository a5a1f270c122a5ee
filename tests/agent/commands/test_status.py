"""`trimtab status`: each fleet as the ledger knows it, for people and as data."""

import json
from pathlib import Path

import pytest
import time_machine

from agent.ledger import Ledger
from domain.controls import Pause, PauseScope
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import POLICY, START, story

pytestmark = pytest.mark.usefixtures("at_200_s")


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


def test_what_was_spent_yesterday_is_not_todays(trimtab: Trimtab, ledger: str) -> None:
    with time_machine.travel(START + 86_400.0, tick=False):
        assert "$0.00 today" in trimtab("status").stdout


def test_a_switch_that_is_over_is_not_shown(trimtab: Trimtab, ledger: str) -> None:
    with Ledger.open(ledger) as book:
        book.pause("autoscaling", "web", Pause(PauseScope.ALL, "ada", "load test", START, START + 199))
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
