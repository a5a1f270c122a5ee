"""The models directory: the pointer changes whole or not at all, and every way back is kept."""

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import EVERY_FLEET, Champion, ModelRefused, read_model_file
from agent.models.file import load_model
from domain.errors import BadInput
from domain.subject import Subject
from tests.agent.models.making import reported
from trainer.kit import files
from trainer.promotion.directory import ModelsWriter, sealed

AT = "2026-03-01T12:00:00Z"
WEB, OTHER = Subject("autoscaling", "web"), Subject("autoscaling", "other")


def promoted(directory: ModelsWriter, model: Path, subject: Subject = EVERY_FLEET) -> Champion:
    """The model promoted with a sealed report of its own, as `trimtab promote` does it."""
    directory.path.mkdir(exist_ok=True)
    report = reported(directory.path, model.name, of=subject)
    return directory.promote(read_model_file(model), subject, report, AT, load_model)


def report_of(model: Path) -> str:
    return f"report-{model.name[:16]}.json"


def test_without_a_promotion_there_is_no_champion(directory: ModelsWriter) -> None:
    assert directory.champion(EVERY_FLEET) is None
    with pytest.raises(BadInput, match="can be rolled back"):
        directory.rollback(AT, EVERY_FLEET, load_model)


def test_the_agent_takes_up_what_is_promoted(directory: ModelsWriter, models: list[Path]) -> None:
    shelf = ModelShelf(directory.path)
    for model in models:
        promoted(directory, model)
        assert shelf.look()
        assert shelf.champion is not None
        assert f"{shelf.champion.name}.onnx" == model.name
    directory.rollback(AT, EVERY_FLEET, load_model)
    assert shelf.look()
    assert shelf.champion is not None
    assert f"{shelf.champion.name}.onnx" == models[1].name


