"""The two vectors of §6.5 of the placement specification."""

from __future__ import annotations

from domain.rules.placement.policies import Policy

FIRST = Policy(
    "first",
    "tiers17",
    (
        *(0.626, 0.238, -0.675, -0.988),
        *(-0.269, -0.097, 0.063, 0.404, -0.684, -0.737),
        *(-0.312, 0.735, -1.0, -0.598, -0.997, -0.312),
        1.0,
    ),
)
SECOND = Policy(
    "second",
    "tiers17",
    (
        *(-0.163, 0.428, -0.306, -0.972),
        *(-0.818, -0.083, -0.167, 0.713, -0.368, -0.286),
        *(-0.567, 0.107, -0.526, -0.942, -1.0, -0.322),
        -1.0,
    ),
)
