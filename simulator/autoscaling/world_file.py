"""World files: the simulated world as TOML that people write, version 1; and the worlds that ship with the program.

A file holds everything that a `SimulationConfig` does, and what is known of the jobs. Reader and writer agree: what is
written reads back as the same world. Two worlds are the same here when no episode can tell them apart, so that VM types
of one speed, or of one range of boot times, are read as the settings for all types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from domain.errors import BadInput
from domain.fleet import VmType
from domain.rules.queue_rule import JOB_CORE_S
from domain.units import MINUTE_S
from simulator.autoscaling.configuration import (
    COMPAT,
    EXACT,
    ROWS,
    Billing,
    Compat,
    CooldownScope,
    CpuSampling,
    Dispatch,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
)
from simulator.checked_toml import Place, Table, read_table, table_of, toml_text

VERSION = 1
MOST_TYPES, MOST_LIMIT, MOST_CORES = 12, 10_000, 4_096
MOST_QUANTILES = 1_001
LONGEST_S = 1e9
"""Longest time in a world file, about thirty years."""

FOLDER = Path(__file__).parent / "worlds"
ENDING = ".toml"
ALIASES: Mapping[str, str] = MappingProxyType(dict.fromkeys(("train-text", "train-fit", "train-rand"), "exact"))
"""Other names of the training world: those of the workloads that are played in it."""


class JobSizes(StrEnum):
    """The knowledge of the work that a waiting job brings: its own, or only the mean of those that have finished."""

    KNOWN = "known"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class World:
    """A simulated world with its name, and what a policy is told of the jobs.

    typical_job_core_s: core-seconds expected of a job where sizes are unknown and none has finished yet.
    """

    config: SimulationConfig = field(default_factory=SimulationConfig)
    name: str = "exact"
    description: str = ""
    job_sizes: JobSizes = JobSizes.KNOWN
    typical_job_core_s: float = JOB_CORE_S

    @property
    def expected_job_core_s(self) -> float:
        """Core-seconds that a rule expects of a waiting job, 0 where each job's own are known."""
        return 0.0 if self.job_sizes is JobSizes.KNOWN else self.typical_job_core_s

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over what the writer makes of it, without its description."""
        return hashlib.sha256(world_text(replace(self, description="")).encode("utf-8")).hexdigest()


def _boot_times_s(given: object) -> tuple[float, ...]:
    """Return the quantiles of `71`, `[45, 97]` or `{ quantiles = [40, 52, 60, 110] }`; ValueError otherwise."""
    if isinstance(given, Mapping) and set(given) == {"quantiles"}:
        points = given["quantiles"]
    elif isinstance(given, list) and len(given) == 2:
        points = given
    else:
        points = [given, given]
    if not isinstance(points, list) or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in points):
        raise ValueError("not numbers")
    try:
        found = tuple(float(point) for point in points)
    except OverflowError:
        raise ValueError("out of range") from None
    ordered = all(low <= high for low, high in pairwise(found))
    if not (2 <= len(found) <= MOST_QUANTILES and found[0] >= 0.0 and ordered and found[-1] <= LONGEST_S):
        raise ValueError("out of order")
    return found


BootTimes = Annotated[tuple[float, ...], PlainValidator(_boot_times_s)]
_BOOT = (
    "seconds: a number, [LOW, HIGH] with 0 <= LOW <= HIGH, or { quantiles = [...] }, two or more measured boot times "
    "at evenly spaced quantiles, the shortest first"
)


def _one_of(kind: type[StrEnum]) -> str:
    return f"one of {', '.join(kind)}"


def _switches(given: object) -> Compat:
    if given == "all":
        return COMPAT
    if not isinstance(given, list) or any(name not in ROWS for name in given):
        raise ValueError("not switches")
    return Compat(**dict.fromkeys(given, True))


Seconds = Annotated[float, Field(ge=0.0, le=LONGEST_S)]


class VmTypeTable(Table):
    """One VM type."""

    name: str = Field(min_length=1, description="a name, such as m5a.large")
    cores: int = Field(ge=1, le=MOST_CORES, description=f"a whole number in 1..{MOST_CORES}")
    memory_gb: float = Field(gt=0.0, le=1e6, description="gigabytes above 0 and up to a million")
    price_per_hour: float = Field(ge=0.0, le=1e6, description="dollars per hour, 0 or more")
    limit: int = Field(ge=0, le=MOST_LIMIT, description=f"the most VMs of the type, a whole number in 0..{MOST_LIMIT}")
    minimum: int | None = Field(
        default=None,
        ge=0,
        description="the fewest VMs of the type, a whole number of 0 or more; where no type has one, 1 of the first",
    )
    initial: int | None = Field(
        default=None, ge=0, description="the VMs at the start, a whole number of 0 or more; else the minimum"
    )
    boot: BootTimes | None = Field(default=None, description=_BOOT)
    speed: float = Field(default=1.0, gt=0.0, le=1e6, description="the relative speed of a core, above 0")
    reclaims_per_hour: float = Field(
        default=0.0, ge=0.0, le=1e6, description="how often an hour the provider takes a spot VM back, 0 or more"
    )


class CooldownTable(Table):
    """The time after a change in which no other is accepted."""

    seconds: Seconds = Field(default=0.0, description="seconds of 0 or more")
    scope: CooldownScope = Field(default=CooldownScope.PER_TYPE, strict=False, description=_one_of(CooldownScope))


class RemovalTable(Table):
    """The VM that a removal takes, and what becomes of its jobs."""

    mode: RemovalMode = Field(default=RemovalMode.IMMEDIATE, strict=False, description=_one_of(RemovalMode))
    choice: RemovalChoice = Field(default=RemovalChoice.NEWEST, strict=False, description=_one_of(RemovalChoice))
    cancel_booting: bool = Field(default=False, description="true or false")


class CpuTable(Table):
    """The measurement of CPU and memory."""

    sampling: CpuSampling = Field(default=CpuSampling.INSTANT, strict=False, description=_one_of(CpuSampling))
    interval_s: float = Field(default=10.0, gt=0.0, le=LONGEST_S, description="seconds above 0")
    samples_needed: int = Field(default=3, ge=1, le=1_000_000, description="a whole number of 1 or more")
    idle: float = Field(default=0.0, ge=0.0, le=1.0, description="the share that an idle core shows, in 0..1")
    base_ram_gb: float = Field(default=0.0, ge=0.0, le=1e6, description="gigabytes of 0 or more")


class BillingTable(Table):
    """The unit of rent and of the price of waiting."""

    unit: Billing = Field(default=Billing.STEP, strict=False, description=_one_of(Billing))
    from_ready: bool = Field(default=False, description="true or false")
    integral_waiting: bool = Field(default=False, description="true or false")


class PlacementTable(Table):
    """The way of jobs to VMs."""

    order: Dispatch = Field(default=Dispatch.FIRST_FIT, strict=False, description=_one_of(Dispatch))
    backfill: bool = Field(default=False, description="true or false")
    latency_s: Seconds = Field(default=0.0, description="seconds of 0 or more")


class SpotTable(Table):
    """The warning of spot VMs that are taken back."""

    notice_s: Seconds = Field(default=120.0, description="seconds of 0 or more")


class JobsTable(Table):
    """What a policy is told of the jobs."""

    sizes: JobSizes = Field(default=JobSizes.KNOWN, strict=False, description=_one_of(JobSizes))
    typical_core_s: float = Field(
        default=JOB_CORE_S, gt=0.0, le=LONGEST_S, description="the core-seconds expected of a job, above 0"
    )


class WorldTable(Table):
    """A world file."""

    version: Literal[1] = Field(description=f"{VERSION}, the version that this program reads")
    description: str = Field(default="", description="a text")
    step_s: float = Field(
        default=60.0, gt=0.0, le=LONGEST_S, description="the length of a step, seconds above 0 in whole milliseconds"
    )
    waiting_price_per_hour: float = Field(
        default=0.036, ge=0.0, le=1e6, description="dollars per waiting job and hour, 0 or more"
    )
    max_steps: int = Field(default=20_000, ge=1, le=1_000_000_000, description="a whole number of 1 or more")
    boot: BootTimes = Field(default=(45.0, 97.0), description=_BOOT)
    compat: Annotated[Compat, PlainValidator(_switches)] = Field(
        default=EXACT, description=f'"all", or a list of oddities of the published simulator among {", ".join(ROWS)}'
    )
    cooldown: CooldownTable = Field(default=CooldownTable(), description="a table [cooldown]")
    removal: RemovalTable = Field(default=RemovalTable(), description="a table [removal]")
    cpu: CpuTable = Field(default=CpuTable(), description="a table [cpu]")
    billing: BillingTable = Field(default=BillingTable(), description="a table [billing]")
    placement: PlacementTable = Field(default=PlacementTable(), description="a table [placement]")
    spot: SpotTable = Field(default=SpotTable(), description="a table [spot]")
    jobs: JobsTable = Field(default=JobsTable(), description="a table [jobs]")
    vm_types: list[VmTypeTable] = Field(
        min_length=1, max_length=MOST_TYPES, description=f"1 to {MOST_TYPES} tables [[vm_types]]"
    )


def _conflicts(data: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield what is wrong among several fields, as far as each of them is a number or a text."""
    step_s, compat = data.get("step_s", MINUTE_S), data.get("compat")
    if _is_number(step_s) and 0 < step_s <= LONGEST_S:
        if step_s * 1000 != round(step_s * 1000):
            yield ("step_s",), "give whole milliseconds, so that rent stays exact"
        elif (compat == "all" or (isinstance(compat, list) and "minute_steps" in compat)) and step_s != MINUTE_S:
            yield ("step_s",), "give 60, the step of the published simulator (compat minute_steps)"
    types = data.get("vm_types")
    if not isinstance(types, list):
        return
    names: list[str] = []
    for k, kind in enumerate(entry if isinstance(entry, Mapping) else {} for entry in types):
        limit, name = kind.get("limit"), kind.get("name")
        for count in ("minimum", "initial"):
            if _is_number(limit) and _is_number(kind.get(count)) and kind[count] > limit:
                yield ("vm_types", k, count), f"give at most the limit, {limit}"
        if isinstance(name, str) and name in names:
            yield ("vm_types", k, "name"), "give each VM type another name"
        names.append(str(name))
    if types and all(isinstance(kind, Mapping) and kind.get("limit") == 0 for kind in types):
        yield ("vm_types", 0, "limit"), "let one type at least have VMs"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def read_world(path: Path) -> World:
    """Return the world of a file, named after it; raises BadInput, and FileRefused with every mistake in it."""
    return _world(read_table(path, WorldTable, _conflicts), path.stem)


