"""The simulated world that options of the command line describe: preset, prices, boot times, fleet, and any field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from domain.errors import BadInput
from domain.fleet import VmType
from simulator.autoscaling.reference import PRESETS, PRICES, SimulationConfig, preset

EXACT = "exact"
_CLIPPED = ("minimum", "initial")


def world_names() -> tuple[str, ...]:
    """Return the names of the presets: `exact` (the training world), and the others of the simulator."""
    return (EXACT, *(name for name in PRESETS if not name.startswith("train-")))


def world_of(
    name: str = EXACT,
    *,
    prices: str | None = None,
    boot: str | None = None,
    vm_types: Sequence[str] = (),
    limits: str | None = None,
    initial: str | None = None,
    changes: Sequence[str] = (),
    **fields_changed: Any,
) -> SimulationConfig:
    """Return a preset with what is given changed; a field that is None stays as the preset has it.

    prices: `train` or `m5a`. boot: `const:71` or `uniform:45,97`, seconds. vm_types: `NAME,CORES,GB,PRICE` each
    for the preset's. limits, initial: VMs per type, comma separated. changes: `FIELD=VALUE` for any field of the
    configuration, `compat.FIELD=VALUE` for one of a group. Minimum and initial fleet are cut to the limits, unless
    given. Raises BadInput.
    """
    if name not in world_names():
        raise BadInput("--preset", name, f"choose one of {', '.join(world_names())}")
    config = preset("train-text" if name == EXACT else name)
    changed: dict[str, Any] = {key: value for key, value in fields_changed.items() if value is not None}
    if prices is not None:
        table = PRICES.get(f"prices-{prices}")
        if table is None:
            names = ", ".join(name.removeprefix("prices-") for name in PRICES)
            raise BadInput("--prices", prices, f"choose one of {names}")
        changed["types"] = table
    if vm_types:
        changed["types"] = tuple(vm_type_of(text) for text in vm_types)
        kinds = len(changed["types"])
        changed.update(limits=(10,) * kinds, initial=(1,) * kinds, minimum=(1,) + (0,) * (kinds - 1))
    if boot is not None:
        changed["boot_low_s"], changed["boot_high_s"] = boot_times_s(boot)
    for option, text in (("limits", limits), ("initial", initial)):
        if text is not None:
            changed[option] = whole_numbers(f"--{option}", text)
    given = {change.partition("=")[0] for change in changes} | ({"initial"} if initial is not None else set())
    changed.update(_field_changes(config, changes))
    kept = changed.get("limits", config.limits)
    for cut in _CLIPPED:
        counts = changed.get(cut, getattr(config, cut))
        if cut not in given and len(counts) == len(kept):
            changed[cut] = tuple(map(min, counts, kept))
    return replace(config, **changed)


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


def _field_changes(config: Any, changes: Sequence[str]) -> dict[str, Any]:
    """Return the values of `FIELD=VALUE` texts, each read as the type of its field; groups are replaced whole."""
    found: dict[str, Any] = {}
    for change in changes:
        path, equals, text = change.partition("=")
        name, dot, inner = path.partition(".")
        hints = get_type_hints(type(config))
        if not equals or name not in hints or (dot and not is_dataclass(getattr(config, name))):
            names = ", ".join(field.name for field in fields(config))
            raise BadInput("--set", change, f"give FIELD=VALUE with one of the fields {names}")
        if dot:
            group = found.get(name, getattr(config, name))
            found[name] = replace(group, **_field_changes(group, [f"{inner}={text}"]))
        else:
            found[name] = _value(change, hints[name], text.strip())
    return found


def _value(change: str, kind: Any, text: str) -> Any:
    """Read a text as a field's type."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return tuple(_value(change, item, part.strip()) for part in text.split(",")) if text else ()
    if kind is bool:
        if text.lower() not in _TRUTH:
            raise BadInput("--set", change, "give true or false")
        return _TRUTH[text.lower()]
    if not (isinstance(kind, type) and issubclass(kind, int | float | StrEnum)):
        raise BadInput("--set", change, "this field cannot be given as text")
    try:
        return kind(text)
    except ValueError:
        remedy = f"choose one of {', '.join(kind)}" if issubclass(kind, StrEnum) else f"give a {_NUMBERS[kind]}"
        raise BadInput("--set", change, remedy) from None


_TRUTH: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NUMBERS: Mapping[type, str] = {int: "whole number", float: "number"}
