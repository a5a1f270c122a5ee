"""What decides how the learned oversubscription policy is trained, and its presets: as published, and robust (§4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from domain.errors import BadInput


@dataclass(frozen=True, slots=True)
class VdnConfig:
    """Everything that decides what is learnt; `preset` names two choices of it."""

    scenario: str = "internal_like"
    weeks: tuple[str, ...] = ("s0",)
    redrawn: int = 0
    """Weeks drawn anew after those named, to learn from as well; each episode takes one of all at random."""
    validation: int = 0
    """Further ones, never learnt from, on which a policy must be safe too to be kept."""
    start: str = "cold"
    alpha: float = 0.95
    seed: int = 0
    episodes: int = 1_800
    copies: int = 1
    """Episodes played side by side before each round of updates; with several, the first of them is greedy."""
    updates: int = 120
    """Gradient updates after each round."""
    batch: int = 10
    """Transitions per update, and below how many are kept."""
    capacity: int = 360
    gamma: float = 0.9
    tau: float = 0.001
    """Share by which the target network follows after each update."""
    target_update: str = "slow"
    """slow, or literal: the publication prints tau on the target (§10.2)."""
    learning_rate: float = 5e-4
    learning_rate_last: float = 5e-4
    """Where the learning rate comes to by the last episode, in a straight line."""
    averaged: bool = False
    """Whether the slowly following network is the policy that is judged and kept: noise of single updates fades."""
    dual_rate: float = 2.0
    dual: str = "bound"
    """bound: hot hours against the published bound; violations: weeks with too many of them against 1 - alpha."""
    aim: float = 0.0
    """Share of broken weeks that the price of `violations` steers to; 1 - alpha where 0."""
    dual_form: str = "sum"
    """sum: lambda moves by the rate times the excess; factor: by a factor, alike up and down, and so comes back from
    however far it went while the networks were young; ratio: likewise, by how many times too much is measured, so that
    a small excess counts as much as a small reserve."""
    cost: str = "sampled"
    """sampled: 1 in a hot hour; analytic: the chance of one (§12.3)."""
    credit: str = "cluster"
    """cluster: all learn from all hot hours; own: each from the cores it saves and the hot hours its VMs answer for."""
    usage: str = "gauss"
    """Usage in training: gauss, fresh in every episode, or replay, one log again and again, as published."""
    observation: str = "obs-o"
    hidden: tuple[int, ...] = (64, 64)
    shared: bool = False
    """One network for all subscribers, with the subscriber among its inputs."""
    lambda_start: float = 0.0
    lambda_max: float = 100.0
    epsilon_last: float = 0.05
    epsilon_share: float = 0.6
    """Share of the episodes over which exploration falls from 1 to `epsilon_last`."""
    exploration_h: int = 1
    """Hours for which an explored rate is held: what it does to the machines shows only when it lasts."""
    explore: str = "any"
    """any: an explored rate is any level; near: one level beside the greedy one, which teaches what is true there."""
    bootstrap_truncation: bool = False
    """Whether the last hour looks ahead as if the week went on (§10.18)."""
    evaluate_every: int = 25
    evaluation_episodes: int = 300

    def __post_init__(self) -> None:
        for name, known in (
            ("dual", ("bound", "violations")),
            ("dual_form", ("sum", "factor", "ratio")),
            ("cost", ("sampled", "analytic")),
            ("target_update", ("slow", "literal")),
            ("explore", ("any", "near")),
            ("credit", ("cluster", "own")),
        ):
            if getattr(self, name) not in known:
                raise BadInput(name, getattr(self, name), f"choose one of {', '.join(known)}")
        for name in ("episodes", "copies", "updates", "batch", "capacity", "exploration_h", "evaluate_every"):
            if getattr(self, name) < 1:
                raise BadInput(name, getattr(self, name), "give a whole number, 1 or more")
        for name in ("alpha", "gamma", "tau"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise BadInput(name, getattr(self, name), "give a number between 0 and 1")
        if self.dual_form != "sum" and not self.lambda_start:
            raise BadInput("lambda_start", self.lambda_start, "give it more than 0: no factor moves a 0")
        if min(self.redrawn, self.validation) < 0 or not 0.0 <= self.aim < 1.0:
            raise BadInput("redrawn", self.redrawn, "give numbers of weeks of 0 or more, and an aim from 0 to below 1")
        if self.learning_rate <= 0.0 or self.dual_rate <= 0.0 or not 0.0 <= self.lambda_start <= self.lambda_max:
            raise BadInput("learning_rate", self.learning_rate, "give positive rates, and lambda_start in its range")

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the configuration of JSON data."""
        lists = {name: tuple(data[name]) for name in ("weeks", "hidden") if name in data}
        return cls(**{**data, **lists})

    def plain(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "robust": {
        "episodes": 800,
        "copies": 8,
        "updates": 60,
        "batch": 256,
        "capacity": 60_000,
        "tau": 0.005,
        "dual": "violations",
        "cost": "analytic",
        "credit": "own",
        "gamma": 0.5,
        "lambda_start": 3.0,
        "dual_form": "factor",
        "dual_rate": 0.08,
        "observation": "obs-o-ext",
        "explore": "near",
        "exploration_h": 24,
        "averaged": True,
        "learning_rate": 1e-3,
        "learning_rate_last": 5e-5,
        "epsilon_share": 0.35,
        "evaluate_every": 8,
    },
}


def preset(name: str, **changes: Any) -> VdnConfig:
    """Return a preset with changes; BadInput for a name or field that there is not."""
    if name not in PRESETS:
        raise BadInput("preset", name, f"choose one of {', '.join(PRESETS)}")
    known = {field.name for field in fields(VdnConfig)}
    for change in changes:
        if change not in known:
            raise BadInput("setting", change, f"choose one of {', '.join(sorted(known))}")
    return VdnConfig(**{**PRESETS[name], **changes})
