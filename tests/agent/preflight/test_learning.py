"""What preflight says of learning: what is missing on the host, and how the last round ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.kernel.checks import CheckResult, State
from agent.ledger import Ledger
from agent.models.directory import read_model_file
from agent.models.rounds import Ending
from agent.preflight import check
from agent.preflight.check import check_learning
from agent.settings import load_settings
from domain.subject import Subject
from tests.agent.models.making import NOTHING, preferring
from tests.golden import check_wording
from trainer.promotion.directory import ModelsWriter, write_round

WEB = Subject("autoscaling", "web")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A state directory as deploy/install.sh --role learn leaves it."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models").chmod(0o2770)
    Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}").close()
    (tmp_path / "ledger.db").chmod(0o640)
    return tmp_path


ONE_FLEET = {
    f"TRIMTAB_FLEETS__web__GROUPS__small__{name}": text
    for name, text in {
        "VM_TYPE": "m5a.large",
        "CORES": "2",
        "MEMORY_GB": "8",
        "PRICE_PER_HOUR": "0.086",
        "MAX": "10",
    }.items()
}
ONE_CLUSTER = {"TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "100"}


def look(host: Path, subjects: Mapping[str, str] = ONE_FLEET, **settings: str) -> list[CheckResult]:
    given = {f"TRIMTAB_LEARNING__{name}": text for name, text in settings.items()}
    return list(check_learning(load_settings({"TRIMTAB_STATE_DIRECTORY": str(host), **subjects, **given})))


WANTED = {
    "before the first round": [State.ADVICE],
    "a round on too little": [State.ADVICE],
    "a round that was kept": [State.OK],
    "no right to read or write": [State.ADVICE, State.ADVICE, State.OK],
    "nothing is there yet": [State.ADVICE, State.ADVICE, State.ADVICE],
    "no packages of the trainer": [State.ADVICE, State.ADVICE, State.ADVICE, State.ADVICE],
}


def states(results: list[CheckResult]) -> list[State]:
    return [one.state for one in results]


def test_nothing_is_said_where_no_setting_asks_for_learning(tmp_path: Path) -> None:
    assert look(tmp_path) == []


def test_a_champion_that_does_not_decide_is_named_with_the_setting_to_change(host: Path) -> None:
    file = preferring(host, NOTHING)
    directory, at = ModelsWriter(host / "models"), "2026-11-29T12:00:00Z"
    directory.force(read_model_file(file), WEB, "a trial", at, lambda path: path)
    (found,) = look(host)
    assert (found.state, "POLICY is queue-rule" in found.detail) == (State.ADVICE, True)
    assert "TRIMTAB_FLEETS__web__POLICY=learned" in found.remedy
    deciding = {"TRIMTAB_FLEETS__web__POLICY": "learned", "TRIMTAB_FLEETS__web__GROUPS__small__MIN": "1"}
    assert look(host, ONE_FLEET | deciding) == []


def test_decisions_are_named_whose_subjects_are_configured(host: Path) -> None:
    found = look(host, ONE_FLEET | ONE_CLUSTER, MAX_AGE_HOURS="48")
    assert [name in one.detail for one, name in zip(found, ("autoscaling", "admission"), strict=True)] == [True, True]
    assert look(host, {}, MAX_AGE_HOURS="48") == []


def test_what_a_learner_lacks_and_how_its_last_round_ended(
    host: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"before the first round": look(host, PROBATION_HOURS="48")}
    write_round(host / "models", WEB, Ending.TOO_LITTLE, "four windows", at=1_772_366_400.0)
    found["a round on too little"] = look(host, MAX_AGE_HOURS="48")
    write_round(host / "models", WEB, Ending.KEPT, "", at=1_772_366_400.0)
    found["a round that was kept"] = look(host, MAX_AGE_HOURS="48")
    (host / "models").chmod(0o770)
    (host / "ledger.db").chmod(0o600)
    found["no right to read or write"] = look(host, MAX_AGE_HOURS="48")
    empty = tmp_path_factory.mktemp("empty")
    found["nothing is there yet"] = look(empty, MAX_AGE_HOURS="48")
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    found["no packages of the trainer"] = look(empty, MAX_AGE_HOURS="48")
    assert {name: states(results) for name, results in found.items()} == WANTED
    texts = {
        name: "\n".join(f"{one.state.value} {one.subject}: {one.detail} -> {one.remedy}" for one in results)
        for name, results in found.items()
    }
    places = {str(host): "<host>", str(empty): "<empty>"}
    for place, shown in places.items():
        texts = {name: text.replace(place, shown) for name, text in texts.items()}
    check_wording("preflight_learning", texts)
