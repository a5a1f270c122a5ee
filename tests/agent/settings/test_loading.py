"""Settings come from the environment and from credentials, and become the domain's fleets and limits."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.rails.base import RailLimits
from agent.settings import DriftHandling, Settings, Source, load_settings, read_settings
from agent.settings.fleet import RailsSettings
from agent.settings.location import ledger_location
from agent.settings.names import plain, values
from domain.decisions import Mode
from domain.errors import BadInput, ConfigurationError, Mistake
from domain.fleet import Fleet, Group, VmType

GROUP = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.086", "MAX": "10"}


def group(fleet: str, key: str, **changes: str) -> dict[str, str]:
    return {f"TRIMTAB_FLEETS__{fleet}__GROUPS__{key}__{name}": value for name, value in {**GROUP, **changes}.items()}


def test_without_any_variable_the_agent_only_observes() -> None:
    settings = load_settings({})
    assert settings.mode is Mode.OBSERVE
    assert settings.drift is DriftHandling.ADOPT
    assert settings.fleets == {}
    assert settings.listener.host == "127.0.0.1"


def test_a_fleet_has_any_number_of_shadows_each_with_the_parameters_of_its_settings() -> None:
    environ = group("web", "s") | {
        "TRIMTAB_FLEETS__web__SHADOW": "learned, threshold,model:/srv/m.onnx",
        "TRIMTAB_FLEETS__web__THRESHOLD__LOW": "0.5",
    }
    fleet = load_settings(environ).fleets["web"]
    assert fleet.shadows == ("learned", "threshold", "model:/srv/m.onnx")
    threshold = "threshold:high=0.75,low=0.5,periods=1,exclude_warming=True"
    assert fleet.shadow_texts == ("learned", threshold, "model:/srv/m.onnx")
    assert load_settings(group("web", "s")).fleets["web"].shadow_texts == ()


def test_making_settings_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_MODE", "act")
    assert Settings().mode is Mode.OBSERVE


def test_nested_variables_become_a_fleet_of_the_domain() -> None:
    settings = load_settings(
        {
            "TRIMTAB_FLEETS__web__QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/1/jobs",
            **group("web", "workers_s", NAME="web-small", MIN="1", SAFE_FLOOR="2"),
        }
    )
    assert settings.fleet("web") == Fleet(
        "web",
        (Group("workers_s", "web-small", VmType("m5a.large", 2, 8.0, 0.086), 1, 10),),
        "https://sqs.eu-west-1.amazonaws.com/1/jobs",
    )
    assert settings.limits("web") == RailLimits(safe_floor=(2,), **NEWER)


def test_the_order_of_groups_is_by_cores_then_price_then_key_whatever_the_environments_order() -> None:
    large = group("web", "a", CORES="8", VM_TYPE="m5a.2xlarge", MIN="3")
    small, cheap = group("web", "c", MIN="1"), group("web", "b", PRICE_PER_HOUR="0.05", MIN="2")
    for environ in ({**large, **small, **cheap}, {**cheap, **large, **small}):
        settings = load_settings(environ)
        assert [g.key for g in settings.fleet("web").groups] == ["b", "c", "a"]
        assert settings.limits("web").safe_floor == (2, 1, 3), "without a safe floor the minimum applies"


NEWER: dict[str, Any] = {"spares": 10, "max_replacements_percent": 50.0}
"""Limits that older records lack: there they count as 0, so that a replay decides as then."""


def test_the_rails_of_the_settings_are_those_of_the_rails_with_the_same_defaults() -> None:
    rails = {field.name: field.default for field in dataclasses.fields(RailLimits) if field.name != "safe_floor"}
    assert {name: rails[name] for name in NEWER} == dict.fromkeys(NEWER, 0)
    own = {name: field.default for name, field in RailsSettings.model_fields.items()}
    assert {**own, "spares": 10} == {**rails, **NEWER}


def test_every_rail_arrives_at_the_limits() -> None:
    given_values = {name: 1.0 if "float" in str(f.annotation) else 7 for name, f in RailsSettings.model_fields.items()}
    given_values |= {"breaker_open_s": 5.0, "breaker_max_s": 6.0, "budget_per_hour": 2.0, "count_booting": False}
    environ = {f"TRIMTAB_FLEETS__web__RAILS__{name.upper()}": str(value) for name, value in given_values.items()}
    assert load_settings({**group("web", "s"), **environ}).limits("web") == RailLimits(
        safe_floor=(0,), spares=10, **given_values
    )


@pytest.mark.parametrize(
    ("policy", "parameters", "text"),
    [
        (
            "queue-rule",
            {"QUEUE_RULE__HORIZON_S": "90", "QUEUE_RULE__SINGLE": "yes"},
            "queue-rule:horizon_s=90.0,job_core_s=120.0,single=True",
        ),
        (
            "threshold",
            {"THRESHOLD__LOW": "0.5", "THRESHOLD__PERIODS": "3"},
            "threshold:high=0.75,low=0.5,periods=3,exclude_warming=True",
        ),
        (
            "target-tracking",
            {"TARGET_TRACKING__TARGET": "0.7"},
            "target-tracking:target=0.7,scale_in_factor=0.9,out_periods=3,in_periods=15",
        ),
        (
            "signal-tracking",
            {"SIGNALS__rps__TARGET": "50", "SIGNAL_TRACKING__IN_PERIODS": "5"},
            "signal-tracking:scale_in_factor=0.9,out_periods=1,in_periods=5",
        ),
        ("hold", {}, "hold"),
    ],
)
def test_a_fleets_policy_is_written_as_the_registry_reads_it(
    policy: str, parameters: dict[str, str], text: str
) -> None:
    environ = {f"TRIMTAB_FLEETS__web__{name}": value for name, value in {"POLICY": policy, **parameters}.items()}
    fleet = load_settings({**group("web", "s", MIN="1"), **environ}).fleets["web"]
    assert fleet.policy_text == text
    assert policy_from_name(fleet.policy_text).name.startswith(policy)


def test_the_parameters_of_the_policies_have_the_policies_own_defaults() -> None:
    fleet = load_settings(group("web", "s")).fleets["web"]
    for name in ("queue-rule", "threshold", "target-tracking", "signal-tracking"):
        assert policy_from_name(fleet.model_copy(update={"policy": name}).policy_text) == policy_from_name(name)


@pytest.mark.parametrize(
    ("given", "horizon_s"),
    [
        ({}, 150.0),
        # 1.2 * 600 s * $0.05 a core and hour / $0.09 an hour of waiting
        ({"QUEUE_RULE__JOB_CORE_S": "600", "WAITING_PRICE_PER_HOUR": "0.09"}, 400.0),
        ({"QUEUE_RULE__JOB_CORE_S": "500", "WAITING_PRICE_PER_HOUR": "0.09"}, 333.0),
        ({"QUEUE_RULE__JOB_CORE_S": "600", "WAITING_PRICE_PER_HOUR": "0.09", "QUEUE_RULE__HORIZON_S": "150"}, 150.0),
        ({"QUEUE_RULE__JOB_CORE_S": "6", "WAITING_PRICE_PER_HOUR": "0.09"}, 60.0),
        ({"QUEUE_RULE__JOB_CORE_S": "6000", "WAITING_PRICE_PER_HOUR": "0.09"}, 600.0),
        ({"WAITING_PRICE_PER_HOUR": "0.09"}, 150.0),
    ],
)
def test_the_horizon_is_guessed_for_a_job_length_that_is_set_unless_it_is_set_too(
    given: dict[str, str], horizon_s: float
) -> None:
    small, large = {"PRICE_PER_HOUR": "0.06", "CORES": "2", "MAX": "10"}, {"PRICE_PER_HOUR": "0.28", "CORES": "4"}
    groups = group("web", "s", **small) | group("web", "l", **large, MAX="5")
    fleet = load_settings(groups | {f"TRIMTAB_FLEETS__web__{name}": value for name, value in given.items()})
    found = fleet.fleets["web"]
    assert found.rule_horizon_s == pytest.approx(horizon_s)
    policy = policy_from_name(found.policy_text)
    assert isinstance(policy, QueueRulePolicy)
    assert (policy.horizon_s, found.terms.horizon_s) == (found.rule_horizon_s, found.rule_horizon_s)


def test_keys_are_read_in_lower_case() -> None:
    assert list(load_settings(group("Web", "Workers_S")).fleets["web"].groups) == ["workers_s"]


def test_a_section_may_be_given_as_json_with_variables_beside_it() -> None:
    loaded = read_settings({"TRIMTAB_AWS": '{"region": "eu-west-1"}', "TRIMTAB_AWS__READ_TIMEOUT_S": "4"})
    assert (loaded.settings.aws.region, loaded.settings.aws.read_timeout_s) == ("eu-west-1", 4.0)
    origin = loaded.origin(("aws", "region"))
    assert origin is not None
    assert origin.name == "TRIMTAB_AWS"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load_settings({"TRIMTAB_AWS__REGION": "", "TRIMTAB_MODE": ""}) == Settings()


def test_the_name_that_ci_sets_is_no_setting_and_no_mistake() -> None:
    assert load_settings({"TRIMTAB_REQUIRE_REAL": "1"}) == Settings()


def test_an_unknown_fleet_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadInput, match=r"fleet is 'blue': .*red, web"):
        load_settings({**group("web", "s"), **group("red", "r")}).fleet("blue")


class TestCredentials:
    def test_a_file_gives_a_nested_setting_and_the_source_is_known(self, tmp_path: Path) -> None:
        (tmp_path / "trimtab_ledger__url").write_text("postgresql+psycopg://trimtab:geheim@db/ledger\n")
        (tmp_path / "another-programs").write_text("x")
        loaded = read_settings({"CREDENTIALS_DIRECTORY": str(tmp_path)})
        assert loaded.settings.ledger_url.get_secret_value() == "postgresql+psycopg://trimtab:geheim@db/ledger"
        origin = loaded.origin(("ledger", "url"))
        assert origin is not None
        assert origin.source is Source.CREDENTIALS
        assert loaded.origin(("mode",)) is None

    def test_no_text_made_of_the_settings_holds_the_password(self, tmp_path: Path) -> None:
        (tmp_path / "trimtab_ledger__url").write_text("postgresql+psycopg://trimtab:geheim@db/ledger")
        settings = load_settings({"CREDENTIALS_DIRECTORY": str(tmp_path)})
        shown = [repr(settings), str(settings), settings.model_dump_json(), *(plain(v) for _, v in values(settings))]
        assert "geheim" not in "".join(shown)
        assert "postgresql+psycopg://trimtab:***@db/ledger" in shown

    def test_the_environment_takes_precedence_over_a_credential(self, tmp_path: Path) -> None:
        (tmp_path / "trimtab_mode").write_text("act")
        environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "TRIMTAB_MODE": "observe"}
        assert load_settings(environ).mode is Mode.OBSERVE

    def test_a_misspelled_credential_is_a_mistake_and_its_value_is_not_shown(self, tmp_path: Path) -> None:
        (tmp_path / "trimtab_ledger__urll").write_text("geheim")
        with pytest.raises(ConfigurationError) as caught:
            load_settings({"CREDENTIALS_DIRECTORY": str(tmp_path)})
        (mistake,) = caught.value.mistakes
        assert (mistake.name, mistake.value) == ("trimtab_ledger__urll", "***")
        assert mistake.remedy.endswith(" TRIMTAB_LEDGER__URL?")

    def test_a_directory_that_is_not_there_is_a_mistake(self, tmp_path: Path) -> None:
        missing = tmp_path / "none"
        with pytest.raises(ConfigurationError) as caught:
            load_settings({"CREDENTIALS_DIRECTORY": str(missing)})
        (mistake,) = caught.value.mistakes
        assert (mistake.name, mistake.value) == ("CREDENTIALS_DIRECTORY", str(missing))


class TestWhereTheLedgerIs:
    def test_it_is_a_file_in_the_state_directory_unless_a_url_is_given(self, tmp_path: Path) -> None:
        assert ledger_location({}) == "sqlite:////var/lib/trimtab/ledger.db"
        assert ledger_location({"TRIMTAB_STATE_DIRECTORY": str(tmp_path)}) == f"sqlite:///{tmp_path}/ledger.db"
        assert ledger_location({"TRIMTAB_LEDGER__URL": "sqlite:////x.db"}) == "sqlite:////x.db"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TRIMTAB_LEDGER__URL", "sqlite:///ledger.db"),
            ("TRIMTAB_LEDGER__URL", "sqlite+pysqlite:///ledger.db"),
            ("TRIMTAB_STATE_DIRECTORY", "state"),
        ],
    )
    def test_the_folder_in_which_a_verb_is_typed_does_not_decide_it(self, name: str, value: str) -> None:
        with pytest.raises(BadInput, match=f"{name} is .*absolute path"):
            ledger_location({name: value})

    def test_it_is_found_although_another_setting_is_wrong(self) -> None:
        assert ledger_location({"TRIMTAB_MODE": "nonsense"}) == "sqlite:////var/lib/trimtab/ledger.db"

    @pytest.mark.parametrize(
        "environ",
        [{}, {"TRIMTAB_STATE_DIRECTORY": "/srv/t"}, {"trimtab_ledger__url": "sqlite:////y.db"}],
        ids=["default", "directory", "url"],
    )
    def test_the_short_way_agrees_with_the_settings(self, environ: dict[str, str]) -> None:
        assert ledger_location(environ) == load_settings(environ).ledger_url.get_secret_value()


@given(
    st.dictionaries(
        st.lists(
            st.sampled_from(
                ["fleets", "web", "groups", "s", "rails", "ledger", "url", "mode", "max", "min", "cores", "", "shadow"]
            ),
            min_size=1,
            max_size=6,
        ).map(lambda parts: "TRIMTAB_" + "__".join(parts).upper()),
        st.sampled_from(["", "1", "-1", "nan", "{}", "[]", '{"a": {"b": 1}}', '{"groups": null}', "act", "null", "x"]),
        max_size=6,
    )
)
def test_whatever_is_set_there_are_settings_or_one_error_that_names_what_was_set(environ: dict[str, str]) -> None:
    mistakes: Sequence[Mistake] = ()
    try:
        effective = list(values(load_settings(environ)))
    except ConfigurationError as error:
        mistakes, effective = error.mistakes, []
    assert bool(mistakes) != bool(effective)
    assert all(mistake.name.upper().startswith("TRIMTAB_") and mistake.remedy for mistake in mistakes)
