"""What preflight says of learning: what is missing on the host, and how the last round ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.decisions.checks import CheckResult, State
from agent.ledger import Ledger
from agent.models.directory import Subject
from agent.models.rounds import Ending, write_round
from agent.preflight import check
from agent.preflight.check import check_learning
from agent.settings import load_settings

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


def details(results: list[CheckResult]) -> list[tuple[State, str]]:
    return [(one.state, one.detail) for one in results]


def test_nothing_is_said_where_no_setting_asks_for_learning(tmp_path: Path) -> None:
    assert look(tmp_path) == []


def test_a_host_that_learns_shows_how_the_last_round_ended(host: Path) -> None:
    write_round(host / "models", WEB, Ending.KEPT, "", at=1_772_366_400.0)
    sentence = "the last round for web ended 2026-03-01 12:00:00 UTC: kept"
    assert details(look(host, MAX_AGE_HOURS="48")) == [(State.OK, sentence)]
    write_round(host / "models", WEB, Ending.TOO_LITTLE, "four windows", at=1_772_366_400.0)
    ((state, detail),) = details(look(host, MAX_AGE_HOURS="48"))
    assert (state, detail.endswith("too_little: four windows")) == (State.ADVICE, True)


def test_before_the_first_round_the_timer_is_named(host: Path) -> None:
    (result,) = look(host, PROBATION_HOURS="48")
    assert (result.state, result.detail) == (State.ADVICE, "no round of autoscaling has ended yet")
    assert "systemctl enable --now trimtab-learn.timer" in result.remedy


def test_decisions_are_named_whose_subjects_are_configured(host: Path) -> None:
    found = [detail for _, detail in details(look(host, ONE_FLEET | ONE_CLUSTER, MAX_AGE_HOURS="48"))]
    assert found == ["no round of autoscaling has ended yet", "no round of admission has ended yet"]
    assert look(host, {}, MAX_AGE_HOURS="48") == []


def test_what_the_learner_may_not_read_or_write_is_named(host: Path) -> None:
    write_round(host / "models", WEB, Ending.KEPT, "", at=1000.0)
    (host / "models").chmod(0o770)
    (host / "ledger.db").chmod(0o600)
    first, second, _ = look(host, MAX_AGE_HOURS="48")
    assert first.detail.startswith(f"{host}/models cannot be written by its group, or does not hand that on")
    assert second.detail.startswith(f"{host}/ledger.db cannot be read by its group")
    assert {first.remedy, second.remedy} == {"run deploy/install.sh --role learn (docs/operate/install.md)"}


def test_what_is_not_there_yet_is_named(tmp_path: Path) -> None:
    found = [detail for _, detail in details(look(tmp_path, MAX_AGE_HOURS="48"))]
    assert found[:2] == [f"{tmp_path}/models is not there yet", f"{tmp_path}/ledger.db is not there yet"]


def test_without_the_packages_of_the_trainer_no_round_can_be_made(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    first, *_ = look(host, MAX_AGE_HOURS="48")
    assert first.detail == "torch and numba are not installed: no round can be made here"
    assert "upgrade.sh --role learn" in first.remedy
