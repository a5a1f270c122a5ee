"""A pool's models after a round, by the verb and on a real ledger: probation, approval, and the watch afterwards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from agent.models.directory import Probationer, Then
from agent.models.rounds import Ending
from agent.oversubscription.settings import read_rates
from domain.subject import Subject
from domain.units import HOUR_S
from tests.agent.oversubscription.pools import START, House, rules, vm
from tests.trainer.learning import steps
from tests.trainer.learning.steps import directory_of, ending, trimtab
from trainer.learning.pool_trial import divergence_of, lived

SUBJECT = Subject("oversubscription", "main")
SAFE = {"kind": "shield", "budget": 0.003}
BLIND = {"kind": "shield", "budget": 24.0}
HOURS = 48


def rates_in(folder: Path, rate: float, guard: dict[str, Any]) -> Path:
    """Rates as a round writes them, for a scenario of the pool's two subscribers."""
    path = folder / f"rates-{rate:g}.json"
    body = {"kind": "oversubscription-rates", "version": 1, "scenario": "main", "scenario_sha256": "0", "start": "warm"}
    body |= {"alpha": 0.95, "actions": [0.2, 0.3, 0.4, 0.5, 0.6, 1.0], "subscribers": ["batch", "web"]}
    path.write_text(json.dumps({**body, "rates": [rate, rate], "guard": guard, "calibration": {}, "packages": {}}))
    return path


def house_of(folder: Path, usage: float, hours: int, **changes: Any) -> House:
    """A pool of twenty VMs on four machines that lives so many hours; one VM goes and one comes each hour."""
    vms = [vm(f"v{n}", "web" if n % 2 else "batch", f"m{n % 4}") for n in range(20)]
    given = rules(horizon_h=24, hot_hours=2, policy=changes.pop("policy", "static:0.6"), **changes)
    house = House(folder, given, vms)
    draws = np.random.default_rng(3)
    for hour in range(hours):
        n = 20 + hour
        house.place([*house.vms[1:], vm(f"v{n}", "web" if n % 2 else "batch", f"m{n % 4}")])
        house.hour({one.vm: float(np.clip(draws.normal(usage, 0.05), 0, 1)) for one in house.vms})
        if hour % 12 == 11:
            house.ask(cores=4.0)
    house.ledger.close()
    return house


def tried(folder: Path, rate: float, guard: dict[str, Any], then: Then = Then.PROMOTE) -> Probationer:
    return steps.tried(directory_of(folder), rates_in(folder, rate, guard), SUBJECT, START, HOURS, read_rates, then)


def learn(folder: Path, hour: float, *more: object) -> Result:
    place = ("--ledger", folder / "ledger.db", "--models-dir", folder / "models", "--out", folder / "round")
    return trimtab("learn", "oversubscription", "main", *place, "--at", START + hour * HOUR_S, *more)


@pytest.mark.exhaustive
def test_rates_that_kept_the_promise_for_their_hours_decide(tmp_path: Path) -> None:
    one = tried(tmp_path, 0.3, SAFE)
    early = learn_of(tmp_path)
    assert (early.exit_code, ending(tmp_path, SUBJECT)) == (0, Ending.PROBATION), early.output
    found = learn(tmp_path, HOURS + 1)
    assert found.exit_code == 0, found.output
    assert "champion of main now" in found.output
    assert ending(tmp_path, SUBJECT) is Ending.PROMOTED
    assert directory_of(tmp_path).champions()[SUBJECT].model == one.model
    assert directory_of(tmp_path).probationers() == {}
    page = tmp_path / "round" / "probation" / "report.html"
    assert "reserved, challenger" in page.read_text()


def learn_of(folder: Path) -> Result:
    """The hours lived, and the verb called before they are over."""
    house_of(folder, 0.2, HOURS)
    return learn(folder, HOURS - 1)


