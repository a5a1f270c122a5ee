"""What the part says before it runs: preflight, settings, model files; and the capacity that other parts read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from agent.kernel.checks import State
from agent.kernel.decision import Capacity, Host
from agent.ledger import Ledger
from agent.models.directory import ModelRefused
from agent.placement.decision import PlacementPart
from agent.settings import Settings, load_settings
from domain.clock import VirtualClock
from domain.decisions import Mode
from domain.errors import ConfigurationError
from domain.rules.placement.policies import Policy, policy_document
from tests.agent.placement.hosts import app, ask, inventory

TIERS = (0.6, 0.2, -0.7, -1.0, *(0.0,) * 12, 1.0)


def settings(**placement: Any) -> Settings:
    return Settings.model_validate({"placements": {"main": placement}})


def looked(**placement: Any) -> list[tuple[State, str]]:
    return [(one.state, one.detail) for one in PlacementPart.files(settings(**placement))]


class TestPreflight:
    def test_reads_the_inventory_and_the_policies(self, tmp_path: Path) -> None:
        file = tmp_path / "pool.json"
        file.write_text(json.dumps(inventory(app("shop", excludes=["mail"]), app("mail"))))
        inventory_found, *policies = looked(inventory_file=file, policy="wf")
        assert inventory_found[0] is State.OK
        assert all(said in inventory_found[1] for said in (f"{file}: ", "2 applications", "mail now excludes shop"))
        assert policies == [(State.OK, "policy wf"), (State.OK, "policy learned")]

    def test_says_what_is_missing(self, tmp_path: Path) -> None:
        file = tmp_path / "pool.json"
        file.write_text(json.dumps(inventory(app("shop", cores=0))))
        found = looked(inventory_file=file, policy="file:/nothing.json")
        assert [state for state, _ in found] == [State.MISSING, State.MISSING, State.OK]
        assert "applications[0].cores" in found[0][1]
        assert "give a JSON file that can be read" in found[1][1]

    def test_advises_on_a_pool_without_an_inventory(self) -> None:
        assert looked()[0] == (State.ADVICE, ANY)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("POLICY", "best", "give lifetime, ff, oldest, bf, bf-cpu, dp, wf, reserve:X,CORES,COUNT"),
            ("POLICY", "file:relative.json", "(an absolute path)"),
            ("CANARY_SHARE", "0", "give a number above 0"),
            ("CONFIRM_WITHIN_S", "0.5", "give a number of seconds from 1"),
            ("COLOUR", "red", "TRIMTAB_PLACEMENTS__main__"),
        ],
    )
    def test_that_are_wrong_are_named_with_a_remedy(self, name: str, value: str, words: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load_settings({f"TRIMTAB_PLACEMENTS__main__{name}": value})
        assert words in str(caught.value)

    def test_of_a_pool_are_something_to_act_on(self) -> None:
        found = load_settings({"TRIMTAB_MODE": "act", "TRIMTAB_PLACEMENTS__main__POLICY": "wf"})
        assert found.placements["main"].policy == "wf"


def test_a_policy_file_is_a_model_and_another_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy_document(Policy("mine", "tiers17a", TIERS))))
    assert PlacementPart.model(file).does == "mine: tiers17a of 17 numbers"
    file.write_text(json.dumps({"version": 1, "family": "deep", "theta": []}))
    with pytest.raises(ModelRefused, match="family"):
        PlacementPart.model(file)


def test_the_cores_that_a_fleet_waits_for_are_read_from_its_part(ledger: Ledger, clock: VirtualClock) -> None:
    asked: list[tuple[str, str]] = []

    def capacity(decision: str, subject: str) -> Capacity | None:
        asked.append((decision, subject))
        return Capacity(pending=12.0)

    given = settings(fleet="web").model_copy(update={"mode": Mode.ACT})
    part = PlacementPart(replace(Host(ledger, given, clock), capacity=capacity))
    pool = part.pools["main"]
    pool.adopt(inventory(), "digest", epoch=1)
    pool.request(ask("r1", count=3))
    assert part.capacity("main") == Capacity(free=52.0, pending=12.0, reserved=12.0)
    assert part.capacity("west") is None
    assert set(asked) == {("autoscaling", "web")}
    assert pool.request(ask("r2", count=40)).detail.endswith("12 cores are on their way")
