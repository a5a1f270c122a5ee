"""Settings of the queue rule: the default, the first guess of a horizon, and a setting that was tuned.

Apart from the rule itself, which needs numpy: settings are read without it.
"""

from __future__ import annotations

from dataclasses import dataclass

HORIZON_S, IDLE_S, JOB_CORE_S = 150.0, 120.0, 120.0
"""The setting of a fleet that sets nothing (`benchmarks.rule_defaults`), not that of `RuleSetting()`."""
GUESS_OF_JOBS, SHORTEST_GUESS_S, LONGEST_GUESS_S = 1.2, 60.0, 600.0


@dataclass(frozen=True, slots=True)
class RuleSetting:
    """A setting of the queue rule: seconds of work ahead, seconds of idleness before a removal, work of a job.

    job_core_s: core-seconds of one waiting job where its work is not reported; 0 where that is known. The defaults
    here are the reference of evidence; a fleet without settings has HORIZON_S, IDLE_S and JOB_CORE_S.
    """

    horizon_s: float = 300.0
    idle_s: float = 0.0
    job_core_s: float = 0.0

    @property
    def name(self) -> str:
        """The rule as a policy's name in the simulator."""
        given = f"queue-rule:horizon_s={self.horizon_s:g},idle_s={self.idle_s:g},skip_cooling=true"
        return f"{given},job_core_s={self.job_core_s:g}" if self.job_core_s else given


def first_horizon_s(
    job_core_s: float, core_price: float, waiting_price: float, longest_s: float = LONGEST_GUESS_S
) -> float:
    """Return a first guess of the queue rule's horizon, seconds: 1.2 * job_core_s * core_price / waiting_price.

    job_core_s: core-seconds of a job. core_price: dollars per core and hour. waiting_price: dollars for an hour that a
    job waits, above 0. A queue of n jobs then gets n * waiting_price / (1.2 * core_price) cores. At least 60 s, and at
    most longest_s, 600 where no replay confirms it: real jobs have lengths of many orders, and their mean is that of
    the longest. Whole seconds, all of whose digits are in the policy's name. The factor was fitted by cost
    (`benchmarks.rule_defaults`).
    """
    guess_s = GUESS_OF_JOBS * job_core_s * core_price / waiting_price
    return float(round(min(max(guess_s, SHORTEST_GUESS_S), longest_s)))
