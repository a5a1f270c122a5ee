"""Plug-ins are found by their entry points; a package that brings a wrong one is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from agent.autoscaling.inputs import collectors_of
from agent.autoscaling.policies.registry import policy_from_name, rule_of, with_own_settings
from agent.kernel.parts import kinds
from agent.settings import load_settings, plug_ins
from agent.settings.plug_ins import ACTUATORS, COLLECTORS, DECISIONS, GROUPS, POLICIES, installed, load
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.errors import BadInput, ConfigurationError
from tests.golden import check_wording
from tests.plug_ins import example_installed, on_path, package

GROUP = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "10"}
FLEET = {f"TRIMTAB_FLEETS__web__GROUPS__s__{name}": text for name, text in GROUP.items()}


@contextmanager
def brought(site: Path, group: str, entry: str, value: str) -> Iterator[None]:
    package(site, "others", {group: {entry: value}})
    with on_path(site):
        yield


@pytest.fixture
def example(tmp_path: Path) -> Iterator[None]:
    with example_installed(tmp_path / "site"):
        yield


def mistakes(environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(environ)
    return {mistake.name: mistake.remedy for mistake in refused.value.mistakes}


def test_ours_are_registered_like_any_other() -> None:
    assert {group: [*installed(group)] for group in GROUPS} == {
        COLLECTORS: ["cloudwatch_cpu", "cloudwatch_submitted", "graphite_render", "prometheus", "queue_depth"],
        ACTUATORS: ["autoscaling_group"],
        POLICIES: ["hold", "queue-rule", "signal-tracking", "target-tracking", "threshold"],
        DECISIONS: ["admission", "autoscaling", "deferral", "oversubscription", "placement"],
    }
    for group in GROUPS:
        for name, entry in installed(group).items():
            assert entry.dist is not None
            assert entry.dist.name == "trimtab"
            assert load(group, name, lambda loaded: True, "") is not None
            assert [one.value for one in entry_points(group=group) if one.name == name] == [entry.value]


def test_an_installation_that_lacks_one_of_ours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = dict(plug_ins.installed(POLICIES))
    monkeypatch.setattr(plug_ins, "_of_group", lambda group, path: {k: v for k, v in ours.items() if k != "hold"})
    with pytest.raises(ConfigurationError, match=r"trimtab\.policies=hold"):
        rule_of("hold")


@pytest.mark.parametrize("group", plug_ins.GROUPS)
def test_an_installation_that_lacks_all_of_ours_is_refused(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plug_ins, "_of_group", lambda group, path: {})
    with pytest.raises(ConfigurationError, match="install it again"):
        plug_ins.installed(group)


@pytest.mark.parametrize(
    ("group", "name", "word"),
    [
        (COLLECTORS, "queue_depth", "collector"),
        (ACTUATORS, "autoscaling_group", "actuator"),
        (POLICIES, "threshold", "policy"),
        (DECISIONS, "admission", "decision"),
    ],
)
def test_a_name_that_two_packages_bring_is_an_error_that_names_both(
    tmp_path: Path, group: str, name: str, word: str
) -> None:
    with brought(tmp_path, group, name, "others:thing"):
        expected = rf"{group}={name} = .* {word} \(others and trimtab\)"
        with pytest.raises(ConfigurationError, match=expected):
            installed(group)


@pytest.mark.parametrize("name", ["learned", "constant", "model", "Steady", "two__lines", "a.b", "-x"])
def test_a_policy_cannot_have_a_name_that_means_something_else(tmp_path: Path, name: str) -> None:
    with (
        brought(tmp_path, POLICIES, name, "others:thing"),
        pytest.raises(ConfigurationError, match=f"{re.escape(name)} = others:thing"),
    ):
        installed(POLICIES)


def ask_for_collectors() -> object:
    settings = load_settings(FLEET)
    session = AwsSession(AwsOptions("us-east-1"), VirtualClock(), read_only=True)
    return collectors_of(settings, [settings.fleet("web")], session)


def test_the_form_of_a_decision_is_itself_none(tmp_path: Path) -> None:
    with (
        brought(tmp_path, DECISIONS, "odd", "agent.kernel.decision:Part"),
        pytest.raises(ConfigurationError, match="whose name is 'odd'"),
    ):
        kinds()


@pytest.mark.parametrize(
    ("group", "ask", "wanted"),
    [
        (COLLECTORS, ask_for_collectors, "a CollectorKind"),
        (POLICIES, lambda: policy_from_name("odd"), "a frozen dataclass with name and decide"),
        (DECISIONS, kinds, "a class that derives from Part and whose name is 'odd'"),
    ],
)
def test_what_is_of_another_kind_or_cannot_be_loaded_is_refused_by_its_package(
    tmp_path: Path, group: str, ask: object, wanted: str
) -> None:
    assert callable(ask)
    with (
        brought(tmp_path / "wrong", group, "odd", "json:dumps"),
        pytest.raises(ConfigurationError, match=f"odd = json:dumps .*{wanted}"),
    ):
        ask()
    with (
        brought(tmp_path / "broken", group, "odd", "not_there:thing"),
        pytest.raises(ConfigurationError, match=r"of others: .*ModuleNotFoundError"),
    ):
        ask()


def test_a_policy_that_needs_an_input_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Needy:\n"
        "    needs = ('weather',)\n    name = 'needy'\n    def decide(self): ...\n"
    )
    with (
        brought(tmp_path, POLICIES, "needy", "needy:Needy"),
        pytest.raises(ConfigurationError, match="among cpu, ram, queue"),
    ):
        rule_of("needy")


def test_own_settings_under_a_name_of_the_agents_are_refused(tmp_path: Path) -> None:
    value = "tests.plugin_example.trimtab_example:SteadyPolicy"
    with (
        brought(tmp_path, POLICIES, "http", value),
        pytest.raises(ConfigurationError, match="TRIMTAB_HTTP"),
    ):
        rule_of("http")


def test_a_policys_name_must_describe_it(tmp_path: Path) -> None:
    value = "tests.plugin_example.trimtab_example:SteadyPolicy"
    with (
        brought(tmp_path, POLICIES, "other", value),
        pytest.raises(ConfigurationError, match="'steady:size=1'"),
    ):
        with_own_settings("other", {})


def test_a_fleet_may_name_an_installed_policy_and_actuator(example: None) -> None:
    environ = {**FLEET, "TRIMTAB_FLEETS__web__POLICY": "steady", "TRIMTAB_ACTUATOR": "grow_only"}
    settings = load_settings(environ)
    assert (settings.fleets["web"].policy_text, settings.actuator) == ("steady", "grow_only")
    assert with_own_settings("steady", {"TRIMTAB_STEADY__SIZE": "4"}) == "steady:size=4"
    with pytest.raises(BadInput, match="choose from: size"):
        policy_from_name("steady:width=4")


def test_one_that_is_not_installed_is_a_mistake() -> None:
    environ = {**FLEET, "TRIMTAB_FLEETS__web__POLICY": "steady", "TRIMTAB_ACTUATOR": "grow_only"}
    assert mistakes(environ).keys() == {"TRIMTAB_ACTUATOR", "TRIMTAB_FLEETS__web__POLICY"}


def test_mistakes_in_own_settings_are_listed_with_all_others(example: None) -> None:
    found = mistakes(
        {
            "TRIMTAB_STEADY__SIZE": "many",
            "TRIMTAB_LUNCH__MENUE": "soup",
            "TRIMTAB_BACKLOG__WAITING": "-1",
            "TRIMTAB_GROW_ONLY__FAST": "true",
            "TRIMTAB_GRACE_S": "-1",
        }
    )
    check_wording("plug_in_mistakes", found)


def test_our_own_have_no_settings_of_that_form() -> None:
    assert mistakes({"TRIMTAB_AUTOSCALING__SPEED": "7", "TRIMTAB_QUEUE_RULE__HORIZON_S": "7"}).keys() == {
        "TRIMTAB_AUTOSCALING__SPEED",
        "TRIMTAB_QUEUE_RULE__HORIZON_S",
    }


def test_own_settings_may_be_credentials_and_an_empty_variable_is_not_set(example: None, tmp_path: Path) -> None:
    (tmp_path / "trimtab_steady__size").write_text("7\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "TRIMTAB_STEADY__SIZE": ""}
    assert with_own_settings("steady", environ) == "steady:size=7"
    assert with_own_settings("steady", {**environ, "TRIMTAB_STEADY__SIZE": "3"}) == "steady:size=3"
