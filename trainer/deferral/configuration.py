"""What decides how a learned policy of deferral is trained: its method, and the settings of each phase (§5, §10.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from domain.errors import BadInput
from domain.rules.deferral.choosing import DECODINGS, Decoding
from simulator.deferral.scenarios import scenario_of

METHODS: Mapping[str, str] = {
    "full": "set transformer with both vectors of the predictor (OSDEC)",
    "aux-high": "set transformer with the high-level vector alone (PPO+AuxH)",
    "aux-low": "set transformer with the low-level vector alone (PPO+AuxL)",
    "attention": "set transformer without the predictor's vectors (PPO+Att)",
    "reinforce": "the same network by REINFORCE: reward to go, less the batch's mean",
    "mlp": "64 slots through two layers of 256 (PPO-MLP)",
    "pointer": "LSTM that reads the jobs and points at one after another (PointerNet)",
}
SETS = ("full", "aux-high", "aux-low", "attention", "reinforce")
"""Methods with a set transformer, which can imitate and be exported."""
SEPARATOR = "+"
LABELS, CREDITS = ("prices", "starts"), ("earned", "prices")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that decides what is learnt."""

    method: str = "full"
    scenario: str = "valley"
    """Or several, joined by +, which take turns."""
    seed: int = 0
    decoding: Decoding = "knapsack"
    """How scores are decoded in PPO and where weights are chosen."""
    rounds: int = 12
    """Rounds of imitation, each of so many episodes as there are environments; 0 for none."""
    labels: str = "prices"
    """Which starts are imitated: the most valuable ones by the optimum's prices, or the optimum's own."""
    passes: int = 2
    """Over the states of a round."""
    imitation_rate: float = 1e-3
    """Learning rate of imitation, which falls to a twentieth of it."""
    price_draws: int = 2
    price_noise: float = 0.16
    """Capacities that an episode is priced with, and the deviation of their noise as a share of the mean capacity."""
    iterations: int = 4
    """Of PPO, or of REINFORCE; 0 for none."""
    environments: int = 16
    steps: int = 128
    """Of each environment in an iteration."""
    minibatch: int = 64
    epochs: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    gradient_norm: float = 0.5
    entropy: float = 0.0
    policy_rate: float = 1e-4
    value_rate: float = 2e-4
    auxiliary_rate: float = 1e-2
    """Each falls to a tenth of it in a straight line."""
    deviation: float = 0.5
    """Of the scores where PPO begins."""
    kl: float = 0.0
    """Price of the distance from the policy that imitation came to."""
    credit: str = "earned"
    """What a step of PPO is credited with: what it earned, or `prices`, less what it lost by the optimum's prices."""
    value_iterations: int = 0
    """First iterations of PPO in which only the value is learnt."""
    scale_low: float = 10.0
    scale_high: float = 10.0
    end_to_end: bool = False
    """Whether the policy's gradients go on into the predictor."""
    evaluate_every: int = 4
    evaluation_episodes: int = 40
    """Calibration seeds, 1,000,000 on, that choose the weights that are kept."""

    def __post_init__(self) -> None:
        for name, known in (
            ("method", tuple(METHODS)),
            ("decoding", DECODINGS),
            ("labels", LABELS),
            ("credit", CREDITS),
        ):
            if getattr(self, name) not in known:
                raise BadInput(name, getattr(self, name), f"choose one of {', '.join(known)}")
        for name in self.scenarios:
            scenario_of(name)
        for name in ("passes", "environments", "steps", "minibatch", "epochs", "price_draws", "evaluate_every"):
            if getattr(self, name) < 1:
                raise BadInput(name, getattr(self, name), "give a whole number, 1 or more")
        if min(self.rounds, self.iterations) < 0 or self.rounds + self.iterations < 1:
            raise BadInput("rounds", self.rounds, "give 0 or more rounds and iterations, and one of either")
        if self.rounds and self.method not in SETS:
            raise BadInput("rounds", self.rounds, f"{self.method} does not imitate: give 0")
        if self.method == "reinforce" and (self.kl or self.value_iterations):
            raise BadInput("kl", self.kl, "REINFORCE has neither an anchor nor a value: give 0 of both")
        if not 1 <= self.evaluation_episodes <= 40:
            raise BadInput("evaluation_episodes", self.evaluation_episodes, "give 1 to 40: there are 40 such seeds")
        for name in ("imitation_rate", "policy_rate", "value_rate", "auxiliary_rate", "gradient_norm"):
            if not getattr(self, name) > 0.0:
                raise BadInput(name, getattr(self, name), "give a number above 0")
        if not (0.0 < self.gamma <= 1.0 and 0.0 <= self.gae_lambda <= 1.0 and 0.0 < self.clip < 1.0):
            raise BadInput("gamma", self.gamma, "give gamma, gae_lambda and clip as shares of 1")
        if not 0.002 <= self.deviation <= 5.0 or self.kl < 0.0 or self.price_noise < 0.0:
            raise BadInput("deviation", self.deviation, "give 0.002 to 5, and neither a kl nor a noise below 0")

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the scenarios that take turns."""
        return tuple(self.scenario.split(SEPARATOR))

    @property
    def waits(self) -> bool:
        """Whether jobs whose start is worth nothing wait: what a start is worth is learnt by imitation alone."""
        return self.rounds > 0

    @property
    def updates(self) -> int:
        """Rounds and iterations together."""
        return self.rounds + self.iterations

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the configuration of JSON data."""
        return cls(**data)

    def plain(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        return asdict(self)


IMITATION, PAPER = "imitation", "paper"
PRESETS: Mapping[str, Mapping[str, Any]] = {
    IMITATION: {
        "credit": "prices",
        "gamma": 0.95,
        "gae_lambda": 0.9,
        "deviation": 0.05,
        "kl": 0.03,
        "value_iterations": 1,
        "policy_rate": 1e-5,
        "value_rate": 1e-3,
    },
    PAPER: {"decoding": "prefix", "rounds": 0, "iterations": 500},
}
"""Imitation of the optimum with PPO after it; and as published, from nothing (§5)."""


def preset(name: str, **changes: Any) -> Config:
    """Return a preset with changes; BadInput for an unknown name."""
    if name not in PRESETS:
        raise BadInput("--preset", name, f"choose one of {', '.join(PRESETS)}")
    return Config(**{**PRESETS[name], **changes})
