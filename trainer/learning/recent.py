"""Recent production as cases of the gate: traces from files, or made of what the agent's ledger recorded (§12.4)."""

from __future__ import annotations

from collections.abc import Sequence

from domain.errors import BadInput
from domain.units import DAY_S
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.named import workload_of
from trainer.autoscaling.evaluation.suite import Case
from trainer.learning.recorded import fitted_world, fleets_of, newest_end, read_recorded, shape_of, traced

FAMILY = "recent"
LEDGER_ENDINGS = (".db", ".sqlite", ".sqlite3")
BOOTS = 3
"""Boot seeds per trace: when a VM of production had booted is no part of a trace, so several are tried."""


def recent_cases(sources: Sequence[str], config: SimulationConfig | None = None, *, days: int = 7) -> list[Case]:
    """Return cases of trace files (CSV, SWF), workloads by name, and ledgers (a SQLite file or a URL).

    config: the world for traces without a fleet of their own, `live-like` by default; a ledger brings its fleet.
    days: how many of its last days are used. Raises BadInput when a source holds nothing that can be replayed.
    """
    world = config or preset("live-like")
    cases: list[Case] = []
    for source in sources:
        if "://" in source or source.endswith(LEDGER_ENDINGS):
            pairs = _of_ledger(source, world, days)
        else:
            pairs = [(world, workload_of(source, max(world.cores)))]
        for fitted, trace in pairs:
            cases += [
                Case(f"{FAMILY} {trace.name} boot {seed}", FAMILY, "live-like", fitted, trace, seed)
                for seed in range(BOOTS)
            ]
    return cases


def _of_ledger(source: str, world: SimulationConfig, days: int) -> list[tuple[SimulationConfig, Trace]]:
    pairs = []
    for name in fleets_of(source):
        newest = newest_end(source, name)
        if newest is None:
            continue
        recorded = read_recorded(source, name, since=newest - days * DAY_S)
        fitted = fitted_world(world, recorded.fleet)
        # Before a change of its groups it was another fleet.
        same = (one for one in traced(recorded) if shape_of(one.fleet) == shape_of(recorded.fleet))
        pairs += [(fitted, one.trace) for one in same]
    if not pairs:
        raise BadInput(
            "--recent",
            source,
            "this ledger records no jobs, or nothing of their length: name a trace file, or leave it out",
        )
    return pairs
