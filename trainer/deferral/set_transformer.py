"""The set transformer of deferral and its training (specification §4, §5, §10.4).

From top to bottom: settings, networks, decisions of a network, imitation of the offline optimum, PPO, loop. One update
is a round of imitation, or an iteration of PPO or REINFORCE. A resumed run continues bit for bit.

A state is a set of tokens [B, M, 18] with a mask [B, M], and a window of the last steps [B, 24, 11]; see
`domain.rules.deferral.tokens`. Row 0 is the empty token. Every network scores the jobs that may start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from domain.errors import BadInput
from domain.rules.deferral.choosing import DECODINGS, Decoding, View, decode, knapsack, packed
from domain.rules.deferral.jobs import W2, Ints, Score, objective
from domain.rules.deferral.tokens import (
    CURRENT,
    THETA,
    TOKEN_FEATURES,
    WINDOW_FEATURES,
    WORTH,
    Tokens,
    scores_of,
    stacked,
    tokens,
    values_of,
    window,
    with_waiting,
)
from simulator.deferral.scenarios import CALIBRATION_SEEDS, TRAINING_SEED, Episode, episode, scenario_of
from simulator.deferral.world import World
from trainer.deferral.exact import Outlook, best_starts, labels, outlook_of
from trainer.kit.checkpoint import Checkpoint, Checkpoints, Clock, resume
from trainer.kit.device import CPU, DEVICES, device_of
from trainer.kit.ppo import RewardScale, advantages, clipped_loss, divergence
from trainer.kit.progress import Progress

Floats = NDArray[np.float64]

# Settings.

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
    """The settings of a run. Raises BadInput."""

    method: str = "full"
    scenario: str = "valley"  # or several, joined by +, which take turns
    seed: int = 0
    decoding: Decoding = "knapsack"  # of scores in PPO and where weights are chosen
    rounds: int = 12  # of imitation, each of an episode per environment; 0 for none
    labels: str = "prices"  # imitated starts: the most valuable ones by the optimum's prices; starts: the optimum's
    passes: int = 2  # over the states of a round
    imitation_rate: float = 1e-3  # learning rate of imitation; it falls to a twentieth
    price_draws: int = 2  # capacities that an episode is priced with
    price_noise: float = 0.16  # deviation of their noise, as a share of the mean capacity
    iterations: int = 4  # of PPO, or of REINFORCE; 0 for none
    environments: int = 16
    steps: int = 128  # of each environment in an iteration
    minibatch: int = 64
    epochs: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    gradient_norm: float = 0.5
    entropy: float = 0.0
    policy_rate: float = 1e-4
    value_rate: float = 2e-4
    auxiliary_rate: float = 1e-2  # of the predictor; the three rates fall to a tenth in a straight line
    deviation: float = 0.5  # of the scores where PPO begins
    kl: float = 0.0  # price of the distance from the policy of the imitation
    credit: str = "earned"  # of a step of PPO: its earnings; prices: its loss by the optimum's prices
    value_iterations: int = 0  # first iterations of PPO, in which only the value is learnt
    scale_low: float = 10.0  # of the predictor's vectors
    scale_high: float = 10.0
    end_to_end: bool = False  # the policy's gradients reach the predictor
    evaluate_every: int = 4  # updates
    evaluation_episodes: int = 40  # calibration seeds, from 1,000,000, that choose the weights
    device: str = CPU  # or cuda

    def __post_init__(self) -> None:
        for name, known in (
            ("method", tuple(METHODS)),
            ("decoding", DECODINGS),
            ("labels", LABELS),
            ("credit", CREDITS),
            ("device", DEVICES),
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
        """Whether jobs whose start is worth nothing wait: only imitation learns the worth of a start."""
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


# Networks.

FEATURES, STEP_FEATURES = len(TOKEN_FEATURES), len(WINDOW_FEATURES)
WIDTH, INNER, LAYERS = 64, 128, 2
LEAST_DEVIATION = 1e-3
TASKS = ("capacity", "mean_cores", "mean_duration", "violation_charge")
"""Predictions of the next step (§4.1)."""
MEMORY, LEVEL = 32, 5
NEVER = -1e9
SLOTS = 1 + 64
"""Rows that the network without attention sees: the empty token and 64 jobs in the order of their submission."""


class Inputs(NamedTuple):
    """States: tokens [B, M, 18] float32, mask [B, M] bool, window [B, 24, 11] float32."""

    tokens: Tensor
    mask: Tensor
    window: Tensor

    @property
    def current(self) -> Tensor:
        """Return which rows are jobs that may start, [B, M]."""
        return self.mask & (self.tokens[..., CURRENT] > 0.5)

    def on(self, device: torch.device) -> Inputs:
        """Return the states on a device."""
        return Inputs(*(part.to(device) for part in self))

    def rows(self, chosen: Tensor) -> Inputs:
        """Return the states at these places, without columns of tokens that none of them needs."""
        mask = self.mask[chosen]
        most = int(mask.any(dim=0).nonzero().max()) + 1
        return Inputs(self.tokens[chosen, :most], mask[:, :most], self.window[chosen])


class Answer(NamedTuple):
    """Scores of a network for states."""

    order: Tensor
    """[B, M]: confidence that a job starts, -1 to 1; jobs start in this order."""
    worth: Tensor
    """[B, M]: worth of a start by core, in units of `tokens.WORTH`: for the decoding by knapsack."""
    deviation: Tensor
    """[B, M]: standard deviation of either where the policy explores."""
    value: Tensor
    """[B]"""
    foretold: Tensor
    """[B, 4]: the next step, standardised, see `TASKS`."""

    def on(self, device: torch.device) -> Answer:
        """Return the scores on a device."""
        return Answer(*(part.to(device) for part in self))

    def mean(self, kind: Decoding) -> Tensor:
        """Return the scores [B, M] that a decoding goes by."""
        return self.worth if kind == "knapsack" else self.order


class Predictor(nn.Module):
    """Predicts the next step from the last 24 (§4.1); the policy takes its low- and high-level vectors.

    Its targets are standardised by `centre` and `spread`, [4] each.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(STEP_FEATURES, MEMORY, batch_first=True)
        self.low = nn.Linear(MEMORY, LEVEL)
        self.high = nn.Linear(LEVEL, LEVEL)
        self.heads = nn.Linear(LEVEL, len(TASKS))
        self.register_buffer("centre", torch.zeros(len(TASKS)))
        self.register_buffer("spread", torch.ones(len(TASKS)))

    def forward(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the low-level vector [B, 5], the high-level one [B, 5], and the standardised next step [B, 4]."""
        _, last = self.memory(window)
        low = torch.tanh(self.low(last[0]))
        high = torch.tanh(self.high(low))
        return low, high, self.heads(high)


class Layer(nn.Module):
    """One layer of the encoder: attention over all tokens, then a network for each; norms after the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, rows: Tensor, absent: Tensor) -> Tensor:
        """Return the rows [B, M, 64]; absent: [B, 1, M], added to the attention to each row."""
        query, key, value = self.joined(rows).split(WIDTH, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2) * WIDTH**-0.5 + absent, dim=-1)
        rows = self.first(rows + self.out(weights @ value))
        summed: Tensor = self.second(rows + self.outer(functional.relu(self.inner(rows))))
        return summed


