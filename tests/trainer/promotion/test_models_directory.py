"""The models directory: the pointer changes whole or not at all, and every way back is kept."""

import json
from pathlib import Path

import pytest

from agent.models.champions import EVERY_FLEET, Champion
from agent.models.file import ModelRefused
from agent.models.shelf import ModelShelf
from domain.errors import BadInput
from tests.agent.models.making import ADD_L, ADD_M, ADD_S, preferring, reported
from tests.trainer.promotion.arena import AT
from trainer.promotion.models_directory import ModelsDirectory


@pytest.fixture
def directory(tmp_path: Path) -> ModelsDirectory:
    return ModelsDirectory(tmp_path / "models")


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [preferring(tmp_path, action) for action in (ADD_S, ADD_M, ADD_L)]


def promoted(directory: ModelsDirectory, model: Path, fleet: str = EVERY_FLEET) -> Champion:
    """The model promoted with a sealed report of its own, as `trimtab promote` does it."""
    directory.path.mkdir(exist_ok=True)
    return directory.promote(model, reported(directory.path, model.name), AT, fleet)


def report_of(model: Path) -> str:
    return f"report-{model.name[:16]}.json"


def test_without_a_promotion_there_is_no_champion(directory: ModelsDirectory) -> None:
    assert directory.champion() is None
    with pytest.raises(BadInput, match="nothing can be rolled back"):
        directory.rollback(AT)


def test_the_agent_takes_up_what_is_promoted(directory: ModelsDirectory, models: list[Path]) -> None:
    shelf = ModelShelf(directory.path)
    for model in models:
        promoted(directory, model)
        assert shelf.look()
        assert shelf.champion is not None
        assert f"{shelf.champion.name}.onnx" == model.name
    directory.rollback(AT)
    assert shelf.look()
    assert shelf.champion is not None
    assert f"{shelf.champion.name}.onnx" == models[1].name


def test_the_pointer_names_model_report_time_and_the_one_before(directory: ModelsDirectory, models: list[Path]) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    assert json.loads((directory.path / "champion.json").read_text()) == {
        "model": models[1].name,
        "previous": models[0].name,
        "report": report_of(models[1]),
        "at": AT,
    }


def test_rollbacks_walk_back_one_champion_at_a_time_to_none(directory: ModelsDirectory, models: list[Path]) -> None:
    for model in models:
        promoted(directory, model)
    walked = [directory.rollback(AT) for _ in models]
    assert [(c.model, c.report) if c else None for c in walked] == [
        (models[1].name, report_of(models[1])),
        (models[0].name, report_of(models[0])),
        None,
    ]
    assert directory.champion() is None
    assert not (directory.path / "champion.json").exists()


def test_after_a_rollback_the_next_promotion_goes_on_from_there(directory: ModelsDirectory, models: list[Path]) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    directory.rollback(AT)
    now = promoted(directory, models[2])
    assert now.previous == models[0].name
    back = directory.rollback(AT)
    assert back is not None
    assert (back.model, back.previous) == (models[0].name, None)


def test_a_model_promoted_again_later_is_rolled_back_to_what_was_before_it_then(
    directory: ModelsDirectory, models: list[Path]
) -> None:
    a, b, c = models
    for model in (a, b, a, c):
        promoted(directory, model)
    walked = [directory.rollback(AT) for _ in range(4)]
    assert [w.model if w else None for w in walked] == [a.name, b.name, a.name, None]


def test_a_damaged_earlier_champion_is_not_gone_back_to(directory: ModelsDirectory, models: list[Path]) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    (directory.path / models[0].name).write_bytes(b"damaged")
    before = (directory.path / "champion.json").read_bytes()
    with pytest.raises(ModelRefused):
        directory.rollback(AT)
    assert (directory.path / "champion.json").read_bytes() == before


def test_a_cut_history_line_is_passed_over(directory: ModelsDirectory, models: list[Path]) -> None:
    promoted(directory, models[0])
    with (directory.path / "history.jsonl").open("a") as stream:
        stream.write('{"event": "promo')
    promoted(directory, models[1])
    assert [line["model"] for line in directory.history()] == [models[0].name, models[1].name]


def test_a_damaged_pointer_is_told_with_what_to_do(directory: ModelsDirectory, models: list[Path]) -> None:
    promoted(directory, models[0])
    (directory.path / "champion.json").write_text("{")
    with pytest.raises(BadInput, match="put back a good one"):
        directory.champion()


def test_a_pointer_that_leads_elsewhere_is_refused(directory: ModelsDirectory) -> None:
    with pytest.raises(BadInput, match="beside it"):
        directory.model_path("../other.onnx")


def test_two_promotions_do_not_run_at_once(directory: ModelsDirectory) -> None:
    with directory.locked(), pytest.raises(BadInput, match="another promotion"), directory.locked():
        pass


def test_no_half_written_file_is_left(directory: ModelsDirectory, models: list[Path]) -> None:
    promoted(directory, models[0])
    names = {path.name for path in directory.path.iterdir()}
    assert names == {models[0].name, report_of(models[0]), "champion.json", "history.jsonl"}


def test_a_fleet_has_a_champion_of_its_own_and_goes_back_to_that_of_every_fleet(
    directory: ModelsDirectory, models: list[Path]
) -> None:
    every, first, second = models
    promoted(directory, every)
    promoted(directory, first, "web")
    promoted(directory, second, "web")
    names = [champion.model for champion in (directory.champion("web"), directory.champion("other")) if champion]
    assert names == [second.name, every.name]
    walked = [directory.rollback(AT, "web") for _ in range(2)]
    assert [w.model if w else None for w in walked] == [first.name, None]
    now = directory.champion("web")
    assert now is not None
    assert now.model == every.name
    with pytest.raises(BadInput, match="the fleet web has none of its own: nothing can be rolled back"):
        directory.rollback(AT, "web")


def test_an_earlier_pointer_keeps_its_champion_when_a_fleet_gets_one_of_its_own(
    directory: ModelsDirectory, models: list[Path]
) -> None:
    directory.path.mkdir()
    earlier = {"model": directory.store(models[0].read_bytes(), models[0].name).name, "previous": None}
    earlier |= {"report": reported(directory.path, models[0].name), "at": AT}
    (directory.path / "champion.json").write_text(json.dumps(earlier))
    promoted(directory, models[1], "web")
    held = json.loads((directory.path / "champion.json").read_text())
    assert {name: held[name] for name in earlier} == earlier
    assert held["fleets"]["web"]["model"] == models[1].name


def test_a_rollback_of_every_fleet_names_the_fleets_that_have_one(
    directory: ModelsDirectory, models: list[Path]
) -> None:
    promoted(directory, models[0], "web")
    with pytest.raises(BadInput, match=r"nothing can be rolled back; fleets with one of their own \(--fleet\): web"):
        directory.rollback(AT)


def test_an_earlier_champion_that_the_agent_would_refuse_is_not_gone_back_to(
    directory: ModelsDirectory, models: list[Path]
) -> None:
    promoted(directory, models[0])
    promoted(directory, models[1])
    (directory.path / report_of(models[0])).unlink()
    before = (directory.path / "champion.json").read_bytes()
    with pytest.raises(BadInput, match="it is missing or damaged"):
        directory.rollback(AT)
    assert (directory.path / "champion.json").read_bytes() == before
