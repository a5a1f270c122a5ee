"""Workloads by name, as the trainer's commands take them; the reader stands with the generators it names."""

from simulator.workloads.named import workload_names, workload_of

__all__ = ["workload_names", "workload_of"]