class SetPolicy(nn.Module):
    """The published network (§4), equivariant to the order of the tokens.

    low, high: whether the predictor's vectors go with every token, times `scale_low` and `scale_high`. end_to_end:
    whether the policy's gradients reach the predictor. deviation: of the scores before training. shared: whether the
    value's gradients reach the encoder.
    """

    def __init__(
        self,
        *,
        low: bool = True,
        high: bool = True,
        scale_low: float = 10.0,
        scale_high: float = 10.0,
        end_to_end: bool = False,
        deviation: float = 0.5,
        shared: bool = True,
    ) -> None:
        super().__init__()
        self.low, self.high, self.shared = low, high, shared
        self.scale_low, self.scale_high, self.end_to_end = scale_low, scale_high, end_to_end
        self.predictor = Predictor()
        self.embedding = nn.Linear(FEATURES + LEVEL * (low + high), WIDTH)
        self.empty = nn.Parameter(0.1 * torch.randn(WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.order, self.worth, self.deviation = _head(), _head(), _head()
        self.value = nn.Linear(WIDTH, 1)
        set_deviation(self.deviation, deviation)

    def forward(self, inputs: Inputs) -> Answer:
        """Return scores, their deviations, the value, and the predicted next step."""
        tokens, mask, window = inputs
        low, high, foretold = self.predictor(window)
        predicted = [vector * scale for vector, scale in self._predictions_with_scale(low, high)]
        if not self.end_to_end:
            predicted = [vector.detach() for vector in predicted]
        beside = [vector.unsqueeze(1).expand(-1, tokens.shape[1], -1) for vector in predicted]
        rows = self.embedding(torch.cat([tokens, *beside], dim=-1))
        nothing = torch.zeros_like(rows)
        nothing[:, 0] = self.empty
        rows = self.norm(rows + nothing)
        absent = torch.where(mask, 0.0, NEVER).unsqueeze(1)
        for layer in self.layers:
            rows = layer(rows, absent)
        order, worth = (torch.tanh(head(rows).squeeze(-1)) for head in (self.order, self.worth))
        deviation = functional.softplus(self.deviation(rows).squeeze(-1)) + LEAST_DEVIATION
        counted = mask.to(rows.dtype)
        judged = rows if self.shared else rows.detach()
        value = (self.value(judged).squeeze(-1) * counted).sum(-1) / counted.sum(-1)
        return Answer(order, worth, deviation, value, foretold)

    def _predictions_with_scale(self, low: Tensor, high: Tensor) -> list[tuple[Tensor, float]]:
        return [(low, self.scale_low)] * self.low + [(high, self.scale_high)] * self.high


class SlotPolicy(nn.Module):
    """PPO-MLP: the first 64 jobs in the order of their submission, side by side, through two layers of 256."""

    def __init__(self, deviation: float = 0.5) -> None:
        super().__init__()
        self.predictor = Predictor()
        self.trunk = nn.Sequential(
            nn.Linear(SLOTS * FEATURES, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2 * SLOTS + 1)
        )
        self.offset = float(torch.log(torch.expm1(torch.tensor(deviation))))

    def forward(self, inputs: Inputs) -> Answer:
        """Return the answers; a job beyond the slots has the mean of nothing, 0."""
        tokens, mask, window = inputs
        used = min(tokens.shape[1], SLOTS)
        slots = functional.pad(tokens[:, :used] * mask[:, :used, None], (0, 0, 0, SLOTS - used))
        made = self.trunk(slots.flatten(1))
        beyond = tokens.shape[1] - used
        mean = functional.pad(torch.tanh(made[:, :used]), (0, beyond))
        raw = functional.pad(made[:, SLOTS : SLOTS + used], (0, beyond))
        deviation = functional.softplus(raw + self.offset) + LEAST_DEVIATION
        return Answer(mean, mean, deviation, made[:, -1], self.predictor(window)[2])


class PointerPolicy(nn.Module):
    """PointerNet: an LSTM reads the tokens in the order of submission, another one points at jobs, one after another.

    An action is an order of the jobs that may start, written as scores: 0 for the first, -1 for the next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.predictor = Predictor()
        self.reader = nn.LSTM(FEATURES, WIDTH, batch_first=True)
        self.pointer = nn.LSTMCell(WIDTH, WIDTH)
        self.start = nn.Parameter(0.1 * torch.randn(WIDTH))
        self.key, self.query, self.likeness = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.value = nn.Linear(WIDTH, 1)

    def points(
        self, inputs: Inputs, ranks: Tensor | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Answer]:
        """Return the order as scores [B, M], its log-probability [B], the entropy of its choices [B], and the answer.

        ranks: scores of an order to judge; None to make one, by drawing from `generator` or by the largest without it.
        """
        tokens, mask, window = inputs
        # Rows that do not count come last, and are not read.
        counted = pack_padded_sequence(tokens, mask.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
        packed, (hidden, cell) = self.reader(counted)
        read, _ = pad_packed_sequence(packed, batch_first=True, total_length=tokens.shape[1])
        keys, left = self.key(read), inputs.current.clone()
        h, c, row = hidden[0], cell[0], self.start.expand(len(tokens), -1)
        scores = tokens.new_zeros(mask.shape) if ranks is None else ranks
        total, entropy = tokens.new_zeros(len(tokens)), tokens.new_zeros(len(tokens))
        everyone = torch.arange(len(tokens), device=tokens.device)
        for place in range(int(left.sum(dim=1).max())):
            h, c = self.pointer(row, (h, c))
            logits = self.likeness(torch.tanh(keys + self.query(h).unsqueeze(1))).squeeze(-1)
            some = left.any(dim=1)
            log_all = torch.log_softmax(torch.where(left, logits, NEVER), dim=-1)
            chances = log_all.exp()
            if ranks is not None:
                taken = torch.where(left, (ranks + place).abs(), torch.inf).argmin(dim=1)
            elif generator is None:
                taken = log_all.argmax(dim=1)
            else:
                # Drawn here, so that a seed draws the same on every device.
                taken = torch.multinomial(chances.cpu(), 1, generator=generator).squeeze(1).to(tokens.device)
            total = total + torch.where(some, log_all[everyone, taken], 0.0)
            entropy = entropy - torch.where(some, (chances * log_all).sum(dim=1), 0.0)
            if ranks is None:
                scores[everyone[some], taken[some]] = -float(place)
            left = left.clone()
            left[everyone[some], taken[some]] = False
            row = read[everyone, taken]
        value = self.value(hidden[0]).squeeze(-1)
        answer = Answer(scores, scores, torch.ones_like(scores), value, self.predictor(window)[2])
        return scores, total, entropy, answer

    def forward(self, inputs: Inputs) -> Answer:
        """Return the likeliest order."""
        return self.points(inputs)[3]


Network = SetPolicy | SlotPolicy | PointerPolicy


@torch.no_grad()
def answer_of(network: Network, inputs: Inputs) -> Answer:
    """Return the answer of a network, on any device, for states of the processor; without gradients."""
    answer: Answer = network(inputs.on(network.predictor.centre.device))
    return answer.on(inputs.tokens.device)


def set_deviation(head: nn.Module, deviation: float) -> None:
    """Set a head of deviations to about `deviation` for every job."""
    last = [layer for layer in head.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(float(torch.log(torch.expm1(torch.tensor(deviation - LEAST_DEVIATION)))))


def widened(tensor: Tensor, rows: int) -> Tensor:
    """Return [B, M] or [B, M, F] with rows of zeros added, so that there are `rows`."""
    spare = rows - tensor.shape[1]
    return functional.pad(tensor, (0, spare) if tensor.dim() == 2 else (0, 0, 0, spare))


def _head() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


# Decisions of a network.

SIDE_BY_SIDE = 32
"""Episodes that are judged together."""


class Observation(NamedTuple):
    """Several worlds at one moment."""

    views: list[View]
    states: list[Tokens]
    inputs: Inputs


def see(worlds: Sequence[World], cref: float) -> Observation:
    """Return the observations of worlds that are not done; cref: mean capacity in training, cores."""
    views = [world.view() for world in worlds]
    states = [tokens(view, cref) for view in views]
    matrices, masks = stacked(states)
    windows = np.stack([window(view, cref) for view in views])
    return Observation(views, states, Inputs(*(torch.from_numpy(array) for array in (matrices, masks, windows))))


def starts(view: View, scores: Floats, kind: Decoding, worth: Floats | None = None) -> Ints:
    """Return the positions in `view.cur` that start, by scores [K]; raises ScoresUnusable.

    worth: [K]; a job that is worth nothing does not start at any confidence.
    """
    if worth is not None and kind != "knapsack":
        scores = with_waiting(scores, worth)
        return decode(scores, view.cur.cores, view.free, kind, ties=view.cur.submitted, theta=THETA)
    values = values_of(scores, view.cur.cores) if kind == "knapsack" else scores
    return decode(values, view.cur.cores, view.free, kind, ties=view.cur.submitted)


def starts_of(seen: Observation, scores: Tensor, kind: Decoding, worth: Tensor | None = None) -> list[Ints]:
    """Return for each world the positions that start, by the scores [B, M] of its rows; worth: as for `starts`."""
    known = [column.detach().double().numpy() for column in ((scores,) if worth is None else (scores, worth))]
    return [
        starts(view, own[0], kind, *own[1:])
        for k, (view, state) in enumerate(zip(seen.views, seen.states, strict=True))
        for own in [[scores_of(view, state, column[k]) for column in known]]
    ]


def judge(
    network: Network, cref: float, episodes: Sequence[Episode], kind: Decoding, *, waits: bool = False
) -> list[Score]:
    """Return the score of the deterministic policy of a network in each episode.

    waits: whether jobs that are worth nothing wait, in the decodings by order.
    """
    found = []
    for first in range(0, len(episodes), SIDE_BY_SIDE):
        worlds = [World(episode) for episode in episodes[first : first + SIDE_BY_SIDE]]
        while going := [world for world in worlds if not world.done]:
            seen = see(going, cref)
            answer = answer_of(network, seen.inputs)
            chosen_by = starts_of(seen, answer.mean(kind), kind, answer.worth if waits else None)
            for world, chosen in zip(going, chosen_by, strict=True):
                world.step(chosen)
        found += [objective(world.episode.jobs, world.start, world.episode.capacity) for world in worlds]
    return found


def mean_total(scores: Sequence[Score]) -> float:
    """Return the mean total of episodes."""
    return float(np.mean([score.total for score in scores]))


# Imitation of the offline optimum.

KNAPSACK_SHARE = 0.25
"""Share of the episodes of a round that the per-step knapsack plays, so that its states stay known."""
LARGEST = 0.95
"""Of the worth that is learnt: a score of 1 is never reached."""
ORDER_SHARE = 0.01
"""Weight of the order's cross-entropy; the squared error of the worth is a hundred times smaller."""
EXPLORED = 0.03
"""Deviation of the noise on the network's scores in a round of imitation."""


class ImitationBatch(NamedTuple):
    """States with the targets of the network."""

    inputs: Inputs
    worth: Tensor
    """[B, M]: worth of a start by core, in units of WORTH."""
    starts: Tensor
    """[B, M]: 1 for a job that starts, 0 for others."""
    weight: Tensor
    """[B, M]: how much each row counts, 0 where there is no job that may start."""
    following: Tensor
    """[B, 4]: the next step, see TASKS; nan where there is none."""

    def on(self, device: torch.device) -> ImitationBatch:
        """Return the states on a device."""
        inputs, *targets = self
        return ImitationBatch(inputs.on(device), *(part.to(device) for part in targets))

    def rows(self, chosen: Tensor) -> ImitationBatch:
        """Return the states at these places."""
        inputs = self.inputs.rows(chosen)
        most = inputs.mask.shape[1]
        worth, starts, weight = (column[chosen, :most] for column in (self.worth, self.starts, self.weight))
        return ImitationBatch(inputs, worth, starts, weight, self.following[chosen])


def play_round(
    network: Network | None,
    episodes: Sequence[Episode],
    cref: float,
    rng: np.random.Generator,
    *,
    kind: str,
    draws: int,
    noise: float,
) -> ImitationBatch:
    """Play episodes of equal length side by side and return every state with its labels.

    network: plays three quarters of the episodes, the per-step knapsack the others, all of them for None.
    kind: `prices`, or `starts`, where the optimum itself plays them all. draws, noise: see `labels`.
    """
    fallback = packed()
    known = [labels(episode, draws, noise, rng) for episode in episodes]
    best = [best_starts(episode) for episode in episodes] if kind == "starts" else None
    worlds = [World(episode) for episode in episodes]
    own = len(episodes) if network is None else int(np.ceil(KNAPSACK_SHARE * len(episodes)))
    moments: list[tuple[Inputs, Tensor, Tensor, Tensor]] = []
    present: list[Floats] = []
    while not worlds[0].done:
        seen = see(worlds, cref)
        present.append(np.stack([facts(world) for world in worlds]))
        worth = [told[v.cur.job, v.step - v.cur.earliest] for told, v in zip(known, seen.views, strict=True)]
        if best is None:
            picks = [knapsack(w, v.cur.cores, v.free) for w, v in zip(worth, seen.views, strict=True)]
            chosen = [fallback(view) for view in seen.views]
            if network is not None:
                mean = answer_of(network, seen.inputs).worth
                shaken = mean + torch.from_numpy(rng.normal(0.0, EXPLORED, mean.shape).astype(np.float32))
                chosen[own:] = starts_of(seen, shaken, "knapsack")[own:]
        else:
            picks = [np.flatnonzero(s[v.cur.job] == v.step) for s, v in zip(best, seen.views, strict=True)]
            chosen = picks
        moments.append((seen.inputs, *labels_of(seen, worth, picks)))
        for world, picked in zip(worlds, chosen, strict=True):
            world.step(picked)
    following = np.stack([*present[1:], np.full_like(present[0], np.nan)])
    return _joined(moments, following)


def loss_of(answer: Answer, lesson: ImitationBatch) -> tuple[Tensor, Tensor]:
    """Return the squared error of the worth and the cross-entropy of the order, each a mean over the jobs."""
    weight = lesson.weight / lesson.weight.sum().clamp(min=1.0)
    confidence = (0.5 + 0.5 * answer.order).clamp(1e-6, 1.0 - 1e-6)
    missed = torch.nn.functional.binary_cross_entropy(confidence, lesson.starts, reduction="none")
    return ((answer.worth - lesson.worth).square() * weight).sum(), (missed * weight).sum()


def facts(world: World) -> Floats:
    """Return the predictor's tasks in the present step: [4], see TASKS."""
    view = world.view()
    jobs = view.cur
    means = (jobs.cores.mean(), jobs.duration.mean()) if jobs.size else (0.0, 0.0)
    return np.array([view.capacity, *means, W2 * max(0, -view.free)], dtype=np.float64)


def labels_of(seen: Observation, worth: Sequence[Floats], picks: Sequence[Ints]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the worth, the starts and the weights of the rows, [B, M] each."""
    found = np.zeros((3, *seen.inputs.mask.shape), dtype=np.float32)
    for k, (view, state) in enumerate(zip(seen.views, seen.states, strict=True)):
        rows = np.flatnonzero(state.job >= 0)
        jobs, cores = state.job[rows], view.cur.cores
        started = np.zeros(view.cur.size)
        started[picks[k]] = 1.0
        found[0, k, rows] = np.clip(worth[k] / (WORTH * cores), -LARGEST, LARGEST)[jobs]
        found[1, k, rows] = started[jobs]
        found[2, k, rows] = cores[jobs]
    worths_of, starts, weight = torch.from_numpy(found)
    return worths_of, starts, weight


def _joined(moments: Sequence[tuple[Inputs, Tensor, Tensor, Tensor]], following: Floats) -> ImitationBatch:
    most = max(inputs.mask.shape[1] for inputs, *_ in moments)
    inputs = Inputs(
        torch.cat([widened(inputs.tokens, most) for inputs, *_ in moments]),
        torch.cat([widened(inputs.mask, most) for inputs, *_ in moments]),
        torch.cat([inputs.window for inputs, *_ in moments]),
    )
    worth, starts, weight = (
        torch.cat([widened(row, most) for row in column]) for column in list(zip(*moments, strict=True))[1:]
    )
    after = torch.from_numpy(following.reshape(-1, following.shape[-1]).astype(np.float32))
    return ImitationBatch(inputs, worth, starts, weight, after)


# PPO and REINFORCE.

EXTENDABLE = ("iterations",)
FIRST_SEED = TRAINING_SEED + len(CALIBRATION_SEEDS)
SEEDS_PER_RUN = 1_000_000
"""Room for the episodes of one run, so that no two seeds of a run share one."""


@cache
def mean_capacity(scenarios: tuple[str, ...]) -> float:
    """Return the mean capacity of training episodes, cores: Cref (§3)."""
    return float(np.mean([episode(name, seed).capacity.mean() for name in scenarios for seed in CALIBRATION_SEEDS]))


def network_of(config: Config) -> Network:
    """Return the untrained network of a method, drawn from torch's generator."""
    if config.method == "mlp":
        return SlotPolicy(config.deviation)
    if config.method == "pointer":
        return PointerPolicy()
    return SetPolicy(
        low=config.method in ("full", "aux-low"),
        high=config.method in ("full", "aux-high"),
        scale_low=config.scale_low,
        scale_high=config.scale_high,
        end_to_end=config.end_to_end,
        deviation=config.deviation,
        # After imitation the errors of the value, which are far larger, must not undo the learning of the encoder.
        shared=config.rounds == 0,
    )


class Batch(NamedTuple):
    """Experience of T steps in E environments, by environment and then by step, so [E T] states."""

    inputs: Inputs
    scores: Tensor
    log_probs: Tensor
    values: Tensor
    following: Tensor
    """[E T, 4]: the next step; nan after an episode's end."""
    present: Tensor
    rewards: Floats
    """[T, E]: credit of the steps, and whether the episode ended with the step."""
    dones: Floats
    last_values: Floats
    """[E]: of the states after the last step, 0 after an end."""
    earned: float = 0.0
    """Mean earnings of a step, core-steps."""


def rewards_to_go(rewards: Floats, dones: Floats, gamma: float) -> Floats:
    """Return the discounted sums of the rewards still to come, [T, E]."""
    found, ahead = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        ahead = rewards[t] + gamma * (1.0 - dones[t]) * ahead
        found[t] = ahead
    return found


def score_log_probs(network: Network, inputs: Inputs, scores: Tensor, kind: Decoding) -> tuple[Tensor, Tensor, Answer]:
    """Return the log-probability [B] and the entropy [B] of scores, and the network's answer (§4)."""
    if isinstance(network, PointerPolicy):
        _, log_prob, entropy, answer = network.points(inputs, scores)
        return log_prob, entropy, answer
    answer = network(inputs)
    current = inputs.current.to(answer.value.dtype)
    spread = answer.deviation.log()
    each = -0.5 * ((scores - answer.mean(kind)) / answer.deviation).square() - spread - 0.5 * math.log(2.0 * math.pi)
    entropy = (spread + 0.5 * math.log(2.0 * math.pi * math.e)) * current
    return (each * current).sum(-1), entropy.sum(-1), answer


def distance(answer: Answer, anchor: Answer, current: Tensor, kind: Decoding) -> Tensor:
    """Return the mean KL divergence of the anchor's Gaussian scores from the answer's, summed over a state's jobs."""
    ratio = anchor.deviation / answer.deviation
    moved = (anchor.mean(kind) - answer.mean(kind)) / answer.deviation
    each = 0.5 * (ratio.square() + moved.square() - 1.0) - ratio.log()
    return (each * current).sum(-1).mean()


class Learner:
    """A run at one moment; `update` is one round of imitation or one iteration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        # An order of starts has no values for a knapsack.
        self.kind: Decoding = "prefix" if config.method == "pointer" else config.decoding
        self.cref = mean_capacity(config.scenarios)
        self.device = device_of(config.device)
        torch.manual_seed(config.seed)
        self.network = network_of(config).to(self.device)
        self.rng = np.random.default_rng([config.seed, 1])
        self.draws = torch.Generator().manual_seed(config.seed + 1)
        self.updates, self.steps = 0, 0
        self.standardised = False
        self.anchor: dict[str, Tensor] | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.best_total = -math.inf
        self.optimiser = self._optimiser()
        self.scale = RewardScale(np.zeros(config.environments))
        self.played = [0] * config.environments
        self.worlds: list[World] = []
        self.outlooks: list[Outlook] = []

    def _optimiser(self) -> torch.optim.Adam:
        groups: dict[str, list[Tensor]] = {"policy": [], "value": [], "predictor": []}
        for name, parameter in self.network.named_parameters():
            groups[name.split(".")[0] if name.split(".")[0] in groups else "policy"].append(parameter)
        return torch.optim.Adam([{"params": found, "lr": 1e-3} for found in groups.values()], foreach=False)

    # Imitation.

    def imitate(self) -> dict[str, float]:
        """Play a round, label it, learn from it; return its figures by name."""
        config = self.config
        left = 1.0 - self.updates / config.rounds
        lesson = play_round(
            self.network if self.updates else None,
            self._episodes(self.updates * config.environments, config.environments),
            self.cref,
            self.rng,
            kind=config.labels,
            draws=config.price_draws,
            noise=config.price_noise * self.cref,
        )
        self._standardise(lesson.following)
        self._rates(config.imitation_rate * (0.05 + 0.95 * left), config.imitation_rate * left, left)
        names = ("loss/worth", "loss/order", "loss/auxiliary")
        sums, count = np.zeros(len(names)), 0
        for _ in range(config.passes):
            for chosen in self._parts(len(lesson.worth)):
                part = lesson.rows(chosen).on(self.device)
                answer: Answer = self.network(part.inputs)
                worth, order = loss_of(answer, part)
                beside = self._auxiliary_loss(answer, part.following)
                self._descend(worth + ORDER_SHARE * order + beside)
                sums, count = sums + np.array([worth.item(), order.item(), beside.item()]), count + 1
        self.steps += len(lesson.worth)
        figures = dict(zip(names, (sums / count).tolist(), strict=True))
        return figures | self._auxiliary_figures(lesson.inputs, lesson.following, present_of(lesson.inputs, self.cref))

    # PPO and REINFORCE.

    def iterate(self) -> dict[str, float]:
        """Collect experience and learn from it; return the figures of this iteration by name."""
        config, done = self.config, self.updates - self.config.rounds
        if done == 0:
            self._begin()
        left = 1.0 - done / max(config.iterations, 1)
        falling = 0.1 + 0.9 * left
        frozen = done < config.value_iterations
        batch = self._collect(config.steps)
        self._standardise(batch.following)
        self.scale.add(batch.rewards, batch.dones, config.gamma)
        rewards = batch.rewards / self.scale.deviation
        plain = config.method == "reinforce"
        if plain:
            gained = rewards_to_go(rewards, batch.dones, config.gamma)
            gained = gained - gained.mean()
        else:
            values = batch.values.double().numpy().reshape(rewards.shape[::-1]).T
            gained = advantages(rewards, values, batch.dones, batch.last_values, config.gamma, config.gae_lambda)
        flat = torch.from_numpy(gained.T.reshape(-1).astype(np.float32))
        targets = flat + batch.values
        ahead = (flat - flat.mean()) / (flat.std() + 1e-8)
        self._rates(
            *(0.0 if frozen else config.policy_rate * falling, config.value_rate * falling),
            0.0 if config.rounds else falling,
        )
        names = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/anchor", "loss/auxiliary")
        sums, count = np.zeros(len(names)), 0
        anchor = self._anchored()
        for _ in range(1 if plain else config.epochs):
            for chosen in self._parts(len(flat)):
                inputs = batch.inputs.rows(chosen).on(self.device)
                scores = batch.scores[chosen, : inputs.mask.shape[1]].to(self.device)
                was, gain, target, following = (
                    column[chosen].to(self.device) for column in (batch.log_probs, ahead, targets, batch.following)
                )
                log_prob, entropy, answer = score_log_probs(self.network, inputs, scores, self.kind)
                log_ratio = log_prob - was
                policy = -(gain * log_prob).mean() if plain else clipped_loss(gain, log_ratio, config.clip)
                value = 0.5 * (answer.value - target).square().mean() * (not plain)
                pull = log_prob.new_zeros(())
                if anchor is not None:
                    with torch.no_grad():
                        before = anchor(inputs)
                    pull = distance(answer, before, inputs.current.to(answer.value.dtype), self.kind)
                beside = self._auxiliary_loss(answer, following)
                # After imitation the policy relies on the predictor, which must not drift under it or take a share of
                # the norm of the gradient.
                auxiliary = 0.0 if config.rounds else beside
                self._descend(policy + value - config.entropy * entropy.mean() + config.kl * pull + auxiliary)
                parts = (policy, value, entropy.mean(), divergence(log_ratio), pull, beside)
                sums, count = sums + np.array([float(torch.as_tensor(p).detach()) for p in parts]), count + 1
        self.steps += len(flat)
        figures = dict(zip(names, (sums / count).tolist(), strict=True))
        figures["episodes/reward_per_step"] = batch.earned
        return figures | self._auxiliary_figures(batch.inputs, batch.following, batch.present)

    def _begin(self) -> None:
        """Enter PPO: with the best of the imitation, a small deviation, and fresh environments."""
        config = self.config
        if config.rounds:
            self.network.load_state_dict(self.best_weights)
            if isinstance(self.network, SetPolicy):
                set_deviation(self.network.deviation, config.deviation)
            self.anchor = {name: value.clone() for name, value in self.network.state_dict().items()}
        self.optimiser = self._optimiser()
        for place in range(config.environments):
            self._enter(place)

    def _enter(self, place: int) -> World:
        """Begin the next episode of an environment."""
        made = self._next(place)
        self.worlds[place : place + 1] = [World(made)]
        if self.config.credit == "prices":
            self.outlooks[place : place + 1] = [outlook_of(made)]
        return self.worlds[place]

    def _collect(self, steps: int) -> Batch:
        config = self.config
        moments: list[tuple[Inputs, Tensor, Tensor, Tensor]] = []
        rewards, dones, earned = (np.zeros((steps, config.environments)) for _ in range(3))
        present = np.zeros((steps + 1, config.environments, len(TASKS)))
        for t in range(steps):
            seen = see(self.worlds, self.cref)
            present[t] = [facts(world) for world in self.worlds]
            scores, log_prob, answer = self._draw(seen.inputs)
            worth = answer.worth if config.waits else None
            moments.append((seen.inputs, scores, log_prob, answer.value))
            for place, chosen in enumerate(starts_of(seen, scores, self.kind, worth)):
                earned[t, place] = rewards[t, place] = self.worlds[place].step(chosen)
                if config.credit == "prices":
                    rewards[t, place] = -self.outlooks[place].lost(seen.views[place], chosen)
                if self.worlds[place].done:
                    dones[t, place] = 1.0
                    self._enter(place)
        present[steps] = [facts(world) for world in self.worlds]
        last = answer_of(self.network, see(self.worlds, self.cref).inputs).value.double().numpy()
        following = np.where(dones[..., None] > 0.0, np.nan, present[1:])
        rows = max(inputs.mask.shape[1] for inputs, *_ in moments)

        def by_place(tensors: list[Tensor]) -> Tensor:
            alike = [widened(tensor, rows) if tensor.dim() > 1 else tensor for tensor in tensors]
            return torch.stack(alike, dim=1).flatten(0, 1)

        windows = torch.stack([inputs.window for inputs, *_ in moments], dim=1).flatten(0, 1)
        tokens, masks = (by_place([getattr(inputs, name) for inputs, *_ in moments]) for name in ("tokens", "mask"))
        _, *drawn = (list(column) for column in zip(*moments, strict=True))
        scores, log_probs, values = (by_place(column) for column in drawn)
        after, before = (
            torch.from_numpy(np.swapaxes(array, 0, 1).reshape(-1, len(TASKS)).astype(np.float32))
            for array in (following, present[:-1])
        )
        inputs = Inputs(tokens, masks, windows)
        last = last * (1.0 - dones[-1])
        return Batch(inputs, scores, log_probs, values, after, before, rewards, dones, last, float(earned.mean()))

    @torch.no_grad()
    def _draw(self, inputs: Inputs) -> tuple[Tensor, Tensor, Answer]:
        here, there = inputs.tokens.device, inputs.on(self.device)
        if isinstance(self.network, PointerPolicy):
            scores, log_prob, _, answer = self.network.points(there, generator=self.draws)
            return scores.to(here), log_prob.to(here), answer.on(here)
        answer = answer_of(self.network, inputs)
        mean = answer.mean(self.kind)
        scores = mean + answer.deviation * torch.randn(mean.shape, generator=self.draws)
        log_prob, _, _ = score_log_probs(self.network, there, scores.to(self.device), self.kind)
        return scores, log_prob.to(here), answer

    def _anchored(self) -> Network | None:
        if self.anchor is None or not self.config.kl:
            return None
        network = deepcopy(self.network)
        network.load_state_dict(self.anchor)
        return network.requires_grad_(False)

    # Both.

    def judge(self) -> dict[str, float]:
        """Judge the deterministic policy on the calibration seeds, and keep it when it is the best so far."""
        config = self.config
        chosen = _calibration(config.scenarios, config.evaluation_episodes)
        total = mean_total(judge(self.network, self.cref, chosen, self.kind, waits=config.waits))
        offered = float(np.mean([made.jobs.revenue.sum() for made in chosen]))
        if total > self.best_total:
            self.best_total = total
            self.best_weights = {name: value.clone() for name, value in self.network.state_dict().items()}
        return {"held_out/total": total, LOST: offered - total, "best": offered - self.best_total}

    def _episodes(self, first: int, count: int) -> list[Episode]:
        names, at = self.config.scenarios, FIRST_SEED + SEEDS_PER_RUN * self.config.seed
        return [episode(names[number % len(names)], at + number) for number in range(first, first + count)]

    def _next(self, place: int) -> Episode:
        config = self.config
        number = (config.rounds + self.played[place]) * config.environments + place
        self.played[place] += 1
        return self._episodes(number, 1)[0]

    def _standardise(self, following: Tensor) -> None:
        """Take the scales of the predictor's targets from the first experience."""
        if not self.standardised:
            known = following[~following.isnan().any(dim=1)]
            predictor = self.network.predictor
            predictor.centre.copy_(known.mean(dim=0))
            predictor.spread.copy_(known.std(dim=0).clamp(min=1.0))
            self.standardised = True

    def _auxiliary_loss(self, answer: Answer, following: Tensor) -> Tensor:
        known = ~following.isnan().any(dim=1)
        predictor = self.network.predictor
        wanted = (following[known] - predictor.centre) / predictor.spread
        errors: Tensor = (answer.foretold[known] - wanted).square().sum(dim=0) / max(int(known.sum()), 1)
        return errors.sum()

    def _auxiliary_figures(self, inputs: Inputs, following: Tensor, present: Tensor) -> dict[str, float]:
        """Return R² of each auxiliary task, and of persistence, that the next step is as this one."""
        known = ~following.isnan().any(dim=1)
        predictor = self.network.predictor
        with torch.no_grad():
            standard = predictor(inputs.window[known].to(self.device))[2]
            found = (standard * predictor.spread + predictor.centre).to(following.device)
        wanted = following[known]
        around = (wanted - wanted.mean(dim=0)).square().sum(dim=0)
        figures: dict[str, float] = {}
        for words, guess in (("auxiliary", found), ("persistence", present[known])):
            # Of a constant nothing can be explained.
            share = torch.where(around > 1e-6, 1.0 - (wanted - guess).square().sum(dim=0) / around, 0.0)
            figures |= {f"{words}/{task}": value for task, value in zip(TASKS, share.tolist(), strict=True)}
        return figures

    def _rates(self, policy: float, value: float, falling: float) -> None:
        rates = (policy, value, self.config.auxiliary_rate * falling)
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate

    def _parts(self, count: int) -> tuple[Tensor, ...]:
        order = torch.from_numpy(self.rng.permutation(count))
        return torch.split(order, self.config.minibatch)

    def _descend(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.gradient_norm)
        self.optimiser.step()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "weights": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "anchor": self.anchor,
            "best_weights": self.best_weights,
            "best_total": self.best_total,
            "draws": self.draws.get_state(),
            "rng": self.rng.bit_generator.state,
            "counts": [self.updates, self.steps, int(self.standardised)],
            "scale": asdict(self.scale),
            "played": list(self.played),
            "starts": [world.start for world in self.worlds],
            "times": [world.t for world in self.worlds],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a state of the same configuration."""
        self.network.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(deepcopy(state["optimiser"]))
        self.anchor, self.best_weights = state["anchor"], dict(state["best_weights"])
        self.best_total = state["best_total"]
        self.draws.set_state(state["draws"])
        self.rng.bit_generator.state = state["rng"]
        self.updates, self.steps, known = state["counts"]
        self.standardised = bool(known)
        self.scale = RewardScale(**state["scale"])
        self.worlds, self.outlooks = [], []
        for place, (start, until) in enumerate(zip(state["starts"], state["times"], strict=True)):
            self.played[place] = state["played"][place] - 1
            world = self._enter(place)
            while world.t < until:
                world.step(np.flatnonzero(start[world.view().cur.job] == world.t))


LOST = "held_out/lost"
"""Core-steps that were offered less the total: lower for a better policy."""


def present_of(inputs: Inputs, cref: float) -> Tensor:
    """Return the predictor's tasks in the present step by the windows, [B, 4]."""
    last = inputs.window[:, -1]
    return torch.stack([last[:, 0] * cref, last[:, 3] * 8.0, last[:, 4] * 6.0, last[:, 7] * cref * 10.0], dim=1)


@cache
def _calibration(scenarios: tuple[str, ...], count: int) -> tuple[Episode, ...]:
    return tuple(episode(scenarios[k % len(scenarios)], seed) for k, seed in enumerate(CALIBRATION_SEEDS[:count]))


@dataclass(frozen=True, slots=True)
class Result:
    """The best weights of a run, their mean total on the calibration seeds, and its last figures."""

    weights: Mapping[str, Tensor]
    best_total: float
    updates: int
    figures: Mapping[str, float]
    complete: bool


# Loop.


def train(
    config: Config,
    *,
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    cpu_minutes: float | None = None,
) -> Result:
    """Learn a policy from the start or from the last checkpoint; raises BadInput.

    cpu_minutes: end after the update in which this limit is reached, over all resumptions. on_progress: called after
    every update.
    """
    torch.set_num_threads(1)
    learner = Learner(config)
    last = resume(checkpoints, config.plain(), learner.restore, EXTENDABLE)
    clock, figures = Clock(last), {} if last is None else dict(last.progress["figures"])
    limit = math.inf if cpu_minutes is None else 60.0 * cpu_minutes
    # Not by the clock: a run that has just begun makes one update, however busy the process is.
    over = (0.0 if last is None else last.progress["cpu_s"]) >= limit
    while learner.updates < config.updates and not over:
        figures = learner.imitate() if learner.updates < config.rounds else learner.iterate()
        learner.updates += 1
        end = learner.updates in (config.rounds, config.updates)
        before = learner.best_total
        over = clock.spent()["cpu_s"] >= limit
        if end or over or learner.updates % config.evaluate_every == 0:
            figures |= learner.judge()
        at = {
            "update": learner.updates,
            "steps": learner.steps,
            "total_steps": config.updates * config.steps * config.environments,
            **clock.spent(),
        }
        if checkpoints is not None:
            progress = {**at, "figures": figures}
            checkpoints.save(Checkpoint(config.plain(), progress, learner.state()), best=learner.best_total > before)
        best = figures.pop("best", None)
        on_progress(Progress(**at, figures=figures, best_cost=best))
    if not learner.best_weights:
        raise BadInput("cpu_minutes", cpu_minutes, "give enough for one update")
    return Result(learner.best_weights, learner.best_total, learner.updates, figures, learner.updates >= config.updates)
