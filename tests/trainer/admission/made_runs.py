"""Tables of runs with figures that a test chooses."""

from collections.abc import Sequence

import numpy as np

from trainer.admission.table import Runs


def made(utilisation: Sequence[float], failures: Sequence[Sequence[int]], requests: int = 1000, first: int = 0) -> Runs:
    """Return runs with these utilisations and failures by month, `requests` a month, seeds from `first` on."""
    count, months = len(utilisation), len(failures[0])
    columns = {
        "seed": np.arange(first, first + count),
        "utilisation": np.asarray(utilisation, dtype=float),
        "utilisation_by_month": np.tile(np.asarray(utilisation, dtype=float)[:, None], (1, months)),
        "requests": np.full((count, months), requests),
        "failures": np.asarray(failures),
        "arrivals_by_class": np.zeros((count, 12), dtype=int),
        "admitted_by_class": np.zeros((count, 12), dtype=int),
        "horizons": np.zeros((count, 0)),
        "binding": np.zeros((count, 1), dtype=int),
    }
    rest = ("arrivals", "admitted", "unfit", "peak_cores", "crowded_h", "live", "events", "refreshes", "wall_s")
    return Runs.from_data({**columns, **{name: np.zeros(count) for name in rest}})
