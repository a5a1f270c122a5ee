"""Which VMs are alive and where: read from a CSV file, every row judged before any is believed (§11)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agent.models.regular_files import read_file
from agent.oversubscription.records import RateRequest, Vm
from agent.oversubscription.usage import NAME
from domain.errors import BadInput
from domain.rules.oversubscription.pool import PoolRules

COLUMNS: Final = ("vm", "subscriber", "machine", "cores", "memory_gb", "network_gbit", "rate")
LARGEST_BYTES: Final = 64 * 2**20
SLACK: Final = 1e-9


def read_inventory(path: Path, rules: PoolRules) -> dict[str, Vm]:
    """Return the VMs that a file lists, by their name; BadInput names row and field, or why it cannot be read."""
    try:
        # What lists the VMs may well replace the file by pointing a link to the next one.
        text = read_file(path, LARGEST_BYTES, follow_links=True).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("inventory_file", str(path), f"give a CSV file that can be read: {error}") from None
    return parse_inventory(text, rules)


def parse_inventory(text: str, rules: PoolRules) -> dict[str, Vm]:
    """Return the VMs by name; BadInput `row N, FIELD` for the first that cannot be used, the header being row 1."""
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise BadInput("row 1", ",".join(rows.fieldnames or ()), f"add the columns {', '.join(missing)}")
    found: dict[str, Vm] = {}
    for number, row in enumerate(rows, start=2):
        where = f"row {number}, "
        vm = Vm(
            vm=_name(where + "vm", row["vm"]),
            subscriber=_name(where + "subscriber", row["subscriber"]),
            machine=_name(where + "machine", row["machine"]),
            cores=_number(where + "cores", row["cores"]),
            memory_gb=_number(where + "memory_gb", row["memory_gb"]),
            network_gbit=_number(where + "network_gbit", row["network_gbit"]),
            rate=_number(where + "rate", row["rate"]),
        )
        if vm.vm in found:
            raise BadInput(where + "vm", vm.vm, "list every VM once")
        if not 0.0 < vm.rate <= 1.0:
            raise BadInput(where + "rate", vm.rate, "give the share of its cores that is reserved, above 0 and up to 1")
        check_size(where, vm.cores, vm.memory_gb, vm.network_gbit, rules)
        found[vm.vm] = vm
    return found


def check_request(request: RateRequest, rules: PoolRules) -> None:
    """Raise BadInput naming the field of a request that cannot be used."""
    _name("subscriber", request.subscriber)
    if request.vm:
        _name("vm", request.vm)
    check_size("", request.cores, request.memory_gb, request.network_gbit, rules)


def check_size(where: str, cores: float, memory_gb: float, network_gbit: float, rules: PoolRules) -> None:
    """Raise BadInput for sizes that are no sizes, or larger than a whole machine."""
    largest: Mapping[str, tuple[float, float]] = {
        "cores": (cores, rules.machine_cores),
        "memory_gb": (memory_gb, rules.machine_memory_gb),
        "network_gbit": (network_gbit, rules.machine_network_gbit),
    }
    for name, (value, most) in largest.items():
        if isinstance(value, bool) or not math.isfinite(value) or value < 0.0:
            raise BadInput(where + name, value, "give a finite number, 0 or more")
        if value > most * (1.0 + SLACK):
            raise BadInput(where + name, value, f"no machine has more than {most:g}")
    if cores <= 0.0:
        raise BadInput(where + "cores", cores, "give more than 0 cores")


def _name(where: str, text: str | None) -> str:
    if text is None or NAME.fullmatch(text) is None:
        raise BadInput(where, text, "give a name of letters, digits and _:@/+- without dots, up to 128 characters")
    return text


def _number(where: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise BadInput(where, text, "give a number") from None
    if not math.isfinite(value):
        raise BadInput(where, text, "give a finite number")
    return value
