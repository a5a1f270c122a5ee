"""A model on probation: the pool records what it would have decided and answered, and goes by none of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.ledger import codec
from agent.models.directory import Probationer, Then, read_model_file
from agent.oversubscription.rate_policies import verify_rates
from agent.oversubscription.records import HourDecision, RateDecision
from agent.oversubscription.settings import DIGITS
from agent.oversubscription.state import OversubscriptionStore
from agent.oversubscription.view import rate_lines
from domain.rules.oversubscription.rates import USUAL_BUDGET
from domain.subject import Subject
from tests.agent.models.making import reported
from tests.agent.oversubscription.pools import START, House, rules, vm
from trainer.promotion.directory import ModelsWriter

SUBJECT = Subject("oversubscription", "main")


def on_probation(folder: Path, rates: dict[str, float], **more: Any) -> Probationer:
    """Rates for the pool, which passed the gate, on probation in `folder/models` since the pool's begin."""
    directory = ModelsWriter(folder / "models")
    directory.path.mkdir(exist_ok=True)
    path = folder / "challenger.json"
    path.write_text(json.dumps({"kind": "oversubscription-rates", "rates": rates, **more}))
    model = read_model_file(path)
    report = reported(directory.path, model.name, None, SUBJECT, champion={"sha256": None})
    verify = lambda at: verify_rates(at, rules())  # noqa: E731
    return directory.put_on_probation(model, SUBJECT, report, START, 24.0, Then.PROMOTE, verify, beaten=None)


def house_of(folder: Path) -> House:
    """A pool that has lived for a week at rate 0.5, with the models directory of the probation."""
    return House(folder, rules(policy="static:0.5"), [vm(f"v{k}", "web", f"m{k % 2 + 1}") for k in range(6)])


def test_what_it_would_have_had_is_recorded_with_its_rates(tmp_path: Path) -> None:
    one = on_probation(tmp_path, {"web": 0.2, "batch": 1.0})
    house, digest = house_of(tmp_path), Path(one.model).stem[:DIGITS]
    house.live(170)
    answer, hour = house.ask(cores=4.0), house.pool.hour
    assert hour is not None
    assert answer.rate == 0.5
    assert hour.shadow is not None
    assert (hour.shadow.model, hour.shadow.failed, hour.shadow.budget) == (digest, "", USUAL_BUDGET)
    # After a week of history it has come down to its own rates, a level an hour, behind the same rails.
    assert (hour.shadow.rate("web"), hour.shadow.rate("batch")) == (0.2, 1.0)
    shadow = answer.shadow
    assert shadow is not None
    assert (shadow.model, shadow.rate, shadow.safe) == (digest, 0.2, True)
    assert codec.decode(HourDecision, codec.encode(hour)) == hour
    assert codec.decode(RateDecision, codec.encode(answer)) == answer
    assert any("On probation, decides nothing" in line for line in rate_lines(answer, None))
    hours = OversubscriptionStore(house.ledger).hours_since("main", START)
    assert len(hours) == 170
    assert [one.hour for one in hours] == sorted(one.hour for one in hours)
    house.ledger.close()


@pytest.mark.exhaustive
def test_a_subscriber_that_is_drifting_is_reserved_in_full_by_a_shadow_too(tmp_path: Path) -> None:
    on_probation(tmp_path, {"web": 0.2, "batch": 1.0})
    house = house_of(tmp_path)
    house.live(192)
    assert house.rate() == 0.5
    hours = 0
    while not house.pool.memory.subscribers["web"].drifting and hours < 24:
        house.live(1, seed=hours, mean=0.6)
        hours += 1
    assert hours < 24
    assert house.pool.hour is not None
    # A level an hour would be 0.6 now: it is reserved in full in the hour in which the drift is found.
    assert house.rate() == 1.0
    assert house.pool.hour.shadow is not None
    assert house.pool.hour.shadow.rate("web") == 1.0
    house.ledger.close()
