"""Lengths of time, each defined here alone."""

from __future__ import annotations

MINUTE_S = 60.0
HOUR_S = 3_600.0
HOUR_MS = 3_600_000
DAY_S = 86_400.0
HOURS_PER_DAY = 24
HOURS_PER_WEEK = 168
HOURS_PER_MONTH = 730.0
HOURS_PER_YEAR = 8_760.0
