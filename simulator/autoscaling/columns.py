"""The columns of a trace as the twin and the kernel read them (§2.2)."""

from __future__ import annotations

from domain.errors import TraceError
from domain.workload import NO_STAGE, Trace
from simulator.autoscaling.configuration import SimulationConfig, truncated_service_s


class JobColumns:
    """Columns of a trace, the releases, and the size of each stage; TraceError when a job fits no VM type.

    fixed: indices of the jobs with an arrival of their own, in order of arrival. released_by: stage to the jobs that
    its end releases. stage_sizes: stage to number of jobs. handover: per job the step at whose start it is handed over,
    None where jobs arrive at their own time (compat row 2).
    """

    def __init__(self, trace: Trace, config: SimulationConfig) -> None:
        widest = max((t.cores for t, limit in zip(config.types, config.limits, strict=True) if limit > 0), default=0)
        too_wide = trace.width > widest
        if too_wide.any():
            first = int(too_wide.argmax())
            raise TraceError(
                f"trace {trace.name}: width of job {int(trace.job_id[first])}",
                int(trace.width[first]),
                f"the largest VM has {widest} cores: split, cap or mold the job",
            )
        if trace.jobs > 0 and widest == 0:
            raise TraceError(f"trace {trace.name}: jobs", trace.jobs, "no VM type may be used: raise a limit above 0")
        self.jobs = trace.jobs
        self.job_id: list[int] = trace.job_id.tolist()
        self.arrival: list[float] = trace.arrival_s.tolist()
        self.service: list[float] = trace.service_s.tolist()
        if config.compat.truncated_service:
            self.service = [truncated_service_s(service_s, config.step_s) for service_s in self.service]
        self.handover: list[int] | None = None
        if config.compat.arrivals_by_minute:
            self.handover = [int(arrival_s // config.step_s) for arrival_s in self.arrival]
        self.width: list[int] = trace.width.tolist()
        self.ram: list[float] = trace.ram_gb.tolist()
        self.pause: list[float] = trace.pause_s.tolist()
        self.stage: list[int] = trace.stage.tolist()
        self.serial_fraction = trace.serial_fraction
        released = [index for index in range(self.jobs) if trace.release_after[index] != NO_STAGE]
        self.released_by: dict[int, list[int]] = {}
        for index in released:
            self.released_by.setdefault(int(trace.release_after[index]), []).append(index)
        waits = set(released)
        self.fixed = sorted((i for i in range(self.jobs) if i not in waits), key=lambda i: (self.arrival[i], i))
        self.stage_sizes: dict[int, int] = {}
        for number in self.stage:
            self.stage_sizes[number] = self.stage_sizes.get(number, 0) + 1