def world_from(text: str, name: str = "world") -> World:
    """Return the world of the text of a world file; raises as `read_world` does."""
    return _world(table_of(text, name, WorldTable, _conflicts), name)


def _minimum(types: Sequence[VmTypeTable]) -> tuple[int, ...]:
    """Return the fewest VMs per type: without any in the file one VM, of the first type that may have one.

    A fleet of no VM has no CPU to measure: a rule that scales by CPU would never start.
    """
    if all(kind.minimum is None for kind in types):
        first = next(k for k, kind in enumerate(types) if kind.limit > 0)
        return tuple(int(k == first) for k in range(len(types)))
    return tuple(kind.minimum or 0 for kind in types)


def _world(table: WorldTable, name: str) -> World:
    types = table.vm_types
    minimum = _minimum(types)
    config = SimulationConfig(
        types=tuple(VmType(kind.name, kind.cores, kind.memory_gb, kind.price_per_hour) for kind in types),
        limits=tuple(kind.limit for kind in types),
        minimum=minimum,
        initial=tuple(
            least if kind.initial is None else kind.initial for kind, least in zip(types, minimum, strict=True)
        ),
        speed=_unless_all(1.0, [kind.speed for kind in types]),
        step_s=table.step_s,
        waiting_price_per_hour=table.waiting_price_per_hour,
        **_boot_fields([kind.boot or table.boot for kind in types]),
        dispatch_latency_s=table.placement.latency_s,
        dispatch=table.placement.order,
        backfill=table.placement.backfill,
        removal_choice=table.removal.choice,
        removal_mode=table.removal.mode,
        cancel_booting=table.removal.cancel_booting,
        cooldown_s=table.cooldown.seconds,
        cooldown_scope=table.cooldown.scope,
        cpu_sampling=table.cpu.sampling,
        sample_interval_s=table.cpu.interval_s,
        samples_needed=table.cpu.samples_needed,
        idle_cpu=table.cpu.idle,
        base_ram_gb=table.cpu.base_ram_gb,
        billing=table.billing.unit,
        bill_from_ready=table.billing.from_ready,
        integral_penalty=table.billing.integral_waiting,
        max_steps=table.max_steps,
        reclaims_per_hour=_unless_all(0.0, [kind.reclaims_per_hour for kind in types]),
        reclaim_notice_s=table.spot.notice_s,
        compat=table.compat,
    )
    return World(config, name, table.description, table.jobs.sizes, table.jobs.typical_core_s)


