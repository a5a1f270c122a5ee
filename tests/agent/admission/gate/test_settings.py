"""A cluster's settings for the gate: where its capacity is read, and which of them contradict each other."""

from __future__ import annotations

import pytest

from agent.settings import load_settings
from domain.errors import ConfigurationError

PREFIX = "TRIMTAB_CLUSTERS__gpu__"


def given(**values: str) -> dict[str, str]:
    return {f"{PREFIX}{name}": value for name, value in {"CAPACITY_CORES": "256", **values}.items()}


def remedies(**values: str) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(given(**values))
    return {mistake.name.removeprefix(PREFIX): mistake.remedy for mistake in caught.value.mistakes}


def test_a_cluster_whose_capacity_is_a_quota() -> None:
    values = {"TAGGED_GROUPS": "true", "QUOTA_CODE": "L-1216C47A", "SET_ASIDE_CORES": "32"}
    cluster = load_settings(given(**values)).clusters["gpu"]
    assert (cluster.quota_code, cluster.set_aside_cores, cluster.boot_deadline_s) == ("L-1216C47A", 32, 600.0)
    assert not cluster.fixed


def test_by_default_the_capacity_is_fixed_and_no_group_is_looked_for() -> None:
    cluster = load_settings(given()).clusters["gpu"]
    assert (cluster.tagged_groups, cluster.fixed) == (False, True)


def test_one_capacity_is_enough() -> None:
    values = {"TAGGED_GROUPS": "true", "QUOTA_CODE": "L-1216C47A", "RESERVATION_ID": "cr-0123456789abcdef0"}
    assert set(remedies(**values)) == {"RESERVATION_ID"}


def test_a_quota_is_read_for_tagged_groups_only() -> None:
    assert set(remedies(QUOTA_CODE="L-1216C47A")) == {"TAGGED_GROUPS"}


def test_a_code_that_is_none_is_reported_with_an_example() -> None:
    found = remedies(TAGGED_GROUPS="true", QUOTA_CODE="1216C47A", RESERVATION_ID="r-1")
    assert {name: remedy.rpartition(" ")[2] for name, remedy in found.items()} == {
        "QUOTA_CODE": "L-1216C47A",
        "RESERVATION_ID": "cr-0123456789abcdef0",
    }
