"""World files: what is written reads back, every wrong field is named at once, and the presets are what they were."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from simulator.autoscaling.configuration import (
    COMPAT,
    PRICES_M5A,
    Billing,
    CooldownScope,
    CpuSampling,
    Dispatch,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
)
from simulator.autoscaling.world_file import (
    JobSizes,
    World,
    plainest,
    preset,
    read_world,
    world_from,
    world_named,
    world_names,
    world_text,
    write_world,
)
from simulator.checked_toml import FileRefused, value_text
from tests.golden import check_wording
from tests.simulator.autoscaling.worlds import compats, configs

LIVE_LIKE: dict[str, Any] = {
    "types": PRICES_M5A,
    "cooldown_s": 300.0,
    "cooldown_scope": CooldownScope.PER_DIRECTION,
    "removal_choice": RemovalChoice.LEAST_WORK_LOST,
    "removal_mode": RemovalMode.DRAIN,
    "cpu_sampling": CpuSampling.SAMPLED,
}
PRESETS = {
    **dict.fromkeys(("exact", "train-text", "train-fit", "train-rand"), SimulationConfig()),
    "compat": SimulationConfig(removal_choice=RemovalChoice.RANDOM, compat=COMPAT),
    "live-like": SimulationConfig(**LIVE_LIKE),
    "paper-live": SimulationConfig(
        types=PRICES_M5A,
        cooldown_s=300.0,
        cooldown_scope=CooldownScope.PER_TYPE,
        cpu_sampling=CpuSampling.AVERAGE,
        idle_cpu=0.1,
    ),
    "dry-run": SimulationConfig(
        **LIVE_LIKE,
        limits=(3, 3, 3),
        initial=(1, 0, 0),
        dispatch=Dispatch.NEXT_FIT,
        billing=Billing.EXACT,
        integral_penalty=True,
    ),
}
SMALL = """
version = 1
[[vm_types]]
name = "a"
cores = 2
memory_gb = 4
price_per_hour = 0.1
limit = 5
"""


def mistakes(text: str) -> dict[str, str]:
    with pytest.raises(FileRefused) as refused:
        world_from(text)
    found = {mistake.name: f"{mistake.value}: {mistake.remedy}" for mistake in refused.value.mistakes}
    assert all(f"{name} = {text}" in str(refused.value) for name, text in found.items())
    return found


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_packaged_world_is_the_configuration_that_it_was(name: str) -> None:
    assert preset(name) == PRESETS[name]
    assert repr(preset(name)) == repr(PRESETS[name])


def test_every_packaged_file_is_a_preset_and_is_written_as_the_writer_does() -> None:
    assert set(world_names()) <= set(PRESETS)
    for name in world_names():
        world = world_named(name)
        assert world.name == name
        assert world.description
        assert world_from(world_text(world), name) == world


@given(
    configs(switches=compats()).filter(lambda config: max(config.limits) > 0),
    st.text(max_size=30),
    st.sampled_from(JobSizes),
    st.sampled_from([120.0, 7.25]),
)
def test_what_is_written_reads_back(config: SimulationConfig, text: str, sizes: JobSizes, typical: float) -> None:
    world = World(plainest(config), "drawn", text, sizes, typical)
    assert world_from(world_text(world, "head\n\nof the file"), "drawn") == world
    # Nothing that an episode depends on is lost by the plainest form.
    assert world.config.boot_points_s == config.boot_points_s
    assert world.config.speeds == config.speeds


def test_a_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_world(world_named("live-like"), path)
    assert read_world(path).name == "mine"
    assert world_named(str(path)).config == preset("live-like")


@pytest.mark.parametrize(
    ("limits", "minima", "found"),
    [
        ((5, 5), ("", ""), (1, 0)),
        ((0, 5), ("", ""), (0, 1)),
        ((5, 5), ("minimum = 0", ""), (0, 0)),
        ((5, 5), ("", "minimum = 2"), (0, 2)),
    ],
)
def test_a_fleet_has_one_vm_at_least_unless_its_file_gives_a_minimum(
    limits: tuple[int, int], minima: tuple[str, str], found: tuple[int, int]
) -> None:
    kind = '[[vm_types]]\nname = "{}"\ncores = 2\nmemory_gb = 4\nprice_per_hour = 0.1\nlimit = {}\n{}\n'
    text = "version = 1\n" + "".join(map(kind.format, "ab", limits, minima))
    assert world_from(text).config.minimum == found
    assert world_from(text).config.initial == found


def test_what_is_left_out_is_as_usual() -> None:
    world = world_from(SMALL)
    assert (world.config.minimum, world.config.initial) == ((1,), (1,))
    assert world.config.boot_ranges_s == ((45.0, 97.0),)
    assert (world.job_sizes, world.expected_job_core_s) == (JobSizes.KNOWN, 0.0)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("71", (71.0, 71.0)),
        ("[45, 97]", (45.0, 97.0)),
        ("{ quantiles = [40, 52, 60.5, 110] }", (40.0, 52.0, 60.5, 110.0)),
    ],
)
def test_boot_times_are_a_constant_a_range_or_measured_quantiles(text: str, points: tuple[float, ...]) -> None:
    assert world_from(f"{SMALL}boot = {text}").config.boot_points_s == (points,)


def test_unknown_job_sizes_bring_a_typical_job() -> None:
    assert world_from(f'{SMALL}[jobs]\nsizes = "unknown"\ntypical_core_s = 90').expected_job_core_s == 90.0


# A value of the wrong kind for each field of a world file, and for each field of a VM type.
EVERYTHING = world_text(
    World(
        SimulationConfig(
            speed=(1.0, 2.0, 1.0),
            boot_quantiles_s=((1.0, 2.0, 5.0), (1.0, 1.0), (3.0, 4.0)),
            dispatch_latency_s=1.0,
            dispatch=Dispatch.BEST_FIT,
            backfill=True,
            removal_choice=RemovalChoice.RANDOM,
            removal_mode=RemovalMode.DRAIN,
            cancel_booting=True,
            cooldown_s=5.0,
            cooldown_scope=CooldownScope.GLOBAL,
            cpu_sampling=CpuSampling.AVERAGE,
            sample_interval_s=7.0,
            samples_needed=1,
            idle_cpu=0.5,
            base_ram_gb=1.0,
            billing=Billing.HOUR,
            bill_from_ready=True,
            integral_penalty=True,
            max_steps=9,
            reclaims_per_hour=(0.0, 1.0, 0.0),
            reclaim_notice_s=1.0,
            compat=COMPAT,
        ),
        "all",
        "text",
        JobSizes.UNKNOWN,
        9.0,
    )
)


def places(data: dict[str, Any], before: str = "") -> list[str]:
    found = []
    for name, value in data.items():
        if isinstance(value, dict) and name != "boot":
            found += places(value, f"{before}{name}.")
        elif name == "vm_types":
            found += sorted({place for k, kind in enumerate(value) for place in places(kind, f"vm_types[{k + 1}].")})
        else:
            found.append(f"{before}{name}")
    return found


def wrong(text: str) -> str:
    return "\n".join(
        f"{line.partition(' = ')[0]} = 1979-05-27" if " = " in line else line for line in text.splitlines()
    )


def test_every_field_that_there_is_is_named_when_it_is_wrong() -> None:
    assert set(mistakes(wrong(EVERYTHING))) == set(places(tomllib.loads(EVERYTHING)))


@pytest.mark.parametrize("place", places(tomllib.loads(EVERYTHING)))
def test_a_misspelt_field_is_answered_with_the_nearest_name(place: str) -> None:
    name = place.rpartition(".")[2]
    found = mistakes(f"\n{EVERYTHING}".replace(f"\n{name} = ", f"\n{name}x = "))
    assert any(f"did you mean {name}?" in remedy for remedy in found.values())


NONSENSE = """
version = 2
waiting_price = 0.1
step_s = 0.0001
[cooldown]
seconds = -3
scope = "per_moon"
[[vm_types]]
name = "a"
cores = 0
memory_gb = 4
limit = "many"
minimum = 1
boot = [97, 45]
[[vm_types]]
name = "a"
cores = 2
memory_gb = 4
price_per_hour = inf
limit = 5
initial = 9
"""


def refusal(read: Callable[[str], object], text: str) -> str:
    with pytest.raises((BadInput, FileRefused)) as refused:
        read(text)
    return str(refused.value)


def test_what_is_refused_is_reported_in_the_words_of_the_golden_file(tmp_path: Path) -> None:
    files = {
        "every mistake at once": NONSENSE,
        "no type": "version = 1",
        "no type that may have VMs": SMALL.replace("limit = 5", "limit = 0"),
        "a step that an oddity forbids": f'compat = ["minute_steps"]\nstep_s = 30{SMALL}',
        "an unknown oddity": f'compat = ["colour"]{SMALL}',
        "too many types": SMALL + "[[vm_types]]\n" * 12,
    }
    texts = {name: refusal(world_from, text) for name, text in files.items()}
    texts["an unknown name"] = refusal(world_named, "moon")
    texts["a missing file"] = refusal(world_named, str(tmp_path / "none.toml")).replace(str(tmp_path), "")
    check_wording("world-file", texts)
    assert "give TOML" in refusal(world_from, "version = ")
    assert set(mistakes(NONSENSE)) == {
        *("version", "waiting_price", "step_s", "cooldown.seconds", "cooldown.scope"),
        *(f"vm_types[1].{name}" for name in ("cores", "price_per_hour", "limit", "boot")),
        *(f"vm_types[2].{name}" for name in ("name", "price_per_hour", "initial")),
    }


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-2, 3),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([10**400, -(10**400), 2**63, 1e308]),
    st.sampled_from(["all", "drain", "known", "minute_steps"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["quantiles", "name", "x y"]), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(places(tomllib.loads(EVERYTHING))), VALUES, max_size=4), st.data())
def test_whatever_stands_in_a_file_is_read_or_refused_by_the_names_of_its_fields(
    values: dict[str, Any], data: st.DataObject
) -> None:
    lines = EVERYTHING.splitlines()
    for place, value in values.items():
        name = place.rpartition(".")[2]
        at = data.draw(st.sampled_from([k for k, line in enumerate(lines) if line.startswith(f"{name} = ")]))
        lines[at] = f"{name} = {value_text(value)}"
    named = refused_fields("\n".join(lines))
    changed = {place.rpartition(".")[2] for place in values}
    # Others are within a limit that was changed.
    assert named <= changed | ({"minimum", "initial"} if "limit" in changed else set())


def refused_fields(text: str) -> set[str]:
    try:
        world_from(text)
    except FileRefused as refused:
        return {mistake.name.rpartition(".")[2] for mistake in refused.mistakes}
    return set()