def _unless_all(usual: float, values: Sequence[float]) -> tuple[float, ...]:
    return () if all(value == usual for value in values) else tuple(values)


def _boot_fields(points: Sequence[tuple[float, ...]]) -> dict[str, Any]:
    """Return the fields of a configuration for the quantiles of each type's boot times, the plainest that will do."""
    if any(len(times_s) > 2 for times_s in points):
        return {"boot_quantiles_s": tuple(points)}
    if len(set(points)) == 1:
        return {"boot_low_s": points[0][0], "boot_high_s": points[0][1]}
    return {"boot_lows_s": tuple(low for low, _ in points), "boot_highs_s": tuple(high for _, high in points)}


def plainest(config: SimulationConfig) -> SimulationConfig:
    """Return the same world with as few settings per VM type as will do."""
    boots: dict[str, Any] = {
        "boot_low_s": 45.0,
        "boot_high_s": 97.0,
        "boot_lows_s": (),
        "boot_highs_s": (),
        "boot_quantiles_s": (),
    }
    return replace(
        config,
        speed=_unless_all(1.0, config.speeds),
        reclaims_per_hour=_unless_all(0.0, config.reclaims_per_hour),
        **(boots | _boot_fields(config.boot_points_s)),
    )


def world_text(world: World, comment: str = "") -> str:
    """Return the world as the text of a world file, without the fields that are as usual; it reads back as the same."""
    config = world.config
    alike = len(set(config.boot_points_s)) == 1
    usual = WorldTable.model_fields

    def unusual(table: type[Table], **values: Any) -> dict[str, Any] | None:
        return {name: value for name, value in values.items() if value != table.model_fields[name].default} or None

    switched = [row for row in ROWS if getattr(config.compat, row)]
    data: dict[str, Any] = {
        "version": VERSION,
        "description": world.description or None,
        "step_s": config.step_s,
        "waiting_price_per_hour": config.waiting_price_per_hour,
        "max_steps": config.max_steps if config.max_steps != usual["max_steps"].default else None,
        "boot": _boot_value(config.boot_points_s[0]) if alike else None,
        "compat": "all" if config.compat == COMPAT else switched or None,
        "cooldown": unusual(CooldownTable, seconds=config.cooldown_s, scope=config.cooldown_scope),
        "removal": unusual(
            RemovalTable,
            mode=config.removal_mode,
            choice=config.removal_choice,
            cancel_booting=config.cancel_booting,
        ),
        "cpu": unusual(
            CpuTable,
            sampling=config.cpu_sampling,
            interval_s=config.sample_interval_s,
            samples_needed=config.samples_needed,
            idle=config.idle_cpu,
            base_ram_gb=config.base_ram_gb,
        ),
        "billing": unusual(
            BillingTable,
            unit=config.billing,
            from_ready=config.bill_from_ready,
            integral_waiting=config.integral_penalty,
        ),
        "placement": unusual(
            PlacementTable, order=config.dispatch, backfill=config.backfill, latency_s=config.dispatch_latency_s
        ),
        "spot": unusual(SpotTable, notice_s=config.reclaim_notice_s),
        "jobs": unusual(JobsTable, sizes=world.job_sizes, typical_core_s=world.typical_job_core_s),
        "vm_types": [
            _type_data(config, k, None if alike else _boot_value(config.boot_points_s[k]))
            for k in range(len(config.types))
        ],
    }
    return toml_text(data, comment)


