"""Networks of deferral: a set transformer with a Gaussian confidence per job, and its rivals (§4).

A state is a set of tokens [B, M, 18] with a mask [B, M], and a window of the last steps [B, 24, 11]; see
`domain.rules.deferral.tokens`. Row 0 is the empty token. Every network gives scores to the jobs that may start.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from domain.rules.deferral.choosing import Decoding
from domain.rules.deferral.tokens import CURRENT, TOKEN_FEATURES, WINDOW_FEATURES

FEATURES, STEP_FEATURES = len(TOKEN_FEATURES), len(WINDOW_FEATURES)
WIDTH, INNER, LAYERS = 64, 128, 2
LEAST_DEVIATION = 1e-3
TASKS = ("capacity", "mean_cores", "mean_duration", "violation_charge")
"""What the auxiliary predictor foretells of the next step (§4.1)."""
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

    def rows(self, chosen: Tensor) -> Inputs:
        """Return the states at these places, without columns of tokens that none of them needs."""
        mask = self.mask[chosen]
        most = int(mask.any(dim=0).nonzero().max()) + 1
        return Inputs(self.tokens[chosen, :most], mask[:, :most], self.window[chosen])


class Answer(NamedTuple):
    """What a network says of states."""

    order: Tensor
    """[B, M]: confidence that a job starts, -1 to 1; jobs start in this order."""
    worth: Tensor
    """[B, M]: what a start is worth, for each core, in units of `tokens.WORTH`: for the decoding by knapsack."""
    deviation: Tensor
    """[B, M]: standard deviation of either where the policy explores."""
    value: Tensor
    """[B]"""
    foretold: Tensor
    """[B, 4]: the next step, standardised, see `TASKS`."""

    def mean(self, kind: Decoding) -> Tensor:
        """Return the scores [B, M] that a decoding goes by."""
        return self.worth if kind == "knapsack" else self.order


class Predictor(nn.Module):
    """Foretells the next step from the last 24 (§4.1); its low- and high-level vectors tell the policy what it knows.

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
        """Return the rows [B, M, 64]; absent: [B, 1, M], added to what each row is attended by."""
        query, key, value = self.joined(rows).split(WIDTH, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2) * WIDTH**-0.5 + absent, dim=-1)
        rows = self.first(rows + self.out(weights @ value))
        summed: Tensor = self.second(rows + self.outer(functional.relu(self.inner(rows))))
        return summed


class SetPolicy(nn.Module):
    """The published network (§4), equivariant to the order of the tokens.

    low, high: whether the predictor's vectors go with every token, times `scale_low` and `scale_high`. end_to_end:
    whether the policy's gradients go on into the predictor. deviation: of the scores before training. shared: whether
    the value's gradients go on into the encoder.
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
        told = [vector * scale for vector, scale in self._told(low, high)]
        if not self.end_to_end:
            told = [vector.detach() for vector in told]
        beside = [vector.unsqueeze(1).expand(-1, tokens.shape[1], -1) for vector in told]
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

    def _told(self, low: Tensor, high: Tensor) -> list[tuple[Tensor, float]]:
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
        counted = pack_padded_sequence(tokens, mask.sum(dim=1), batch_first=True, enforce_sorted=False)
        packed, (hidden, cell) = self.reader(counted)
        read, _ = pad_packed_sequence(packed, batch_first=True, total_length=tokens.shape[1])
        keys, left = self.key(read), inputs.current.clone()
        h, c, row = hidden[0], cell[0], self.start.expand(len(tokens), -1)
        scores = torch.zeros(mask.shape) if ranks is None else ranks
        total, entropy = torch.zeros(len(tokens)), torch.zeros(len(tokens))
        everyone = torch.arange(len(tokens))
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
                taken = torch.multinomial(chances, 1, generator=generator).squeeze(1)
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


def set_deviation(head: nn.Module, deviation: float) -> None:
    """Make a head of deviations say about `deviation` for every job."""
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
