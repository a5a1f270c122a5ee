"""A champion of a fleet whose POLICY is another one decides nothing, and every place says it with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.models.directory import read_model_file
from agent.models.unused_champion import readable_champions, unused_champion
from domain.subject import AUTOSCALING, Subject, fleet_subject
from tests.agent.models.making import NOTHING, preferring
from tests.trainer.learning.steps import trimtab
from trainer.learning.subject import unused_by_settings
from trainer.promotion.directory import ModelsWriter

REMEDY = "TRIMTAB_FLEETS__web__POLICY=learned"


@pytest.fixture
def directory(tmp_path: Path) -> ModelsWriter:
    made = ModelsWriter(tmp_path / "models")
    file = preferring(tmp_path, NOTHING)
    made.force(read_model_file(file), fleet_subject("web"), "a trial", "2026-11-29T12:00:00Z", lambda path: path)
    return made


@pytest.mark.parametrize(
    ("fleet", "policy", "is_unused"),
    [
        ("web", "queue-rule", True),
        ("web", "queue-rule:horizon_s=300,job_core_s=120,single=False", True),
        ("web", "learned", False),
        ("web", "model:/a/file.onnx", False),
        ("other", "queue-rule", False),
    ],
)
def test_a_champion_decides_where_the_policy_is_a_model(
    directory: ModelsWriter, fleet: str, policy: str, is_unused: bool
) -> None:
    found = unused_champion(readable_champions(directory), fleet, policy)
    assert (REMEDY in found) is is_unused
    assert "horizon_s" not in found


def test_a_pointer_that_cannot_be_read_names_no_champion(directory: ModelsWriter) -> None:
    (directory.path / "champion.json").write_text("{")
    assert unused_champion(readable_champions(directory), "web", "queue-rule") == ""


def test_the_champion_of_all_fleets_is_no_fleet_s_own(directory: ModelsWriter, tmp_path: Path) -> None:
    file = read_model_file(preferring(tmp_path, NOTHING))
    directory.force(file, Subject(AUTOSCALING), "a trial", "2026-11-29T12:00:00Z", lambda path: path)
    assert unused_champion(readable_champions(directory), "other", "hold") == ""


def fleet_of(policy: str) -> dict[str, str]:
    group = "TRIMTAB_FLEETS__web__GROUPS__s__"
    own = {"NAME": "web-s", "VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8"}
    own |= {"PRICE_PER_HOUR": "0.1", "MIN": "1", "MAX": "4"}
    return {"TRIMTAB_FLEETS__web__POLICY": policy, **{group + name: value for name, value in own.items()}}


def test_promote_says_it_by_the_settings(directory: ModelsWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    for policy, is_unused in (("queue-rule", True), ("learned", False)):
        for name, value in fleet_of(policy).items():
            monkeypatch.setenv(name, value)
        shown = trimtab("promote", "autoscaling", "web", "--status", "--models-dir", directory.path)
        assert (REMEDY in shown.output) is is_unused, shown.output
        assert bool(unused_by_settings(directory, "web", fleet_of(policy))) is is_unused
