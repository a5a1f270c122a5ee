"""Models on probation: one replacement of the pointer moves one into use, whatever goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import EVERY_FLEET, Champion, ModelRefused, Probationer, Then, read_model_file
from agent.models.file import load_model
from domain.errors import BadInput
from domain.subject import Subject
from tests.agent.models.making import reported
from tests.killed import changes, killed_at
from trainer.promotion.directory import ModelsWriter, sealed

AT, LATER = "2026-03-01T12:00:00Z", "2026-03-04T12:00:00Z"
SINCE_S, HOURS = 1_772_366_400.0, 72.0
WEB, OTHER = Subject("autoscaling", "web"), Subject("autoscaling", "other")


def promoted(directory: ModelsWriter, model: Path, subject: Subject = WEB) -> Champion:
    directory.path.mkdir(exist_ok=True)
    report = reported(directory.path, model.name, directory.key, subject)
    return directory.promote(read_model_file(model), subject, report, AT, load_model)


def tried(
    directory: ModelsWriter,
    model: Path,
    subject: Subject = WEB,
    *,
    against: str | None = "",
    then: Then = Then.PROMOTE,
    **report: Any,
) -> Probationer:
    """The model put on probation against the present champion, with a sealed report of its own."""
    directory.path.mkdir(exist_ok=True)
    now = directory.champion(subject)
    beaten = (now.model if now else None) if against == "" else against
    champion = {"sha256": None if beaten is None else Path(beaten).stem}
    name = reported(directory.path, model.name, directory.key, subject, **({"champion": champion} | report))
    model_file = read_model_file(model)
    return directory.put_on_probation(model_file, subject, name, SINCE_S, HOURS, then, load_model, beaten=beaten)


def in_use(directory: ModelsWriter, subject: Subject = WEB) -> str | None:
    champion = directory.champion(subject)
    return None if champion is None else champion.model


def pointer(directory: ModelsWriter) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((directory.path / "champion.json").read_text())
    return held


def changed_pointer(directory: ModelsWriter, change: Callable[[dict[str, Any]], object]) -> None:
    held = pointer(directory)
    change(held)
    (directory.path / "champion.json").write_text(json.dumps(held))


def test_a_model_on_probation_is_named_in_the_pointer_and_decides_nothing(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    one = tried(directory, models[1])
    assert directory.probationers() == {WEB: one}
    assert (one.against, one.until) == (models[0].name, SINCE_S + HOURS * 3600.0)
    assert pointer(directory)["probation"]["autoscaling"]["web"] == {
        "model": models[1].name,
        "report": f"report-web{models[1].name[:16]}.json",
        "against": models[0].name,
        "since": SINCE_S,
        "hours": HOURS,
        "then": "promote",
    }
    assert in_use(directory) == models[0].name
    assert [line["event"] for line in directory.history(WEB)] == ["promoted", "on probation"]


def test_the_first_model_of_a_fleet_may_be_on_probation(directory: ModelsWriter, models: list[Path]) -> None:
    one = tried(directory, models[0])
    assert (one.against, directory.champions()) == (None, {})
    directory.approve(WEB, LATER, load_model)
    assert in_use(directory) == models[0].name
    assert directory.rollback(LATER, WEB, load_model) is None


def test_an_approval_moves_it_into_use_and_a_rollback_goes_back_to_what_it_was_compared_with(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    tried(directory, models[1])
    now = directory.approve(WEB, LATER, load_model, reason="its promise held")
    assert (now.model, now.previous, now.at) == (models[1].name, models[0].name, LATER)
    assert directory.probationers() == {}
    assert "probation" not in pointer(directory)
    last = directory.history(WEB)[-1]
    assert (last["event"], last["reason"], last["probation_since"]) == ("promoted", "its promise held", SINCE_S)
    back = directory.rollback(LATER, WEB, load_model, reason="dearer than predicted")
    assert back is not None
    assert back.model == models[0].name
    assert directory.history(WEB)[-1]["reason"] == "dearer than predicted"


def test_the_end_of_a_probation_is_kept_with_its_reason(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    tried(directory, models[1])
    with pytest.raises(BadInput, match="give a reason for its end"):
        directory.end_probation(WEB, " ", LATER)
    directory.end_probation(WEB, "it was dearer", LATER)
    last = directory.history(WEB)[-1]
    assert (last["event"], last["model"], last["reason"], last["at"]) == (
        "probation ended",
        models[1].name,
        "it was dearer",
        LATER,
    )
    assert (directory.probationers(), in_use(directory)) == ({}, models[0].name)


def test_without_a_model_on_probation_there_is_nothing_to_approve_or_to_end(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    for act in (
        lambda: directory.approve(WEB, LATER, load_model),
        lambda: directory.end_probation(WEB, "why", LATER),
    ):
        with pytest.raises(BadInput, match="no model is on probation"):
            act()
    assert len(directory.history()) == 1


def test_a_second_challenger_waits_for_the_end_of_the_first(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    first = tried(directory, models[1])
    for again in (models[2], models[1]):
        with pytest.raises(BadInput, match="wait for its end"):
            tried(directory, again)
    assert directory.probationers() == {WEB: first}
    directory.end_probation(WEB, "it was given up", LATER)
    assert tried(directory, models[2]).model == models[2].name


def test_the_champion_itself_is_not_put_on_probation(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    with pytest.raises(BadInput, match="autoscaling web already"):
        tried(directory, models[0])


@pytest.mark.parametrize("hours", [0.0, -1.0, float("inf"), float("nan")])
def test_a_probation_lasts_hours(directory: ModelsWriter, models: list[Path], hours: float) -> None:
    directory.path.mkdir()
    report = reported(directory.path, models[0].name, of=WEB)
    file = read_model_file(models[0])
    with pytest.raises(BadInput, match="give hours above 0"):
        directory.put_on_probation(file, WEB, report, SINCE_S, hours, Then.PROMOTE, load_model, beaten=None)


def test_another_champion_than_the_one_that_was_beaten_is_not_overwritten(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    with pytest.raises(BadInput, match="changed during the runs"):
        tried(directory, models[1], against=models[2].name)
    tried(directory, models[1])
    promoted(directory, models[2])
    with pytest.raises(BadInput, match=f"not the one with which {models[1].name} was compared, {models[0].name}"):
        directory.approve(WEB, LATER, load_model)
    assert (in_use(directory), list(directory.probationers())) == (models[2].name, [WEB])


def test_a_rollback_during_a_probation_leaves_it_there_and_no_approval_undoes_it(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    one = tried(directory, models[2])
    directory.rollback(LATER, WEB, load_model)
    assert (in_use(directory), directory.probationers()) == (models[0].name, {WEB: one})
    with pytest.raises(BadInput, match="learn again"):
        directory.approve(WEB, LATER, load_model)
    assert in_use(directory) == models[0].name


def test_a_rollback_of_another_model_than_the_one_meant_is_refused(directory: ModelsWriter, models: list[Path]) -> None:
    for model in models[:2]:
        promoted(directory, model)
    with pytest.raises(BadInput, match="has taken the place of"):
        directory.rollback(LATER, WEB, load_model, of=models[2].name)
    assert in_use(directory) == models[1].name


def test_a_model_that_is_promoted_by_hand_is_no_longer_on_probation(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    tried(directory, models[1])
    promoted(directory, models[1])
    assert (in_use(directory), directory.probationers()) == (models[1].name, {})


def test_changes_of_others_keep_what_is_on_probation(directory: ModelsWriter, models: list[Path]) -> None:
    one = tried(directory, models[1])
    promoted(directory, models[0], OTHER)
    pool = tried(directory, models[2], Subject("oversubscription", "web"))
    directory.rollback(LATER, OTHER, load_model)
    assert directory.probationers() == {WEB: one, Subject("oversubscription", "web"): pool}


@pytest.mark.parametrize("key", [None, b"0123456789abcdef"])
def test_a_report_that_was_tampered_with_refuses(tmp_path: Path, models: list[Path], key: bytes | None) -> None:
    directory = ModelsWriter(tmp_path / "models", key)
    promoted(directory, models[0])
    one = tried(directory, models[1])
    report = directory.path / one.report
    whole = report.read_text()
    report.write_text(whole.replace('"passed": true', '"passed": true, "more": 1'))
    with pytest.raises(BadInput, match="its seal does not hold"):
        directory.approve(WEB, LATER, load_model)
    if key is not None:
        forged = {name: value for name, value in json.loads(whole).items() if name not in ("sha256", "signature")}
        report.write_text(json.dumps(sealed(forged, None)))
        with pytest.raises(BadInput, match="it is not signed"):
            directory.approve(WEB, LATER, load_model)
    assert (in_use(directory), list(directory.probationers())) == (models[0].name, [WEB])
    report.write_text(whole)
    directory.approve(WEB, LATER, load_model)
    assert in_use(directory) == models[1].name


@pytest.mark.parametrize(
    ("of", "report", "why"),
    [
        (WEB, {"passed": False}, "did not pass"),
        (OTHER, {}, "it is of autoscaling other, not of autoscaling web"),
        (WEB, {"champion": {"sha256": "f" * 64}}, "it is of a comparison with f{64}"),
    ],
)
def test_no_report_no_probation(
    directory: ModelsWriter, models: list[Path], of: Subject, report: dict[str, Any], why: str
) -> None:
    promoted(directory, models[0])
    before = (directory.path / "champion.json").read_bytes()
    name = reported(directory.path, models[1].name, None, of, **({"champion": {"sha256": models[0].stem}} | report))
    file, beaten = read_model_file(models[1]), models[0].name
    with pytest.raises(BadInput, match=why):
        directory.put_on_probation(file, WEB, name, SINCE_S, HOURS, Then.PROMOTE, load_model, beaten=beaten)
    assert (directory.path / "champion.json").read_bytes() == before


def test_a_pointer_that_names_another_comparison_than_the_report_is_not_believed(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    tried(directory, models[1])
    promoted(directory, models[2])
    changed_pointer(directory, lambda held: held["probation"]["autoscaling"]["web"].update(against=models[2].name))
    with pytest.raises(BadInput, match="of a comparison with"):
        directory.approve(WEB, LATER, load_model)
    assert in_use(directory) == models[2].name


def test_a_file_that_was_changed_on_probation_does_not_come_into_use(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    tried(directory, models[1])
    (directory.path / models[1].name).write_bytes(b"another")
    with pytest.raises(ModelRefused, match="it is damaged"):
        directory.approve(WEB, LATER, load_model)
    assert in_use(directory) == models[0].name


@pytest.mark.parametrize(
    "damage", [{"hours": "many"}, {"hours": -1.0}, {"then": "dance"}, {"since": None}, {"model": "../x.onnx"}]
)
def test_a_damaged_entry_is_named_and_takes_no_champion_with_it(
    directory: ModelsWriter, models: list[Path], damage: dict[str, Any]
) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    tried(directory, models[2])
    changed_pointer(directory, lambda held: held["probation"]["autoscaling"]["web"].update(damage))
    with pytest.raises(BadInput, match=next(iter(damage)) if "model" not in damage else "in the same folder"):
        directory.probationers()
    shelf = ModelShelf(directory.path)
    assert shelf.look()
    assert (shelf.probationer("web"), shelf.champions["web"].name) == (None, models[1].stem)
    assert "on probation" in shelf.refusal
    directory.rollback(LATER, WEB, load_model)
    assert in_use(directory) == models[0].name
    directory.end_probation(WEB, "its entry was damaged", LATER)
    assert directory.probationers() == {}


def test_a_promotion_from_probation_that_is_killed_anywhere_leaves_the_old_pointer_or_the_new_one(
    tmp_path: Path, models: list[Path]
) -> None:
    """Each point is a process of its own, ended by SIGKILL; what it left is then read and gone on with."""

    def begun(name: str) -> ModelsWriter:
        directory = ModelsWriter(tmp_path / name)
        promoted(directory, models[0])
        tried(directory, models[1])
        return directory

    def approve(directory: ModelsWriter) -> None:
        directory.approve(WEB, LATER, lambda path: path)

    whole = begun("whole")
    old = (whole.path / "champion.json").read_bytes()
    points = changes(lambda: approve(whole))
    new = (whole.path / "champion.json").read_bytes()
    assert points > 5
    seen = set()
    for at in range(1, points + 1):
        directory = begun(f"killed-{at}")
        assert killed_at(partial(approve, directory), at)
        held = (directory.path / "champion.json").read_bytes()
        assert held in (old, new)
        seen.add(held)
        if held == old:
            approve(directory)
        assert (in_use(directory), directory.probationers()) == (models[1].name, {})
        back = directory.rollback(LATER, WEB, lambda path: path)
        assert back is not None
        assert back.model == models[0].name
    assert seen == {old, new}


def test_the_agent_takes_up_what_is_on_probation_beside_the_champion(
    directory: ModelsWriter, models: list[Path]
) -> None:
    shelf = ModelShelf(directory.path)
    assert shelf.probationer("web") is None
    promoted(directory, models[0])
    tried(directory, models[1])
    assert shelf.probationer("web") == f"learned:{models[1].stem}"
    assert shelf.probationer("other") is None
    assert shelf.champions["web"].name == models[0].stem
    directory.approve(WEB, LATER, load_model)
    assert shelf.probationer("web") is None
    assert (shelf.champions["web"].name, shelf.refusal) == (models[1].stem, "")


def test_one_for_all_fleets_is_on_probation_for_those_without_a_champion_of_their_own(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0], OTHER)
    tried(directory, models[1], EVERY_FLEET)
    shelf = ModelShelf(directory.path)
    assert (shelf.probationer("web"), shelf.probationer("other")) == (f"learned:{models[1].stem}", None)
