"""The simulated world that options of the command line describe: a file or a name, and changes of single fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from domain.fleet import VmType
from domain.workload import Trace
from simulator.autoscaling.configuration import PRICES, SimulationConfig
from simulator.autoscaling.world_file import World, world_named
from simulator.workloads.named import workload_of
from trainer.autoscaling.policy_names import model_file
from trainer.kit.fields import changes_of, pairs_of

EXACT = "exact"
_CLIPPED = ("minimum", "initial")
_OWN_BOOTS: dict[str, tuple[()]] = {"boot_lows_s": (), "boot_highs_s": (), "boot_quantiles_s": ()}


def world_of(
    text: str = EXACT,
    *,
    prices: str | None = None,
    boot: str | None = None,
    vm_types: Sequence[str] = (),
    limits: str | None = None,
    initial: str | None = None,
    changes: Sequence[str] = (),
    **fields_changed: Any,
) -> World:
    """Return a world with what is given changed; a field that is None stays as the world has it.

    text: the name of a world that ships with the program, or a world file. prices: `train` or `m5a`. boot: `const:71`
    or `uniform:45,97`, seconds. vm_types: `NAME,CORES,GB,PRICE` each for the world's. limits, initial: VMs per type,
    comma separated. changes: `FIELD=VALUE` for any field of the configuration, `compat.FIELD=VALUE` for one of a group.
    Minimum and initial fleet are cut to the limits, unless given. Raises BadInput, and FileRefused with every mistake
    in a file.
    """
    world = world_named(text)
    config = world.config
    changed: dict[str, Any] = {key: value for key, value in fields_changed.items() if value is not None}
    if prices is not None:
        table = PRICES.get(f"prices-{prices}")
        if table is None:
            names = ", ".join(name.removeprefix("prices-") for name in PRICES)
            raise BadInput("--prices", prices, f"choose one of {names}")
        if [kind.cores for kind in table] != list(config.cores):
            raise BadInput("--prices", prices, f"world {world.name} has other VM types: give prices in its file")
        changed["types"] = table
    if vm_types:
        changed["types"] = tuple(vm_type_of(text) for text in vm_types)
        kinds = len(changed["types"])
        changed.update(limits=(10,) * kinds, initial=(1,) * kinds, minimum=(1,) + (0,) * (kinds - 1))
        changed |= _OWN_BOOTS | {"speed": (), "reclaims_per_hour": ()}
    if boot is not None:
        changed["boot_low_s"], changed["boot_high_s"] = boot_times_s(boot)
        changed |= _OWN_BOOTS
    for option, counts in (("limits", limits), ("initial", initial)):
        if counts is not None:
            changed[option] = whole_numbers(f"--{option}", counts)
    given = {change.partition("=")[0] for change in changes} | ({"initial"} if initial is not None else set())
    if given & {"boot_low_s", "boot_high_s"}:
        changed |= _OWN_BOOTS
    changed.update(_field_changes(config, changes))
    kept = changed.get("limits", config.limits)
    for cut in _CLIPPED:
        sizes = changed.get(cut, getattr(config, cut))
        if cut not in given and len(sizes) == len(kept):
            changed[cut] = tuple(map(min, sizes, kept))
    return replace(world, config=replace(config, **changed))


def traces_of(workloads: Sequence[str], config: SimulationConfig) -> list[Trace]:
    """Return the traces of these workloads in a world; BadInput for one that is named twice."""
    for text in workloads:
        if list(workloads).count(text) > 1:
            raise BadInput("--workload", text, "name each workload once")
    return [workload_of(text, max(config.cores)) for text in workloads]


SEEDED = ("train-rand", "coevolution")
"""Workloads that are drawn anew for each seed."""


def traces_by_seed(workloads: Sequence[str], config: SimulationConfig) -> list[Callable[[int], Trace]]:
    """Return the trace of a seed for each workload: a new one for those of SEEDED, else always the same."""
    widest = max(config.cores)

    def drawn(text: str) -> Callable[[int], Trace]:
        return lambda seed: workload_of(f"{text}:{seed}", widest)

    def fixed(trace: Trace) -> Callable[[int], Trace]:
        return lambda seed: trace

    return [
        drawn(text) if text in SEEDED else fixed(trace)
        for text, trace in zip(workloads, traces_of(workloads, config), strict=True)
    ]


def policy_in_world(policy: str, world: World) -> str:
    """Return the text of a policy for a world that may hide the work of waiting jobs.

    There a queue rule or a scorer without `job_core_s` takes the world's typical job until one has finished. Raises
    BadInput for a network that observes that work.
    """
    # ONNX Runtime takes a while to load.
    from agent.models.card import ModelCard
    from agent.models.file import load_model

    expected = world.expected_job_core_s
    if not expected:
        return policy
    name, _, rest = policy.strip().partition(":")
    if model := model_file(policy):
        stem, _, rest = model.strip().rpartition(".onnx")
        name, rest = f"{stem}.onnx", rest.removeprefix(":")
        card = load_model(Path(name)).card
        if isinstance(card, ModelCard):
            if card.observation == "obs-7":
                return policy
            remedy = f"it sees the work of waiting jobs, which world {world.name} hides: set [jobs] known"
            raise BadInput("policy model", policy, remedy)
    elif name != "queue-rule":
        return policy
    if "job_core_s=" in rest:
        return policy
    return f"{name}:{rest}{',' if rest else ''}job_core_s={expected:g}"


def boot_times_s(text: str) -> tuple[float, float]:
    """Return the lowest and highest boot time of `const:71` or `uniform:45,97`; BadInput otherwise."""
    shape, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")]
    except ValueError:
        numbers = []
    if (shape, len(numbers)) not in {("const", 1), ("uniform", 2)}:
        raise BadInput("--boot", text, "give const:SECONDS or uniform:LOW,HIGH, such as const:71 or uniform:45,97")
    return numbers[0], numbers[-1]


def vm_type_of(text: str) -> VmType:
    """Return the VM type of `NAME,CORES,GB,PRICE`, such as `c5.xlarge,4,8,0.17`; BadInput otherwise."""
    parts = [part.strip() for part in text.split(",")]
    try:
        name, cores, memory_gb, price = parts
        return VmType(name, int(cores), float(memory_gb), float(price))
    except ValueError:
        raise BadInput("--vm", text, "give NAME,CORES,GB,DOLLARS_PER_HOUR, such as c5.xlarge,4,8,0.17") from None


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return whole numbers separated by commas; BadInput names the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadInput(option, text, "give whole numbers, one per VM type, such as 1,1,1") from None


def _field_changes(config: SimulationConfig, changes: Sequence[str]) -> dict[str, Any]:
    """Return the values of `FIELD=VALUE` texts, each read as the type of its field; groups are replaced whole."""
    found: dict[str, Any] = {}
    for path, text in pairs_of("--set", changes).items():
        name, dot, inner = path.partition(".")
        here: Any = found.get(name, getattr(config, name, None)) if dot else config
        names = [field.name for field in fields(here if is_dataclass(here) else config)]
        if not is_dataclass(here) or isinstance(here, type) or (inner or name) not in names:
            raise BadInput("--set", f"{path}={text}", f"give FIELD=VALUE with one of the fields {', '.join(names)}")
        read = changes_of("--set", type(here), {inner or name: text}, between=",")
        found |= {name: replace(here, **read)} if dot else read
    return found
