"""The shelf of models: the champion of a directory, a file, one that comes along; swapped whole or not at all."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agent.autoscaling.policies.learned_models import ModelShelf, ModelUnfit
from agent.models.card import other_prices
from agent.models.file import ModelRefused, load_model
from agent.models.shelf import ModelMissing
from agent.models.shipped import shipped_models
from domain.errors import BadInput
from domain.fleet import Fleet, Group, VmType
from tests.agent.models.making import ADD_M, ADD_S, NOTHING, preferring, promote, reported
from trainer.autoscaling.ppo_runs import configuration

TYPES = (VmType("m5a.large", 2, 8.0, 0.2), VmType("m5a.xlarge", 4, 16.0, 0.4), VmType("m5a.2xlarge", 8, 32.0, 0.8))


def fleet(limits: tuple[int, int, int] = (10, 10, 10)) -> Fleet:
    keys = zip("sml", TYPES, limits, strict=True)
    return Fleet("web", tuple(Group(key, f"web-{key}", kind, 0, limit) for key, kind, limit in keys))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """What comes along: a model for at most three VMs of a type, then one for ten."""
    directory = tmp_path / "shipped"
    directory.mkdir()
    small, large = preferring(directory, NOTHING, limits=(3, 3, 3)), preferring(directory, NOTHING)
    index = {
        "small": {"sha256": small.stem, "trained_for": "the dry run"},
        "large": {"sha256": large.stem, "trained_for": "train-text"},
    }
    (directory / "index.json").write_text(json.dumps(index))
    return directory


def named(path: Path) -> str:
    return f"learned:{path.stem}"


def test_learned_is_the_champion_of_the_directory(models: Path, shipped: Path) -> None:
    path = preferring(models, ADD_S)
    promote(models, path)
    shelf = ModelShelf(models, shipped)
    assert shelf.resolve("learned", fleet()) == named(path)
    assert shelf.policy(named(path), fleet()).name == named(path)


def test_without_a_champion_it_is_the_first_shipped_model_that_fits_the_fleet(models: Path, shipped: Path) -> None:
    shelf = ModelShelf(models, shipped)
    index = json.loads((shipped / "index.json").read_text())
    assert shelf.resolve("learned", fleet()) == f"learned:{index['large']['sha256']}"
    assert shelf.resolve("learned", fleet((3, 3, 3))) == f"learned:{index['small']['sha256']}"
    with pytest.raises(BadInput, match=r"model:FILE .small: it"):
        shelf.resolve("learned", fleet((3, 3, 4)))


def test_with_nothing_at_hand_the_shelf_says_so(models: Path, tmp_path: Path) -> None:
    for shelf in (ModelShelf(models, tmp_path), ModelShelf(None, tmp_path), ModelShelf(tmp_path / "none", tmp_path)):
        with pytest.raises(BadInput, match="no model comes with"):
            shelf.resolve("learned", fleet())


def test_every_model_that_comes_along_is_whole_and_says_what_it_is_for() -> None:
    for model in shipped_models():
        assert load_model(model.path).name == model.sha256
        assert model.trained_for


def test_the_policy_trained_as_published_comes_along_and_is_nobodys_default() -> None:
    *preferred, last = shipped_models()
    assert last.name == "ppo-lstm-published"
    card = load_model(last.path).card
    assert (card.observation, card.action_set, card.network, card.hidden_size) == ("obs-7", "act-7", "lstm", 128)
    assert not card.masked
    settings = card.training["config"]
    published = asdict(
        configuration("ppo-lstm-published", task="train-text", seed=settings["seed"], total_steps=1_000_000)
    )
    # The card has options of that trainer that are gone; it used none of them.
    unused = {"imitate": "", "imitation_rounds": 0, "value_updates": 0, "queue_gain": 1.0}
    assert {name: settings[name] for name in unused} == unused
    assert published == {name: settings[name] for name in published}
    assert ModelShelf(None).resolve("learned", fleet()) in {f"learned:{model.sha256}" for model in preferred}


def test_an_index_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"small": {"sha256": 3}}')
    with pytest.raises(BadInput, match=r"json.: small.sha256"):
        ModelShelf(None, tmp_path).resolve("learned", fleet())


def test_a_file_is_named_by_its_hash_once_verified(models: Path, tmp_path: Path) -> None:
    path = preferring(models, ADD_S)
    shelf = ModelShelf(None, tmp_path)
    assert shelf.resolve(f"model:{path}", fleet()) == named(path)
    assert shelf.policy(f"model:{path}", fleet()).model.name == path.stem
    with pytest.raises(ModelRefused, match="a file that can be read"):
        shelf.resolve("model:/nowhere/x.onnx", fleet())


def test_a_name_that_is_no_hash_is_refused(models: Path) -> None:
    with pytest.raises(BadInput, match="learned:<sha256>"):
        ModelShelf(models).resolve("learned:latest", fleet())


def test_a_recorded_model_is_found_in_either_place_and_missed_by_name(models: Path, shipped: Path) -> None:
    path = preferring(models, ADD_S)
    shelf = ModelShelf(models, shipped)
    assert shelf.model(path.stem).name == path.stem
    there = json.loads((shipped / "index.json").read_text())["large"]["sha256"]
    assert shelf.model(there).name == there
    with pytest.raises(ModelMissing, match=r"a{64}\.onnx into the"):
        shelf.model("a" * 64)


def test_a_new_champion_is_taken_up_when_it_is_next_asked_for(models: Path) -> None:
    first, second = preferring(models, ADD_S), preferring(models, ADD_M)
    shelf = ModelShelf(models)
    promote(models, first)
    assert shelf.look()
    assert not shelf.look()
    promote(models, second)
    assert shelf.resolve("learned", fleet()) == named(second)
    promote(models, first)
    assert shelf.resolve("learned", fleet()) == named(first)


@pytest.mark.parametrize("spoil", ["garbled index", "foreign index", "missing", "truncated", "elsewhere"])
def test_a_champion_that_is_refused_leaves_the_old_one_and_a_later_good_one_clears_it(models: Path, spoil: str) -> None:
    first, second = preferring(models, ADD_S), preferring(models, ADD_M)
    whole = second.read_bytes()
    shelf = ModelShelf(models)
    promote(models, first)
    shelf.look()
    if spoil == "garbled index":
        (models / "champion.json").write_text("{")
    elif spoil == "foreign index":
        (models / "champion.json").write_text('{"name": "x"}')
    elif spoil == "elsewhere":
        promote(models, f"../{second.name}")
    else:
        if spoil == "missing":
            second.unlink()
        else:
            second.write_bytes(whole[:-7])
        promote(models, second)
    assert shelf.resolve("learned", fleet()) == named(first)
    assert shelf.refusal.startswith(("champion is", "model file is"))
    second.write_bytes(whole)
    promote(models, second)
    assert shelf.resolve("learned", fleet()) == named(second)
    assert shelf.refusal == ""


def test_a_champion_whose_file_arrives_late_is_taken_up_then(models: Path) -> None:
    path = preferring(models, ADD_S)
    content = path.read_bytes()
    path.unlink()
    promote(models, path)
    shelf = ModelShelf(models)
    with pytest.raises(BadInput, match=r"no champion|champion is"):
        shelf.resolve("learned", fleet())
    path.write_bytes(content)
    assert shelf.resolve("learned", fleet()) == named(path)


def test_a_refused_file_is_read_again_only_when_it_changed_or_somebody_asks(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = preferring(models, ADD_S)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    promote(models, path)
    shelf = ModelShelf(models)
    reads: list[Path] = []
    monkeypatch.setattr("agent.models.file.load_model", lambda at: reads.append(at) or load_model(at))
    for _ in range(3):
        with pytest.raises(BadInput, match="damaged"):
            shelf.resolve("learned", fleet())
        with pytest.raises(BadInput, match="damaged"):
            shelf.resolve(f"model:{path}", fleet())
    assert len(reads) == 1
    shelf.look(again=True)
    assert len(reads) == 2


def test_a_model_in_use_outlives_its_file(models: Path) -> None:
    path = preferring(models, ADD_S)
    promote(models, path)
    shelf = ModelShelf(models)
    shelf.look()
    path.unlink()
    os.utime(models / "champion.json")
    assert shelf.resolve("learned", fleet()) == named(path)
    assert "a file that can be read" in shelf.refusal


def test_a_champion_file_taken_away_means_no_champion(models: Path, shipped: Path) -> None:
    promote(models, preferring(models, ADD_S))
    shelf = ModelShelf(models, shipped)
    shelf.look()
    (models / "champion.json").unlink()
    index = json.loads((shipped / "index.json").read_text())
    assert shelf.resolve("learned", fleet()) == f"learned:{index['large']['sha256']}"
    assert shelf.champion is None


def test_readers_see_the_old_or_the_new_champion_and_nothing_between(models: Path) -> None:
    paths = [preferring(models, ADD_S), preferring(models, ADD_M)]
    promote(models, paths[0])
    shelf, seen, over = ModelShelf(models), set[str](), threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(shelf.resolve("learned", fleet()))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(40):
        promote(models, paths[turn % 2])
        shelf.look()
    over.set()
    for reader in readers:
        reader.join()
    assert seen <= {named(path) for path in paths}


def test_other_prices_are_named(models: Path) -> None:
    card = load_model(preferring(models, ADD_S)).card
    assert other_prices(card, fleet()) == ""
    cheap = (VmType("m5a.large", 2, 8.0, 0.086), *TYPES[1:])
    groups = tuple(Group(key, key, kind, 0, 10) for key, kind in zip("sml", cheap, strict=True))
    assert re.findall(r"\$([0-9.]+)", other_prices(card, Fleet("web", groups))) == ["0.086", "0.2"]


def test_a_champion_for_one_fleet_leaves_another_its_shipped_model(models: Path, shipped: Path) -> None:
    path = preferring(models, ADD_S)
    promote(models, path)
    shelf = ModelShelf(models, shipped)
    small = json.loads((shipped / "index.json").read_text())["small"]["sha256"]
    assert shelf.resolve("learned", fleet()) == named(path)
    assert shelf.resolve("learned", fleet((3, 3, 3))) == f"learned:{small}"
    with pytest.raises(ModelUnfit, match=r"champion: .* at most 10"):
        shelf.resolve("learned", fleet((3, 3, 4)))


def test_a_fleets_own_champion_decides_for_it_alone(models: Path) -> None:
    every, own = preferring(models, ADD_S), preferring(models, ADD_M)
    promote(models, every)
    promote(models, own, "web")
    shelf = ModelShelf(models)
    assert shelf.resolve("learned", fleet()) == named(own)
    assert shelf.resolve("learned", replace(fleet(), name="shop")) == named(every)
    promote(models, preferring(models, NOTHING, limits=(3, 3, 3)), "web")
    shelf.look()
    # No other model takes the place of one that was promoted for this very fleet.
    with pytest.raises(ModelUnfit, match="web has 10 of 2 cores"):
        shelf.check("learned", fleet())


def test_one_fleets_champion_that_is_refused_does_not_touch_anothers(models: Path) -> None:
    every, own = preferring(models, ADD_S), preferring(models, ADD_M)
    promote(models, every)
    promote(models, own, "web")
    own.write_bytes(b"damaged")
    shelf = ModelShelf(models)
    with pytest.raises(BadInput, match=r"of web: .* damaged"):
        shelf.resolve("learned", fleet())
    assert shelf.resolve("learned", replace(fleet(), name="shop")) == named(every)


KEY, OTHER = b"0123456789abcdef", b"fedcba9876543210"


def no_report(models: Path, path: Path) -> None:
    (models / "champion.json").write_text(json.dumps({"model": path.name}))


def report_missing(models: Path, path: Path) -> None:
    promote(models, path, key=KEY)
    next(models.glob("report-*")).unlink()


def report_changed(models: Path, path: Path) -> None:
    promote(models, path, key=KEY)
    report = next(models.glob("report-*"))
    report.write_text(report.read_text().replace('"format": 2', '"format": 3'))


def report_of_another(models: Path, path: Path) -> None:
    promote(models, path, key=KEY)
    reported(models, path.name, KEY, challenger={"sha256": "b" * 64})


def report_of_another_fleet(models: Path, path: Path) -> None:
    promote(models, path, key=KEY)
    reported(models, path.name, KEY, subject="web")


def report_of_another_decision(models: Path, path: Path) -> None:
    promote(models, path, key=KEY)
    reported(models, path.name, KEY, decision="oversubscription")


def forced_without_a_reason(models: Path, path: Path) -> None:
    promote(models, path, key=KEY)
    reported(models, path.name, KEY, passed=False, forced="")


def report_of_a_failure(models: Path, path: Path) -> None:
    promote(models, path, key=KEY)
    reported(models, path.name, KEY, passed=False)


def unsigned(models: Path, path: Path) -> None:
    promote(models, path)


def signed_by_another(models: Path, path: Path) -> None:
    promote(models, path, key=OTHER)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (no_report, "no report of a promotion speaks for it"),
        (report_missing, "it is missing or damaged"),
        (report_changed, "its seal does not hold"),
        (report_of_another, f"it is of the model {'b' * 64}, not of"),
        (report_of_another_fleet, "it is of autoscaling web, not of autoscaling all"),
        (report_of_another_decision, "it is of oversubscription all, not of autoscaling all"),
        (forced_without_a_reason, "did not pass"),
        (report_of_a_failure, "did not pass"),
        (unsigned, "it is not signed with TRIMTAB_LEARNED__PROMOTION_KEY"),
        (signed_by_another, "its seal does not hold"),
    ],
)
def test_only_what_a_sealed_report_speaks_for_becomes_the_champion(
    models: Path, spoil: Callable[[Path, Path], None], why: str
) -> None:
    first, second = preferring(models, ADD_S), preferring(models, ADD_M)
    promote(models, first, key=KEY)
    shelf = ModelShelf(models, key=KEY)
    assert shelf.resolve("learned", fleet()) == named(first)
    for report in models.glob("report-*"):
        report.unlink()
    spoil(models, second)
    assert shelf.resolve("learned", fleet()) == named(first)
    assert why in shelf.refusal
    promote(models, second, key=KEY)
    assert shelf.resolve("learned", fleet()) == named(second)
    assert shelf.refusal == ""


def test_without_a_key_a_whole_report_is_enough(models: Path) -> None:
    path = preferring(models, ADD_S)
    promote(models, path)
    assert ModelShelf(models).resolve("learned", fleet()) == named(path)
