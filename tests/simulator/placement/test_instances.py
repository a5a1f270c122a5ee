"""Generated instances are those of the placement specification, container by container."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput, ConfigurationError
from domain.rules.placement.instance import Instance, excluded_pairs
from domain.units import DAY_S
from simulator.placement import instances

S1_TABLE = """
0 8c16g 1 9 | 1 16c32g 1 5 | 2 4c8g 1 3 | 3 16c32g 1 9 | 4 4c8g 1 11
5 4c8g 2 7 | 6 8c16g 1 14 | 7 4c8g 2 1 | 8 8c16g 1 3 | 9 4c8g 2 1
10 8c16g 2 1 | 11 8c16g 3 4 | 12 4c8g 1 7 | 13 8c16g 1 12 | 14 4c8g 2 7
15 4c8g 1 1 | 16 4c8g 3 1 | 17 4c8g 1 4 | 18 4c8g 1 3 | 19 4c8g 1 9
20 8c16g 1 1 | 21 4c8g 2 7 | 22 4c8g 2 2 | 23 16c32g 3 12 | 24 16c32g 1 12
25 8c16g 1 3 | 26 8c16g 3 5 | 27 4c8g 1 10 | 28 4c8g 1 2 | 29 16c32g 3 2
"""
"""§6.1: application, size, limit and containers."""
S1_EXCLUSIONS = "2-7, 2-9, 2-24, 3-23, 4-7, 5-20, 5-26, 7-26, 8-10, 16-28, 22-27, 22-29"
S1_ORDER = "1 2 5 11 16 20 24 7 4 28 6 14 0 12 19 3 18 13 21 29 26 15 17 9 25 22 8 23 27 10"


def totals(instance: Instance) -> tuple[int, int, int]:
    """Cores, memory and disk of all containers."""
    demand = {app.name: app.demand for app in instance.applications}
    wanted = np.array([np.array(demand[one.application]) * one.count for one in instance.requests]).sum(axis=0)
    return int(wanted[0]), int(wanted[1]), int(wanted[2])


def test_s1_is_the_table_of_the_specification() -> None:
    """Sizes, limits, counts, exclusions and the order of arrival."""
    s1 = instances.s1()
    counts = {one.application: one.count for one in s1.requests}
    sizes = {"8c16g": (8, 16, 60), "16c32g": (16, 32, 120), "4c8g": (4, 8, 60)}
    rows = [cell.split() for cell in S1_TABLE.replace("\n", "|").split("|") if cell.strip()]
    assert [(app.name, app.demand, app.limit, counts[app.name]) for app in s1.applications] == [
        (f"a{number}", sizes[size], int(limit), int(count)) for number, size, limit, count in rows
    ]
    pairs = [tuple(pair.split("-")) for pair in S1_EXCLUSIONS.split(", ")]
    assert {frozenset(pair) for pair in excluded_pairs(s1.applications)} == {
        frozenset((f"a{a}", f"a{b}")) for a, b in pairs
    }
    assert [one.application for one in s1.requests] == [f"a{k}" for k in S1_ORDER.split()]
    assert (s1.containers, totals(s1)[:2], s1.hosts[0].capacity) == (168, (1360, 2720), (96, 512, 3000))


def test_every_small_instance_asks_for_1360_cores() -> None:
    """And every application fits on fifteen hosts by its limit, alone and with each that it excludes."""
    for seed in range(12):
        made = instances.small(seed)
        counts = {one.application: one.count for one in made.requests}
        needs = {app.name: -(-counts[app.name] // app.limit) for app in made.applications}
        assert totals(made)[0] == 1360
        assert max(counts.values()) <= 15
        assert all(needs[a] + needs[b] <= 15 for a, b in excluded_pairs(made.applications))
        assert len(list(excluded_pairs(made.applications))) == 12


@pytest.mark.parametrize(("seed", "cores"), [(219, 25_411), (157, 25_432)])
def test_large_instances_have_the_cores_of_the_specification(seed: int, cores: int) -> None:
    """5,000 containers in 3,000 requests, ten of them for 20 to 60 containers of one to a host."""
    made = instances.large(seed)
    limits = {app.name: app.limit for app in made.applications}
    heavy = [one for one in made.requests if one.count >= 20]
    assert (totals(made)[0], len(made.applications), len(made.requests), made.containers) == (cores, 900, 3000, 5000)
    assert len(heavy) == 10
    assert all(limits[one.application] == 1 and one.count <= 60 for one in heavy)
    assert len(list(excluded_pairs(made.applications))) == 300


@pytest.mark.parametrize(("seed", "hosts"), [(0, 254), (1, 292), (2, 251), (3, 249), (4, 307)])
def test_stream_asks_for_the_bounds_of_the_specification(seed: int, hosts: int) -> None:
    """The lower bound of §6.4 is the cores over those of a host; no single application needs more than 230 hosts."""
    made = instances.stream(seed)
    counts: Counter[str] = Counter()
    for one in made.requests:
        counts[one.application] += one.count
    assert (made.containers, -(-totals(made)[0] // 96)) == (5000, hosts)
    assert all(counts[app.name] <= 230 for app in made.applications if app.limit == 1)


def test_variants_change_what_they_name_and_nothing_else() -> None:
    """Memory of odd applications, a second type of hosts, a bound on their number."""
    base = instances.large(3)
    two = instances.balanced2d(3)
    assert all(
        app.demand == ((old.demand[0], 8 * old.demand[0], old.demand[2]) if k % 2 else old.demand)
        for k, (app, old) in enumerate(zip(two.applications, base.applications, strict=True))
    )
    assert two.requests == instances.hetero(3).requests == instances.tight(3).requests == base.requests
    assert [host.capacity[:2] for host in instances.hetero(3).hosts] == [(96, 512), (64, 256)]
    assert instances.tight(219).hosts[0].count == 270


def test_containers_of_a_churn_end_after_they_came() -> None:
    """A release lies within the thirty days, after its request; every container ends at most once, in order of time."""
    made = instances.churn(5)
    came = {one.name: one.at_s for one in made.requests}
    assert [one.at_s for one in made.requests] == sorted(came.values())
    assert all(came[end.request] < end.at_s < 30 * DAY_S for end in made.releases)
    assert len({(end.request, end.index) for end in made.releases}) == len(made.releases)
    lives = np.array([end.at_s - came[end.request] for end in made.releases])
    assert 0.8 < len(lives) / made.containers < 1.0
    assert 0.7 * 2.0 < float(np.median(lives)) / DAY_S < 2.0


def test_a_shuffle_is_the_permutation_of_its_number() -> None:
    """The same requests in the order of default_rng(k); moments stay where they were."""
    base = instances.s1()
    made = instances.shuffled(base, 7)
    order = np.random.default_rng(7).permutation(30)
    assert [one.name for one in made.requests] == [base.requests[k].name for k in order.tolist()]
    assert instances.shuffled(base, 7) == made != instances.shuffled(base, 8)
    with pytest.raises(BadInput, match="has releases"):
        instances.shuffled(instances.churn(5), 1)


def test_a_week_of_vms_becomes_an_instance_with_stated_defaults() -> None:
    """Every VM of the table is a request of one container on a host of the table's size."""
    made = instances.instance_of("azure_like-s21")
    assert all(one.count == 1 for one in made.requests)
    assert [one.at_s for one in made.requests] == sorted(one.at_s for one in made.requests)
    assert all(app.demand[2] == 15 * app.demand[0] and not app.excludes for app in made.applications)
    came = {one.name: one.at_s for one in made.requests}
    assert len(came) == len(made.requests) > len(made.releases) > 0
    assert all(came[end.request] < end.at_s for end in made.releases)


@pytest.mark.parametrize("name", ["i.json", "i.json.gz"])
def test_an_instance_survives_its_file(tmp_path: Path, name: str) -> None:
    """Written and read again it is the same, releases included."""
    made = instances.churn(2)
    instances.write_instance(made, tmp_path / name)
    assert instances.read_instance(tmp_path / name) == (made, ())
    assert instances.instance_of(str(tmp_path / name)) == made


def test_names_of_instances_and_what_is_none(tmp_path: Path) -> None:
    """A wrong name lists the right ones; a file that is no instance says why."""
    assert instances.instance_of("L219").name == instances.instance_of("large-219").name == "L219"
    for wrong in ("L", "L2x", "stream", "stream-x", "huge-1"):
        with pytest.raises(BadInput, match="give S1, L219"):
            instances.instance_of(wrong)
    (tmp_path / "cut.json").write_text('{"version": 1,')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "list.json").write_text("[]")
    for name, error in (("cut.json", BadInput), ("deep.json", BadInput), ("no.json", BadInput)):
        with pytest.raises(error, match="JSON file that can be read"):
            instances.instance_of(str(tmp_path / name))
    with pytest.raises(ConfigurationError, match="write an object"):
        instances.instance_of(str(tmp_path / "list.json"))
