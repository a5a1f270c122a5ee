"""The parameters that each rule is tuned over (autoscaler specification §9 and §11)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from simulator.autoscaling.reference import SimulationConfig

HIGH = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
TARGETS = (0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
HORIZONS_S = (60, 90, 120, 150, 180, 210, 240, 270, 300, 360, 420, 480, 540, 600, 700, 800, 900, 1200, 1800, 3600)
IDLE_S = (0, 60, 120, 180, 300, 600)


def threshold_grid(config: SimulationConfig) -> list[str]:
    """High threshold 50-95 %, hysteresis none or down to 30 or 50 %, periods 1-3, warm-up on or off, cool-downs."""
    texts = []
    for high, low, periods, excluding, cooldown_s in itertools.product(
        HIGH, (None, 0.5, 0.3), (1, 2, 3), ("true", "false"), (0, 120, 300, 600)
    ):
        if low is not None and low >= high:
            continue
        lowest = high if low is None else low
        texts.append(
            f"threshold:high={high},low={lowest},periods={periods},exclude_warming={excluding},cooldown_s={cooldown_s}"
        )
    return texts


def target_tracking_grid(config: SimulationConfig) -> list[str]:
    """Target 30-90 %, minutes until a change out and in, warm-up on or off, groups that may go to none or not."""
    return [
        f"target-tracking:target={target},out_periods={out},in_periods={back},warmup_s={warmup_s},keep_one={keep}"
        for target, out, back, warmup_s, keep in itertools.product(
            TARGETS, (1, 3), (1, 3, 5, 15), (0, 300), ("true", "false")
        )
    ]


def queue_rule_grid(config: SimulationConfig, *, single: bool) -> list[str]:
    """Horizon, idle minutes, busy cores as cover or not; with a cool-down also which types are chosen among."""
    skips = ("false", "true") if config.cooldown_s > 0 else ("false",)
    return [
        f"queue-rule:horizon_s={horizon_s},idle_s={idle_s},single={str(single).lower()},busy_counts={busy},"
        f"skip_cooling={skip}"
        for horizon_s, idle_s, busy, skip in itertools.product(HORIZONS_S, IDLE_S, ("true", "false"), skips)
    ]


def fixed_ramp_grid(config: SimulationConfig, *, single: bool) -> list[str]:
    """Fixed fleets of every size, a few numbers of VMs per type."""
    counts = []
    for low, limit in zip(config.minimum, config.limits, strict=True):
        counts.append(sorted({n for n in (0, 1, 2, 3, 4, 6, 8, 10, limit) if low <= n <= limit}))
    return [
        f"fixed-ramp:{','.join(map(str, sizes))},single={str(single).lower()}"
        for sizes in itertools.product(*counts)
        if any(sizes)
    ]


GRIDS: Mapping[str, Callable[[SimulationConfig], list[str]]] = {
    "queue-rule": lambda config: queue_rule_grid(config, single=False),
    "queue-rule-single": lambda config: queue_rule_grid(config, single=True),
    "threshold": threshold_grid,
    "target-tracking": target_tracking_grid,
    "fixed-ramp": lambda config: fixed_ramp_grid(config, single=False),
    "fixed-ramp-single": lambda config: fixed_ramp_grid(config, single=True),
}
"""Policy to tune, and the texts of its grid for a world; `-single` stands for one VM a minute (act-7)."""