def _type_data(config: SimulationConfig, k: int, boot: object) -> dict[str, Any]:
    kind, rates = config.types[k], config.reclaims_per_hour
    return {
        "name": kind.name,
        "cores": kind.cores,
        "memory_gb": kind.memory_gb,
        "price_per_hour": kind.price_per_hour,
        "limit": config.limits[k],
        "minimum": config.minimum[k],
        "initial": config.initial[k],
        "boot": boot,
        "speed": config.speeds[k] if config.speeds[k] != 1.0 else None,
        "reclaims_per_hour": rates[k] if rates and rates[k] else None,
    }


def _boot_value(points: tuple[float, ...]) -> object:
    if len(points) > 2:
        return {"quantiles": points}
    return points[0] if points[0] == points[1] else points


def write_world(world: World, path: Path, comment: str = "") -> None:
    """Write a world file; comment: lines for its head."""
    path.write_text(world_text(world, comment), encoding="utf-8", newline="\n")


def world_names() -> tuple[str, ...]:
    """Return the names of the worlds that ship with the program, the training world first."""
    names = sorted(path.stem for path in FOLDER.glob(f"*{ENDING}"))
    return ("exact", *(name for name in names if name != "exact"))


PRESETS: tuple[str, ...] = (*ALIASES, *world_names())
"""Names that `preset` knows."""


def world_named(text: str, option: str = "--world") -> World:
    """Return the world of a FILE.toml, or one that ships with the program; raises as `read_world` does."""
    if text.endswith(ENDING):
        return read_world(Path(text))
    return _packaged(text, option)


@cache
def _packaged(name: str, option: str) -> World:
    if name not in world_names():
        raise BadInput(option, name, f"choose one of {', '.join(world_names())}, or give FILE{ENDING}")
    return read_world(FOLDER / f"{name}{ENDING}")


def preset(name: str, **changes: Any) -> SimulationConfig:
    """Return a named configuration with some fields changed; BadInput lists the names there are.

    `exact`, `train-*`: prices-train, no cool-down, immediate removal of the newest VM. `compat`: the same in the
    published simulator, every row of §8 and a random VM removed. `live-like`: prices-m5a, cool-down of 300 s per type
    and direction, least work lost, drain, CPU sampled every 10 s. `paper-live`: prices-m5a, 300 s per type, as in the
    published live experiment. `dry-run`: the fleet of the dry run in a live-like world.
    """
    if name not in PRESETS:
        raise BadInput("preset", name, f"choose one of {', '.join(PRESETS)}")
    return replace(_packaged(ALIASES.get(name, name), "preset").config, **changes)
