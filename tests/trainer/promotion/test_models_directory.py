"""The models directory: the pointer changes whole or not at all, and every way back is kept."""

import json
from pathlib import Path

import pytest

from agent.model_shelf import ModelShelf
from agent.models import ModelRefused
from domain.errors import BadInput
from tests.models.making import ADD_L, ADD_M, ADD_S, preferring
from tests.trainer.promotion.arena import AT
from trainer.promotion.models_directory import ModelsDirectory


@pytest.fixture
def directory(tmp_path: Path) -> ModelsDirectory:
    return ModelsDirectory(tmp_path / "models")


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [preferring(tmp_path, action) for action in (ADD_S, ADD_M, ADD_L)]


def test_without_a_promotion_there_is_no_champion(directory: ModelsDirectory) -> None:
    assert directory.champion() is None
    with pytest.raises(BadInput, match="nothing can be rolled back"):
        directory.rollback(AT)


def test_the_agent_takes_up_what_is_promoted(directory: ModelsDirectory, models: list[Path]) -> None:
    shelf = ModelShelf(directory.path)
    for model in models:
        directory.promote(model, "report.json", AT)
        assert shelf.look()
        assert shelf.champion is not None
        assert f"{shelf.champion.name}.onnx" == model.name
    directory.rollback(AT)
    assert shelf.look()
    assert shelf.champion is not None
    assert f"{shelf.champion.name}.onnx" == models[1].name


def test_the_pointer_names_model_report_time_and_the_one_before(directory: ModelsDirectory, models: list[Path]) -> None:
    directory.promote(models[0], "report-1.json", AT)
    directory.promote(models[1], "report-2.json", AT)
    assert json.loads((directory.path / "champion.json").read_text()) == {
        "model": models[1].name,
        "previous": models[0].name,
        "report": "report-2.json",
        "at": AT,
    }


def test_rollbacks_walk_back_one_champion_at_a_time_to_none(directory: ModelsDirectory, models: list[Path]) -> None:
    for n, model in enumerate(models):
        directory.promote(model, f"report-{n}.json", AT)
    walked = [directory.rollback(AT) for _ in models]
    assert [(c.model, c.report) if c else None for c in walked] == [
        (models[1].name, "report-1.json"),
        (models[0].name, "report-0.json"),
        None,
    ]
    assert directory.champion() is None
    assert not (directory.path / "champion.json").exists()


def test_after_a_rollback_the_next_promotion_goes_on_from_there(directory: ModelsDirectory, models: list[Path]) -> None:
    directory.promote(models[0], "a", AT)
    directory.promote(models[1], "b", AT)
    directory.rollback(AT)
    now = directory.promote(models[2], "c", AT)
    assert now.previous == models[0].name
    back = directory.rollback(AT)
    assert back is not None
    assert (back.model, back.previous) == (models[0].name, None)


def test_a_model_promoted_again_later_is_rolled_back_to_what_was_before_it_then(
    directory: ModelsDirectory, models: list[Path]
) -> None:
    a, b, c = models
    for model in (a, b, a, c):
        directory.promote(model, "r", AT)
    walked = [directory.rollback(AT) for _ in range(4)]
    assert [w.model if w else None for w in walked] == [a.name, b.name, a.name, None]


def test_a_damaged_earlier_champion_is_not_gone_back_to(directory: ModelsDirectory, models: list[Path]) -> None:
    directory.promote(models[0], "a", AT)
    directory.promote(models[1], "b", AT)
    (directory.path / models[0].name).write_bytes(b"damaged")
    before = (directory.path / "champion.json").read_bytes()
    with pytest.raises(ModelRefused):
        directory.rollback(AT)
    assert (directory.path / "champion.json").read_bytes() == before


def test_a_cut_history_line_is_passed_over(directory: ModelsDirectory, models: list[Path]) -> None:
    directory.promote(models[0], "a", AT)
    with (directory.path / "history.jsonl").open("a") as stream:
        stream.write('{"event": "promo')
    directory.promote(models[1], "b", AT)
    assert [line["model"] for line in directory.history()] == [models[0].name, models[1].name]


def test_a_damaged_pointer_is_told_with_what_to_do(directory: ModelsDirectory, models: list[Path]) -> None:
    directory.promote(models[0], "a", AT)
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
    directory.promote(models[0], "a", AT)
    names = {path.name for path in directory.path.iterdir()}
    assert names == {models[0].name, "champion.json", "history.jsonl"}