@pytest.mark.exhaustive
def test_rates_that_would_have_made_machines_hot_do_not(tmp_path: Path) -> None:
    # Half of what is requested is used: behind a shield that stops nothing, a rate of 0.2 fills machines twice over.
    tried(tmp_path, 0.2, BLIND)
    house_of(tmp_path, 0.5, HOURS)
    found = learn(tmp_path, HOURS + 1, "--try")
    assert (found.exit_code, "nothing is changed" in found.output) == (1, True), found.output
    assert SUBJECT in directory_of(tmp_path).probationers()
    found = learn(tmp_path, HOURS + 1)
    assert found.exit_code == 1, found.output
    assert "hours were hot" in found.output
    assert "promise is surely broken" in found.output
    assert (directory_of(tmp_path).probationers(), directory_of(tmp_path).champions()) == ({}, {})
    assert ending(tmp_path, SUBJECT) is Ending.REFUSED


@pytest.mark.exhaustive
def test_a_person_approves_what_waits_and_is_shown_where_it_differs(tmp_path: Path) -> None:
    tried(tmp_path, 0.3, SAFE, Then.APPROVE)
    house_of(tmp_path, 0.2, HOURS)
    found = learn(tmp_path, HOURS + 1)
    assert (found.exit_code, ending(tmp_path, SUBJECT)) == (0, Ending.PROBATION), found.output
    assert "trimtab approve " in found.output
    place = ("--ledger", tmp_path / "ledger.db", "--models-dir", tmp_path / "models")
    approved = trimtab("approve", "oversubscription", "main", *place)
    assert approved.exit_code == 0, approved.output
    assert "so far it would have" in approved.output
    assert SUBJECT in directory_of(tmp_path).champions()


def promoted(folder: Path, rate: float, hour: float) -> None:
    at = START + hour * HOUR_S
    steps.promoted(directory_of(folder), rates_in(folder, rate, SAFE), SUBJECT, at, read_rates)


def test_a_promotion_under_which_machines_are_hot_is_rolled_back_with_exit_status_6(tmp_path: Path) -> None:
    promoted(tmp_path, 0.5, 0.0)
    promoted(tmp_path, 0.4, 0.0)
    # Nine tenths of twenty cores of a machine: above the fourteen from which it is hot.
    house_of(tmp_path, 0.9, 27, policy="learned", beta=0.3)
    directory = directory_of(tmp_path)
    found = lived(str(tmp_path / "ledger.db"), "main", directory.champions()[SUBJECT])
    assert not isinstance(found, str)
    assert (found.bad, found.of) == (26, 26)
    result = learn(tmp_path, 28.0)
    assert result.exit_code == 6, result.output
    assert (ending(tmp_path, SUBJECT), directory.history(SUBJECT)[-1]["event"]) == (Ending.ROLLED_BACK, "rolled back")
    assert "26 of 26 hours were hot" in (tmp_path / "round" / "watch" / "report.html").read_text()


@pytest.mark.parametrize(("policy", "known"), [({"policy": "learned"}, "2"), ({}, "0")])
def test_a_promotion_is_left_alone_where_few_hours_are_known_or_another_policy_decided_them(
    tmp_path: Path, policy: dict[str, str], known: str
) -> None:
    promoted(tmp_path, 0.5, 0.0)
    house_of(tmp_path, 0.9, 3, beta=0.3, **policy)
    found = lived(str(tmp_path / "ledger.db"), "main", directory_of(tmp_path).champions()[SUBJECT])
    assert re.findall(r"\d+", str(found)) == [known, "24"]


def test_what_the_challenger_would_have_answered_is_counted(tmp_path: Path) -> None:
    one = tried(tmp_path, 0.3, SAFE)
    house_of(tmp_path, 0.2, 13)
    asked, text = divergence_of(str(tmp_path / "ledger.db"), "main", one)
    assert asked == 13
    # In the first day nothing is known of anybody: both reserve everything.
    assert "0.0% of 26 cases" in text
    assert re.findall(r"100\.0%| 1 ", text) == ["100.0%", " 1 ", "100.0%"]
