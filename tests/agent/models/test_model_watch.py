"""What the agent says of its models: which one decides for which fleet, at other prices, and why one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.model_watch import ModelWatch
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import EVERY_FLEET, read_model_file
from agent.rails.base import RailLimits
from agent.view.board import ServiceBoard
from domain.decisions import Reason
from domain.fleet import Fleet, Group, VmType
from domain.subject import Subject, fleet_subject
from tests.agent.models.making import ADD_M, ADD_S, NOTHING, preferring, promote
from tests.agent.models.test_probation import tried
from trainer.promotion.directory import ModelsWriter

TYPES = (VmType("m5a.large", 2, 8.0, 0.2), VmType("m5a.xlarge", 4, 16.0, 0.4), VmType("m5a.2xlarge", 8, 32.0, 0.9))
FLEET = Fleet("web", tuple(Group(key, f"web-{key}", kind, 0, 10) for key, kind in zip("sml", TYPES, strict=True)))
WEB = fleet_subject("web")


class Watched:
    """A watch over one fleet, with what it noted."""

    def __init__(
        self,
        models: Path,
        policy: str = "learned",
        shadows: tuple[str, ...] = (),
        ready: str | None = None,
        decided: str = "",
    ):
        self.board = ServiceBoard(0.0)
        self.notes: list[tuple[Reason, str, Subject]] = []
        managed = ManagedFleet(FLEET, RailLimits(), policy, shadows)
        shelf = ModelShelf(models, models / "nothing-shipped")
        self.watch = ModelWatch(
            shelf,
            self.board.problem,
            lambda *note: self.notes.append(note),
            lambda: (managed,),
            ready,
            {FLEET.name: decided},
        )

    @property
    def problem(self) -> str:
        return self.board.read().problems.get("model", "")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


def test_what_decides_is_noted_once_with_prices_that_are_not_those_of_the_training(models: Path) -> None:
    path = preferring(models, NOTHING)
    promote(models, path)
    watched = Watched(models)
    for _ in range(3):
        watched.watch.look()
    prices = "prices are not those of its training: l costs $0.9 an hour, $0.8 in training"
    assert watched.notes == [(Reason.MODEL_READY, f"learned:{path.stem} decides, promoted; {prices}", WEB)]
    assert (watched.watch.model, watched.problem) == (path.stem, "")


def test_a_change_of_the_champion_names_both_models_and_the_reason_and_is_noted_once_also_after_a_restart(
    models: Path,
) -> None:
    first, second = preferring(models, NOTHING), preferring(models, ADD_S)
    promote(models, first)
    watched = Watched(models)
    watched.watch.look()
    directory, at = ModelsWriter(models), "2026-11-29T12:00:00Z"
    body = {"passed": True, "challenger": {"sha256": second.stem}, "overall": {"relative": {"mean": -0.05}}}
    report = directory.store_report(body, WEB, at)
    directory.promote(read_model_file(second), WEB, report, at, lambda path: path)
    for _ in range(2):
        watched.watch.look()
    directory.rollback(at, WEB, lambda path: path, reason="it cost more")
    watched.watch.look()
    details = [detail for _, detail, _ in watched.notes]
    assert len(details) == 3
    assert f"learned:{second.stem} decides, promoted, in place of learned:{first.stem}" in details[1]
    assert "cost -5.0% at the gate" in details[1]
    assert f"learned:{first.stem} decides, promoted, in place of learned:{second.stem}" in details[2]
    again = Watched(models, decided=f"learned:{first.stem}")
    again.watch.look()
    assert (again.notes, again.watch.model) == ([], first.stem)
    missed = Watched(models, decided=f"learned:{second.stem}")
    missed.watch.look()
    assert f"in place of learned:{second.stem}" in missed.notes[0][1]


def test_why_a_model_decides_that_passed_no_evaluation_is_noted(models: Path) -> None:
    path = preferring(models, NOTHING)
    ModelsWriter(models).force(read_model_file(path), EVERY_FLEET, "a trial", "now", lambda at: at)
    watched = Watched(models)
    watched.watch.look()
    assert "forced: a trial" in watched.notes[0][1]
    fleet = watched.watch.fleets()[0].fleet
    assert watched.watch.shelf.origin(f"model:{path}", fleet).startswith("forced: ")


def test_a_refused_champion_is_a_problem_until_a_good_one_comes_and_the_old_one_is_still_named(models: Path) -> None:
    first, second = preferring(models, NOTHING), preferring(models, ADD_S)
    promote(models, first)
    watched = Watched(models)
    watched.watch.look()
    whole = second.read_bytes()
    second.write_bytes(whole[1:])
    promote(models, second)
    for _ in range(3):
        watched.watch.look()
    assert "damaged or was renamed" in watched.problem
    assert watched.watch.model == first.stem
    assert [reason for reason, _, _ in watched.notes] == [Reason.MODEL_READY, Reason.MODEL_REFUSED]
    second.write_bytes(whole)
    watched.watch.look()
    assert (watched.watch.model, watched.problem) == (second.stem, "")


def test_a_reload_reads_a_refused_file_again_though_nothing_shows_that_it_changed(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = preferring(models, NOTHING)
    promote(models, path)
    watched = Watched(models)
    whole = path.read_bytes()
    monkeypatch.setattr("agent.models.shelf._signature", lambda at: (0, 0, 0) if at and at.exists() else None)
    path.write_bytes(whole[:-1])
    watched.watch.look()
    path.write_bytes(whole)
    watched.watch.look()
    assert "damaged" in watched.problem
    watched.watch.reload()
    assert (watched.watch.model, watched.problem) == (path.stem, "")


def test_without_any_model_the_problem_says_what_to_do(models: Path) -> None:
    watched = Watched(models)
    watched.watch.look()
    assert "model:FILE" in watched.problem


def test_a_shadow_is_noted_as_one(models: Path) -> None:
    path = preferring(models, NOTHING)
    promote(models, path)
    watched = Watched(models, policy="queue-rule", shadows=("learned",))
    watched.watch.look()
    assert watched.notes[0][1].startswith(f"learned:{path.stem} is a shadow")


def test_a_fleet_of_rules_has_no_model_and_no_problem(models: Path) -> None:
    watched = Watched(models, policy="queue-rule")
    watched.watch.look()
    assert (watched.watch.model, watched.problem, watched.notes) == ("", "", [])


def test_a_pointer_that_may_name_a_model_on_probation_must_be_readable_for_a_fleet_of_rules_too(models: Path) -> None:
    (models / "champion.json").write_text("{")
    watched = Watched(models, policy="queue-rule")
    watched.watch.look()
    assert "it is damaged" in watched.problem
    assert [reason for reason, _, _ in watched.notes] == [Reason.MODEL_REFUSED]


def test_a_model_on_probation_is_noted_once_and_one_that_is_refused_is_a_problem(models: Path, tmp_path: Path) -> None:
    path = preferring(tmp_path, NOTHING)
    one = tried(ModelsWriter(models), path)
    watched = Watched(models, policy="queue-rule")
    for _ in range(2):
        watched.watch.look()
    words = f"learned:{path.stem} is on probation: its proposals are recorded and not done; prices are not those"
    assert [(reason, fleet, words in detail) for reason, detail, fleet in watched.notes] == [
        (Reason.MODEL_READY, WEB, True)
    ]
    (models / one.report).write_text("{}")
    watched.watch.look()
    assert watched.problem.startswith("on probation for web: ")
    assert [reason for reason, _, _ in watched.notes] == [Reason.MODEL_READY, Reason.MODEL_REFUSED]


def test_several_shadows_are_each_noted_once(models: Path, tmp_path: Path) -> None:
    promote(models, preferring(models, NOTHING))
    files = tuple(f"model:{preferring(tmp_path, action)}" for action in (ADD_S, ADD_M))
    watched = Watched(models, policy="learned", shadows=files)
    for _ in range(3):
        watched.watch.look()
    assert [" is a shadow, " in detail for _, detail, _ in watched.notes] == [False, True, True]


def test_a_file_of_the_settings_is_held_ready_for_nobody(models: Path) -> None:
    path = preferring(models, NOTHING)
    watched = Watched(models, policy="queue-rule", ready=f"model:{path}")
    watched.watch.look()
    assert watched.watch.model == path.stem


def test_a_model_for_other_vm_types_is_a_problem_and_is_not_said_to_decide(models: Path) -> None:
    promote(models, preferring(models, NOTHING, limits=(3, 3, 3)))
    watched = Watched(models)
    watched.watch.look()
    assert "of at most 3 of 2 cores" in watched.problem
    assert "web has 10 of 2 cores" in watched.problem
    assert [reason for reason, _, _ in watched.notes] == [Reason.MODEL_REFUSED]
