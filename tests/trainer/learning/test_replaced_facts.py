"""Facts of a world file or of the settings that differ from those of the ledger: replaced, and named."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.commands.main import app
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import World, write_world
from tests.trainer.learning.recording import FLEET, WORLD, batches, made, recorded_in
from trainer.learning.minutes import Record, record_of
from trainer.learning.subject import learner_of, replaced_facts

KINDS = ("s", "m", "l")


def settings_of(world: SimulationConfig, **changes: str) -> dict[str, str]:
    """The settings of the fleet of a world. changes: of its largest group."""
    found = {f"TRIMTAB_FLEETS__{FLEET}__WAITING_PRICE_PER_HOUR": f"{world.waiting_price_per_hour}"}
    for key, kind, low, high in zip(KINDS, world.types, world.minimum, world.limits, strict=True):
        group = {"VM_TYPE": kind.name, "CORES": f"{kind.cores}", "MEMORY_GB": f"{kind.memory_gb}"}
        group |= {"PRICE_PER_HOUR": f"{kind.price_per_hour}", "MIN": f"{low}", "MAX": f"{high}"}
        found |= {f"TRIMTAB_FLEETS__{FLEET}__GROUPS__{key}__{name}": value for name, value in group.items()}
    return found | {f"TRIMTAB_FLEETS__{FLEET}__GROUPS__l__{name}": value for name, value in changes.items()}


DEAR = replace(WORLD, types=tuple(replace(one, price_per_hour=2.0 * one.price_per_hour) for one in WORLD.types))
LARGE = "price of m5a.2xlarge 0.688 $ an hour (0.344 $ an hour)"


@pytest.fixture(scope="module")
def recorded() -> Record:
    return record_of(FLEET, [inputs for inputs, _ in made(0.2, trace=batches(0.2))])


def test_a_world_of_the_fleet_and_its_settings_replace_nothing(recorded: Record, tmp_path: Path) -> None:
    write_world(World(WORLD, "true"), tmp_path / "true.toml")
    for world in (None, str(tmp_path / "true.toml")):
        learner = learner_of(recorded, world, ModelShelf(tmp_path))
        assert replaced_facts(learner, settings_of(WORLD)) == []


def test_each_price_of_a_world_that_is_not_that_of_the_ledger_is_named(recorded: Record, tmp_path: Path) -> None:
    write_world(World(DEAR, "dear"), tmp_path / "dear.toml")
    learner = learner_of(recorded, str(tmp_path / "dear.toml"), ModelShelf(tmp_path))
    (found,) = replaced_facts(learner, None)
    assert found.count("price of m5a") == 3
    assert LARGE in found
    assert learner.config.types == WORLD.types


def test_a_price_of_the_settings_that_is_not_that_of_the_ledger_is_named(recorded: Record, tmp_path: Path) -> None:
    learner = learner_of(recorded, None, ModelShelf(tmp_path))
    (found,) = replaced_facts(learner, settings_of(WORLD, PRICE_PER_HOUR="0.688", MAX="12"))
    assert LARGE in found
    assert "most VMs of m5a.2xlarge 12 (10)" in found
    assert found.count("m5a") == 2


def test_the_command_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded_in(tmp_path / "ledger.db", made(0.2, trace=batches(0.2)))
    write_world(World(DEAR, "dear"), tmp_path / "dear.toml")
    for name, value in settings_of(WORLD, PRICE_PER_HOUR="0.688").items():
        monkeypatch.setenv(name, value)
    words = ["learn", "autoscaling", FLEET, "--ledger", path, "--world", str(tmp_path / "dear.toml"), "--check"]
    shown = CliRunner().invoke(app, words)
    assert shown.output.count(LARGE) == 2
