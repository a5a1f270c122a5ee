"""An instance file is read whole or refused with every mistake in it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import ConfigurationError
from domain.rules.placement.instance import (
    Application,
    HostType,
    Instance,
    Release,
    Request,
    as_document,
    excluded_pairs,
    parse_instance,
    symmetric,
)

GOOD: dict[str, Any] = {
    "version": 1,
    "name": "two",
    "host_types": [{"name": "big", "cores": 96, "memory_gib": 512, "disk_gb": 3000, "count": 4, "label": "ssd"}],
    "applications": [
        {"id": "web", "cores": 4, "memory_gib": 8, "disk_gb": 60, "limit": 1, "excludes": ["db"]},
        {"id": "db", "cores": 8, "memory_gib": 16, "disk_gb": 60, "rack_limit": 2, "label": "ssd"},
    ],
    "requests": [
        {"id": "r0", "application": "web", "count": 3, "at_s": 1.5},
        {"id": "r1", "application": "db", "count": 1},
    ],
    "releases": [{"request": "r0", "index": 2, "at_s": 9.0}],
    "snapshot": [{"host_type": "big", "instances": {"db": 2}}],
}


def changed(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """The good document with one field changed."""
    document: Any = copy.deepcopy(GOOD)
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return document


def test_a_good_file_is_read() -> None:
    """An exclusion that one side names holds for both, with a warning."""
    instance, warnings = parse_instance(GOOD)
    assert warnings == ("web excludes db; db now excludes web too",)
    assert instance.hosts == (HostType("big", (96, 512, 3000), 4, "ssd"),)
    assert instance.applications == (
        Application("web", (4, 8, 60), 1, frozenset({"db"})),
        Application("db", (8, 16, 60), 1000, frozenset({"web"}), 2, "ssd"),
    )
    assert instance.requests == (Request("r0", "web", 3, 1.5), Request("r1", "db", 1))
    assert instance.releases == (Release("r0", 2, 9.0),)
    assert instance.snapshot == (("big", {"db": 2}),)
    assert instance.containers == 4
    assert list(excluded_pairs(instance.applications)) == [("db", "web")]


@pytest.mark.parametrize(
    ("path", "value", "field", "remedy"),
    [
        (("version",), 2, "version", "this release reads version 1"),
        (("version",), None, "version", "this release reads version 1"),
        (("host_types",), [], "host_types", "at least one entry"),
        (("host_types", 0, "cores"), 0, "host_types[0].cores", "whole number from 1"),
        (("host_types", 0, "count"), -1, "host_types[0].count", "whole number from 0"),
        (("applications", 0, "cores"), -4, "applications[0].cores", "whole number from 1"),
        (("applications", 0, "memory_gib"), 8.5, "applications[0].memory_gib", "whole number from 1"),
        (("applications", 0, "disk_gb"), float("nan"), "applications[0].disk_gb", "whole number from 1"),
        (("applications", 0, "disk_gb"), True, "applications[0].disk_gb", "whole number from 1"),
        (("applications", 0, "cores"), 97, "applications[0]", "larger than every host"),
        (("applications", 0, "limit"), 0, "applications[0].limit", "whole number from 1 to 32767"),
        (("applications", 0, "limit"), 32_768, "applications[0].limit", "whole number from 1 to 32767"),
        (("applications", 0, "excludes"), ["web"], "applications[0].excludes", "cannot exclude itself"),
        (("applications", 0, "excludes"), ["cache"], "applications[0].excludes", "no application has this id"),
        (("applications", 0, "excludes"), "db", "applications[0].excludes", "write a list"),
        (("applications", 1, "id"), "web", "applications[1].id", "names are unique"),
        (("applications", 1, "label"), "gpu", "applications[1].label", "no type of host has this label"),
        (("applications", 0, "ram"), 8, "applications[0].ram", "unknown field"),
        (("requests", 0, "application"), "cache", "requests[0].application", "no application has this id"),
        (("requests", 0, "count"), 0, "requests[0].count", "whole number from 1"),
        (("requests", 0, "count"), -2, "requests[0].count", "whole number from 1"),
        (("requests", 0, "at_s"), float("inf"), "requests[0].at_s", "seconds from the begin"),
        (("requests", 1, "id"), "r0", "requests[1].id", "names are unique"),
        (("requests", 1), 7, "requests[1]", "write an object"),
        (("releases", 0, "request"), "r9", "releases[0].request", "no request has this id"),
        (("releases", 0, "index"), 3, "releases[0].index", "whole number from 0 to 2"),
        (("releases",), [GOOD["releases"][0]] * 2, "releases[1]", "released before"),
        (("snapshot", 0, "host_type"), "small", "snapshot[0].host_type", "no type of host"),
        (("snapshot", 0, "instances"), {"cache": 1}, "snapshot[0].instances.cache", "no application has this id"),
        (("snapshot", 0, "instances"), {"db": 0}, "snapshot[0].instances.db", "whole number from 1"),
        (("snapshot", 0, "instances"), [], "snapshot[0].instances", "by application id"),
        (("more",), 1, "more", "unknown field"),
    ],
)
def test_each_wrong_field_is_named_with_its_remedy(
    path: tuple[Any, ...], value: object, field: str, remedy: str
) -> None:
    """§12: the message holds the field, the value and what to do."""
    with pytest.raises(ConfigurationError) as refused:
        parse_instance(changed(path, value), "i.json")
    named = {mistake.name: mistake.remedy for mistake in refused.value.mistakes}
    assert f"i.json.{field}" in named
    assert remedy in named[f"i.json.{field}"]


def test_all_mistakes_are_reported_at_once() -> None:
    """And no instance comes of a file with one."""
    document = changed(("applications", 0, "cores"), 0)
    document["requests"][0]["count"] = 0
    document["releases"][0]["index"] = -1
    with pytest.raises(ConfigurationError) as refused:
        parse_instance(document)
    fields = [mistake.name.removeprefix("instance.") for mistake in refused.value.mistakes]
    assert fields == ["applications[0].cores", "requests[0].count", "releases[0].index"]


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
SIZES = st.tuples(*[st.integers(1, 50)] * 3)


@st.composite
def made_instances(draw: st.DrawFn) -> Instance:
    """Instances that keep the rules."""
    names = draw(st.lists(NAMES, min_size=1, unique=True))
    apps, _ = symmetric(
        [
            Application(
                name,
                draw(SIZES),
                draw(st.integers(1, 1000)),
                frozenset(draw(st.sets(st.sampled_from(names)))) - {name},
                draw(st.none() | st.integers(1, 9)),
                draw(st.sampled_from(["", "ssd"])),
            )
            for name in names
        ]
    )
    hosts = (HostType("h", (50, 50, 50), draw(st.none() | st.integers(0, 9)), "ssd"), HostType("g", (60, 50, 70)))
    counts = draw(st.lists(st.tuples(st.sampled_from(names), st.integers(1, 5), st.floats(0, 1e9)), max_size=6))
    requests = tuple(Request(f"r{k}", name, count, at) for k, (name, count, at) in enumerate(counts))
    ended = draw(st.lists(st.sampled_from(requests), unique=True)) if requests else []
    releases = tuple(Release(one.name, one.count - 1, one.at_s + 1) for one in ended)
    held = draw(st.dictionaries(st.sampled_from(names), st.integers(1, 9)))
    return Instance("made", hosts, apps, requests, releases, (("g", held),))


@given(made_instances())
def test_what_is_written_is_read_again(instance: Instance) -> None:
    """Through JSON text, without warnings: exclusions are on both sides."""
    assert parse_instance(json.loads(json.dumps(as_document(instance)))) == (instance, ())


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [(key,) for key in GOOD] + [
    (key, 0, inner)
    for key in ("host_types", "applications", "requests", "releases", "snapshot")
    for inner in GOOD[key][0]
]


@given(st.sampled_from(FIELDS), JUNK)
def test_junk_in_any_field_is_read_or_refused_and_nothing_else(path: tuple[Any, ...], value: object) -> None:
    """No other error leaves the parser, whatever stands in a field; each mistake carries a remedy."""
    try:
        instance, _ = parse_instance(changed(path, value))
    except ConfigurationError as error:
        refused = error
    else:
        assert all(size >= 1 for app in instance.applications for size in app.demand)
        return
    assert all(mistake.name and mistake.remedy for mistake in refused.mistakes)


@given(st.lists(st.tuples(NAMES, st.sets(NAMES)), unique_by=lambda pair: pair[0]))
def test_exclusions_become_symmetric_with_a_warning_for_each_added_side(pairs: list[tuple[str, set[str]]]) -> None:
    """Nothing is lost, nothing but the other side is added, and once symmetric nothing changes."""
    given_apps = [Application(name, (1, 1, 1), 1, frozenset(others) - {name}) for name, others in pairs]
    names = {app.name for app in given_apps}
    found, warnings = symmetric(given_apps)
    before = {(app.name, other) for app in given_apps for other in app.excludes & names}
    after = {(app.name, other) for app in found for other in app.excludes}
    assert after == before | {(b, a) for a, b in before}
    assert len(warnings) == len(after) - len(before)
    assert symmetric(found) == (found, ())


def test_a_request_without_a_lifetime_has_that_of_its_application() -> None:
    application = {"id": "web", "cores": 1, "memory_gib": 1, "disk_gb": 1, "lifetime_s": 60}
    document = {
        "version": 1,
        "host_types": [{"name": "h", "cores": 4, "memory_gib": 4, "disk_gb": 4}],
        "applications": [application, {**application, "id": "none", "lifetime_s": None}],
        "requests": [
            {"id": "a", "application": "web"},
            {"id": "b", "application": "web", "lifetime_s": 5},
            {"id": "c", "application": "none"},
        ],
    }
    found, _ = parse_instance(document)
    assert [one.lifetime_s for one in found.requests] == [60.0, 5.0, None]
    assert parse_instance(as_document(found))[0] == found
