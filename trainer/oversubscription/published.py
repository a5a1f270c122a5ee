"""The published tables of C2MARL (internal cold and warm, azure), percent: mean and deviation over seeds (§7)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One line of a published table; None where the table has no such figure."""

    pm_hot_r: float
    s_cores: float
    c_hot_r: float | None = None
    s_cores_std: float | None = None


TABLES: dict[tuple[str, str], tuple[str, dict[str, Published]]] = {
    ("internal_like", "cold"): (
        "Tables 1 and 5",
        {
            "Grid-0.2": Published(30.9, 80.0, 97.2),
            "Grid-0.4": Published(22.7, 60.0, 72.7),
            "Grid-0.6": Published(0.0, 40.0, 0.0),
            "MA": Published(0.0, 49.2, 0.0),
            "SL": Published(0.2, 49.9, 0.6, 3.3),
            "C2MARL 0.75": Published(9.8, 66.1, 21.9, 6.7),
            "C2MARL 0.85": Published(6.6, 61.7, 13.9, 9.2),
            "C2MARL 0.95": Published(3.5, 59.9, 4.7, 1.9),
        },
    ),
    ("internal_like", "warm"): (
        "Table 2",
        {
            "Grid-0.2": Published(95.4, 80.0),
            "Grid-0.4": Published(100.0, 60.0),
            "Grid-0.6": Published(0.0, 40.0),
            "MA": Published(0.0, 49.2),
            "SL": Published(0.8, 49.9, None, 3.3),
            "C2MARL 0.75": Published(11.6, 69.2, None, 1.5),
            "C2MARL 0.85": Published(6.8, 65.1, None, 4.8),
            "C2MARL 0.95": Published(3.5, 69.0, None, 1.4),
        },
    ),
    ("azure_like", "cold"): (
        "Table 3",
        {
            "Grid-0.2": Published(100.0, 80.0),
            "Grid-0.4": Published(100.0, 60.0),
            "Grid-0.6": Published(100.0, 40.0),
            "MA": Published(0.0, 8.2),
            "SL": Published(0.0, 7.6, None, 2.2),
            "C2MARL 0.75": Published(19.0, 15.3, None, 0.13),
            "C2MARL 0.85": Published(8.3, 14.6, None, 0.1),
            "C2MARL 0.95": Published(0.0, 10.4, None, 0.2),
        },
    ),
}
"""By scenario and start: which tables, and their lines by method."""