def test_the_pointer_names_model_report_time_and_the_one_before(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    assert json.loads((directory.path / "champion.json").read_text()) == {
        "model": models[1].name,
        "previous": models[0].name,
        "report": report_of(models[1]),
        "at": AT,
    }


def test_rollbacks_walk_back_one_champion_at_a_time_to_none(directory: ModelsWriter, models: list[Path]) -> None:
    for model in models:
        promoted(directory, model)
    walked = [directory.rollback(AT, EVERY_FLEET, load_model) for _ in models]
    assert [(c.model, c.report) if c else None for c in walked] == [
        (models[1].name, report_of(models[1])),
        (models[0].name, report_of(models[0])),
        None,
    ]
    assert directory.champion(EVERY_FLEET) is None
    assert not (directory.path / "champion.json").exists()


def test_after_a_rollback_the_next_promotion_goes_on_from_there(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    directory.rollback(AT, EVERY_FLEET, load_model)
    now = promoted(directory, models[2])
    assert now.previous == models[0].name
    back = directory.rollback(AT, EVERY_FLEET, load_model)
    assert back is not None
    assert (back.model, back.previous) == (models[0].name, None)


def test_a_model_promoted_again_later_is_rolled_back_to_what_was_before_it_then(
    directory: ModelsWriter, models: list[Path]
) -> None:
    a, b, c = models
    for model in (a, b, a, c):
        promoted(directory, model)
    walked = [directory.rollback(AT, EVERY_FLEET, load_model) for _ in range(4)]
    assert [w.model if w else None for w in walked] == [a.name, b.name, a.name, None]


def test_rollbacks_of_two_models_in_turn_end(directory: ModelsWriter, models: list[Path]) -> None:
    a, b, _ = models
    for model in (a, b, a, b):
        promoted(directory, model)
    walked = [directory.rollback(AT, EVERY_FLEET, load_model) for _ in range(4)]
    assert [w.model if w else None for w in walked] == [a.name, b.name, a.name, None]


def test_the_way_to_day_0_is_one_change_that_reads_no_earlier_file(directory: ModelsWriter, models: list[Path]) -> None:
    a, b, c = models
    for model in (a, b, a, b):
        promoted(directory, model)
    web = promoted(directory, c, WEB)
    (directory.path / a.name).unlink()
    count = len(directory.history())
    assert directory.to_day_0(AT, EVERY_FLEET, "a loss", of=b.name) is None
    assert dict(directory.champions()) == {WEB: web}
    (line,) = directory.history()[count:]
    assert (line["event"], line["left"], line["model"], line["reason"]) == ("rolled back", b.name, "", "a loss")
    with pytest.raises(BadInput, match="can be rolled back"):
        directory.to_day_0(AT, EVERY_FLEET, "again")


def test_the_way_to_day_0_takes_back_nothing_that_came_since(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    with pytest.raises(BadInput, match="taken the place"):
        directory.to_day_0(AT, EVERY_FLEET, "a loss", of=models[1].name)


@pytest.mark.parametrize("damaged", [False, True])
def test_the_way_to_day_0_may_end_at_the_last_choice_of_a_person_that_can_decide(
    directory: ModelsWriter, models: list[Path], damaged: bool
) -> None:
    a, b, c = models
    promoted(directory, a)
    forced = directory.force(read_model_file(b), EVERY_FLEET, "mine", AT, load_model)
    promoted(directory, c)
    promoted(directory, a)
    if damaged:
        (directory.path / b.name).write_bytes(b"damaged")
    back = directory.to_day_0(AT, EVERY_FLEET, "a loss", forced=load_model)
    assert back == (None if damaged else forced)
    assert directory.champion(EVERY_FLEET) == back


def test_a_choice_of_a_person_that_was_taken_back_is_none(directory: ModelsWriter, models: list[Path]) -> None:
    directory.force(read_model_file(models[0]), EVERY_FLEET, "mine", AT, load_model)
    directory.rollback(AT, EVERY_FLEET, load_model)
    promoted(directory, models[1])
    assert directory.to_day_0(AT, EVERY_FLEET, "a loss", forced=load_model) is None


def test_the_way_to_day_0_waits_for_another_change(
    directory: ModelsWriter, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(directory, models[0])
    with contextlib.ExitStack() as other:
        other.enter_context(directory.locked())
        monkeypatch.setattr("time.sleep", lambda _: other.close())
        assert directory.to_day_0(AT, EVERY_FLEET, "a loss") is None
    monkeypatch.setattr("trainer.promotion.directory.WAITS_S", 0.0)
    promoted(directory, models[0])
    with directory.locked(), pytest.raises(BadInput, match="another promotion"):
        directory.to_day_0(AT, EVERY_FLEET, "a loss")


def test_a_damaged_earlier_champion_is_not_gone_back_to(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    (directory.path / models[0].name).write_bytes(b"damaged")
    before = (directory.path / "champion.json").read_bytes()
    with pytest.raises(ModelRefused):
        directory.rollback(AT, EVERY_FLEET, load_model)
    assert (directory.path / "champion.json").read_bytes() == before


def test_a_cut_history_line_is_passed_over(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    with (directory.path / "history.jsonl").open("a") as stream:
        stream.write('{"event": "promo')
    promoted(directory, models[1])
    assert [line["model"] for line in directory.history()] == [models[0].name, models[1].name]


def test_a_damaged_pointer_is_named_with_what_to_do(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    (directory.path / "champion.json").write_text("{")
    with pytest.raises(BadInput, match="restore a valid one"):
        directory.champion(EVERY_FLEET)


def test_a_pointer_that_leads_elsewhere_is_refused(directory: ModelsWriter) -> None:
    with pytest.raises(BadInput, match="in the same folder"):
        directory.file_of("../other.onnx")


def test_two_promotions_do_not_run_at_once(directory: ModelsWriter) -> None:
    with directory.locked(), pytest.raises(BadInput, match="another promotion"), directory.locked():
        pass


def test_no_half_written_file_is_left(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    names = {path.name for path in directory.path.iterdir()}
    assert names == {models[0].name, report_of(models[0]), "champion.json", "history.jsonl", "promotion.lock"}


def test_a_fleet_has_its_own_champion_and_goes_back_to_that_of_every_fleet(
    directory: ModelsWriter, models: list[Path]
) -> None:
    every, first, second = models
    promoted(directory, every)
    promoted(directory, first, WEB)
    promoted(directory, second, WEB)
    names = [champion.model for champion in (directory.champion(WEB), directory.champion(OTHER)) if champion]
    assert names == [second.name, every.name]
    walked = [directory.rollback(AT, WEB, load_model) for _ in range(2)]
    assert [w.model if w else None for w in walked] == [first.name, None]
    now = directory.champion(WEB)
    assert now is not None
    assert now.model == every.name
    with pytest.raises(BadInput, match="web has no model"):
        directory.rollback(AT, WEB, load_model)


def test_an_earlier_pointer_keeps_its_champion_when_a_fleet_gets_one_of_its_own(
    directory: ModelsWriter, models: list[Path]
) -> None:
    directory.path.mkdir()
    earlier = {"model": directory.store(models[0].read_bytes(), models[0].name).name, "previous": None}
    earlier |= {"report": reported(directory.path, models[0].name), "at": AT}
    (directory.path / "champion.json").write_text(json.dumps(earlier))
    promoted(directory, models[1], WEB)
    held = json.loads((directory.path / "champion.json").read_text())
    assert {name: held[name] for name in earlier} == earlier
    assert held["fleets"]["web"]["model"] == models[1].name


def test_a_rollback_of_every_fleet_names_the_fleets_that_have_one(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0], WEB)
    with pytest.raises(BadInput, match="subjects with a model: web"):
        directory.rollback(AT, EVERY_FLEET, load_model)


def test_an_earlier_champion_that_the_agent_would_refuse_is_not_gone_back_to(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    (directory.path / report_of(models[0])).unlink()
    before = (directory.path / "champion.json").read_bytes()
    with pytest.raises(BadInput, match="missing or damaged"):
        directory.rollback(AT, EVERY_FLEET, load_model)
    assert (directory.path / "champion.json").read_bytes() == before


def test_what_was_forced_decides_and_its_reason_is_in_report_and_history(
    directory: ModelsWriter, models: list[Path]
) -> None:
    champion = directory.force(read_model_file(models[0]), WEB, "the trainer is down", AT, load_model)
    assert directory.check(WEB, champion)["forced"] == "the trainer is down"
    assert [(line["event"], line["reason"]) for line in directory.history(WEB)] == [("forced", "the trainer is down")]
    promoted(directory, models[1], WEB)
    back = directory.rollback(AT, WEB, load_model)
    assert back is not None
    assert (back.model, back.report) == (models[0].name, champion.report)


def test_a_champion_that_is_put_in_use_again_keeps_the_one_before_it(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    again = directory.force(read_model_file(models[1]), EVERY_FLEET, "its key was lost", AT, load_model)
    assert again.previous == models[0].name
    back = directory.rollback(AT, EVERY_FLEET, load_model)
    assert back is not None
    assert (back.model, back.previous) == (models[0].name, None)


def test_a_reason_must_be_given(directory: ModelsWriter, models: list[Path]) -> None:
    with pytest.raises(BadInput, match="without an evaluation"):
        directory.force(read_model_file(models[0]), WEB, "  ", AT, load_model)
    assert directory.champions() == {}


def test_a_report_of_an_earlier_version_speaks_for_its_fleet_alone(directory: ModelsWriter, models: list[Path]) -> None:
    directory.path.mkdir()
    old = {"format": 1, "fleet": "web", "passed": True, "challenger": {"sha256": models[0].stem}}
    (directory.path / "report-old.json").write_text(json.dumps(sealed(old, None)))
    champion = Champion(models[0].name, None, "report-old.json", AT)
    directory.check(WEB, champion)
    with pytest.raises(BadInput, match="not of autoscaling other"):
        directory.check(OTHER, champion)


def test_subjects_of_other_decisions_stand_beside_fleets_and_an_earlier_version_reads_the_fleets(
    directory: ModelsWriter, models: list[Path]
) -> None:
    pool = Subject("oversubscription", "web")
    promoted(directory, models[0])
    promoted(directory, models[1], WEB)
    directory.force(read_model_file(models[2]), pool, "a trial", AT, load_model)
    held = json.loads((directory.path / "champion.json").read_text())
    assert (held["model"], held["fleets"]["web"]["model"]) == (models[0].name, models[1].name)
    assert held["subjects"]["oversubscription"]["web"]["model"] == models[2].name
    assert directory.champion(Subject("oversubscription", "other")) is None
    assert [line["event"] for line in directory.history(pool)] == ["forced"]
    assert directory.rollback(AT, pool, load_model) is None
    assert set(directory.champions()) == {EVERY_FLEET, WEB}


def test_on_a_full_disk_the_pointer_stays_and_no_line_is_written(
    directory: ModelsWriter, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(directory, models[0])
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    report = reported(directory.path, models[1].name)
    directory.store(models[1].read_bytes(), models[1].name)
    real = files.write_synced

    def full(path: Path, content: bytes) -> None:
        if b'"previous"' in content:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(files, "write_synced", full)
    with pytest.raises(OSError, match="No space left"):
        directory.promote(read_model_file(models[1]), EVERY_FLEET, report, AT, load_model)
    after = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    assert {name: after[name] for name in before} == before
    assert not any(name.endswith(".part") for name in after)
    monkeypatch.undo()
    assert promoted(directory, models[1]).previous == models[0].name


def test_a_history_line_that_a_full_disk_cut_is_followed_by_a_whole_one(
    directory: ModelsWriter, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(directory, models[0])
    real = os.write

    def cut(handle: int, content: bytes) -> int:
        if b'"event"' in content:
            real(handle, content[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, content)

    monkeypatch.setattr(os, "write", cut)
    with pytest.raises(OSError, match="No space left"):
        promoted(directory, models[1])
    monkeypatch.undo()
    champion = directory.champion(EVERY_FLEET)
    assert champion is not None
    assert champion.model == models[0].name
    promoted(directory, models[1])
    assert [line["model"] for line in directory.history()] == [models[0].name, models[1].name]


@pytest.mark.parametrize("name", ["history.jsonl", "promotion.lock", ".champion.json.{pid}.part"])
def test_no_link_is_written_through(directory: ModelsWriter, models: list[Path], tmp_path: Path, name: str) -> None:
    directory.path.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    (directory.path / name.format(pid=os.getpid())).symlink_to(outside)
    with contextlib.suppress(OSError):
        promoted(directory, models[0])
    assert outside.read_text() == "untouched"


def test_a_model_that_was_replaced_by_a_link_is_not_read_and_a_promotion_puts_the_file_back(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    held = directory.path / models[0].name
    held.unlink()
    held.symlink_to(models[0])
    with pytest.raises(ModelRefused, match="symbolic link"):
        directory.read(models[0].name)
    promoted(directory, models[0])
    assert not held.is_symlink()
    assert directory.read(models[0].name).content == models[0].read_bytes()


def test_another_model_that_became_champion_meanwhile_is_not_overwritten(
    directory: ModelsWriter, models: list[Path]
) -> None:
    promoted(directory, models[0])
    report = reported(directory.path, models[2].name)
    with pytest.raises(BadInput, match="changed during the runs"):
        directory.promote(read_model_file(models[2]), EVERY_FLEET, report, AT, load_model, beaten=models[1].name)
    with directory.locked(), pytest.raises(BadInput, match="another promotion"):
        promoted(directory, models[1])


def test_a_model_is_not_promoted_by_the_report_of_another_subject(directory: ModelsWriter, models: list[Path]) -> None:
    directory.path.mkdir()
    report = reported(directory.path, models[0].name, of=OTHER)
    with pytest.raises(BadInput, match="not of autoscaling web"):
        directory.promote(read_model_file(models[0]), WEB, report, AT, load_model)
    assert directory.champions() == {}


def test_a_model_that_was_removed_is_not_gone_back_to(directory: ModelsWriter, models: list[Path]) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    (directory.path / models[0].name).unlink()
    with pytest.raises(ModelRefused, match="a file that can be read"):
        directory.rollback(AT, EVERY_FLEET, load_model)
    champion = directory.champion(EVERY_FLEET)
    assert champion is not None
    assert champion.model == models[1].name
