"""Which worlds and traces the clairvoyant model covers."""

from __future__ import annotations

from domain.errors import BadInput
from domain.workload import WHOLE_VM, Trace
from simulator.autoscaling.reference import SimulationConfig
from simulator.autoscaling.reference.configuration import Billing, RemovalMode
from trainer.autoscaling.baselines.grid import MOST_STARTS, grid_of, starts_of

LONGEST_S = 300 * 60.0
"""A trace whose last job cannot end sooner than this is not tried."""


class Unavailable(BadInput):
    """There is no clairvoyant model of this world or trace."""


def first_end_s(config: SimulationConfig, trace: Trace) -> float:
    """Return when the last job ends if none ever waits, seconds."""
    return float((trace.arrival_s + trace.service_s / config.speeds[0]).max(initial=0.0))


def check_available(config: SimulationConfig, trace: Trace) -> None:
    """Raise Unavailable, which names all of the world and the trace that the model has not."""
    faults = {
        "jobs released by others": trace.staged,
        "jobs that take whole VMs": bool((trace.width == WHOLE_VM).any()),
        "a trace without jobs": trace.jobs == 0,
        f"more than {LONGEST_S / 60:.0f} minutes": first_end_s(config, trace) > LONGEST_S,
        "a cool-down": config.cooldown_s > 0.0,
        "drain or checkpoint": config.removal_mode is not RemovalMode.IMMEDIATE,
        "removal of booting VMs": config.cancel_booting,
        "billing other than by the step": config.billing is not Billing.STEP,
        "the integral penalty": config.integral_penalty,
        "core speeds that differ": len(set(config.speeds)) > 1,
    }
    found = [name for name, there in faults.items() if there]
    if not found:
        starts = starts_of(config, trace, grid_of(config, trace))
        found = [f"so many lengths of jobs and minutes ({starts:,} starts)"] if starts > MOST_STARTS else []
    if found:
        raise Unavailable("clairvoyant plan", trace.name, f"the model does not cover {', '.join(found)}")
