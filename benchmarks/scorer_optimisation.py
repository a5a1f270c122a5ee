"""Whether policy optimisation on whole episodes makes a scorer better that was trained from exact branches.

The scorer is the policy that is begun with: a candidate is drawn from the softmax of its scores, those beside the
rule's less the margin. Proximal policy optimisation (Schulman et al. 2017) goes on from there on lessons of the same
kinds, with generalised advantages against a critic that sees the jobs to come (`trainer.autoscaling.foresight`). The
margin is chosen anew, and both are judged by the rule in docs/train/fleet-scorer.md, as in `benchmarks.scorer_forms`.

mean_<which>, worst_<which>: of scorer and optimised, mean of the groups of the selection, and the worst, means over the
seeds. difference_optimised: of the means in per cent, with its 95 % interval (pairs of cases drawn again within
groups). ships: 1 where the rule lets the optimised one ship. cpu_s_<which>: seconds of a processor of one training.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.autoscaling_policy import lessons
from benchmarks.report import arguments, progress, report
from benchmarks.scorer_forms import Judged, compared, on_selection
from domain.observations.autoscaling_scorer import CAUTION, STATES
from simulator.autoscaling.branching import BranchedEpisodes
from simulator.autoscaling.reference import preset
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.foresight import Foresight, outlook
from trainer.autoscaling.scorer import (
    LESSONS_APART,
    NEVER,
    Lesson,
    Recipe,
    Samples,
    Selection,
    Trained,
    joined,
    scorer_of,
    train,
    weights_of,
)

EPISODES, EPOCHS, BATCH = 48, 2, 1024
"""Of an update: episodes played, times that its decisions are learnt from, and decisions of a step."""
RATE, CLIP, MOST_KL = 3e-5, 0.1, 0.01
"""Of learning, at first; of two rates that were tried the one that did no harm."""
GAMMA, GAE_LAMBDA = 0.99, 0.95
TEMPERATURE = 1.0
MOST_DECISIONS = 600
CRITIC_UPDATES = 3
"""Updates at first in which the critic alone learns."""
SCALE = 10.0
"""Per cent of the rule's cost that count as a reward of 1."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class Voters(nn.Module):
    """The networks of a scorer with their judgement, as `domain.observations.autoscaling_scorer.judge` has it."""

    def __init__(self, trained: Trained, margin: float) -> None:
        """Take the weights of what was trained."""
        super().__init__()
        self._margin = margin
        self.networks = nn.ModuleList(scorer_of(trained.weights, k) for k in range(len(trained.weights[0])))

    def forward(self, states: Tensor, candidates: Tensor, there: Tensor) -> Tensor:
        """Return the logarithms of the chances of candidates [B, M]."""
        votes = torch.stack([network(states, candidates, there) for network in self.networks])
        ahead = votes - votes[:, :, :1]
        # The root has no gradient at 0, where the rule's own choice is.
        apart = (ahead.var(dim=0, unbiased=False) + 1e-8).sqrt()
        scores = ahead.mean(dim=0) - CAUTION * apart - self._margin
        scores = torch.cat([torch.zeros_like(scores[:, :1]), scores[:, 1:]], dim=1)
        return torch.log_softmax(torch.where(there, scores / TEMPERATURE, NEVER), dim=1)


class Played(NamedTuple):
    """Decisions of an episode, in order: rewards follow them, taken is -1 where the scorer had no choice."""

    taken: NDArray[np.int64]
    rewards: Floats
    futures: Floats


def played(lesson: Lesson, trained: Trained, draw: int, samples: Samples) -> Played | None:
    """Play an episode with drawn decisions, and add states and candidates to the samples; None without a decision."""
    episodes = BranchedEpisodes(lesson.config, lesson.trace, lesson.rule)
    reference, before = episodes.play(lesson.seed).cost, len(samples.states)
    found = episodes.play(
        lesson.seed,
        trained.weights,
        margin=trained.margin,
        idle_limit_min=trained.idle_limit_min,
        temperature=TEMPERATURE,
        branch_share=1.0,
        most=MOST_DECISIONS,
        steps=-1,
        draw=draw,
        announcements=lesson.announcements,
    )
    samples.add(found, reference)
    if len(samples.states) == before:
        return None
    dollars = np.diff(np.append(found.spent, found.cost))
    steps = int(found.places[-1]) + 1
    ahead = outlook(lesson.trace, 1.0, steps, lesson.config.step_s, lesson.config.max_cores)
    rewards = (-100.0 / SCALE * dollars / reference).astype(np.float32)
    return Played(found.taken, rewards, ahead[found.places])


def advantages(rewards: Floats, values: Floats) -> Floats:
    """Return the generalised advantage estimates of the decisions of an episode that is over after them."""
    found, advantage, after = np.zeros_like(rewards), 0.0, 0.0
    for at in range(len(rewards) - 1, -1, -1):
        advantage = rewards[at] + GAMMA * after - values[at] + GAMMA * GAE_LAMBDA * advantage
        found[at], after = advantage, values[at]
    return found


def optimised(start: Trained, seed: int, budget_s: float, rate: float = RATE) -> Trained:
    """Return the scorer after policy optimisation for so many seconds of a processor. rate: of learning, at first."""
    begun, rng = time.process_time(), np.random.default_rng(seed)
    torch.manual_seed(seed)
    policy, critic = Voters(start, start.margin), Foresight(PPOConfig(seed=seed), STATES)
    optimiser = torch.optim.Adam(policy.parameters(), lr=rate, eps=1e-5)
    now, first, update = start, (seed + 1) * LESSONS_APART // 2, 0
    while (spent := time.process_time() - begun) < budget_s:
        left = 1.0 - spent / budget_s
        for group in optimiser.param_groups:
            group["lr"] = rate * max(left, 0.1)
        samples, episodes = Samples(), []
        for lesson in lessons(first, EPISODES):
            one = played(lesson, now, int(rng.integers(1 << 30)), samples)
            episodes += [] if one is None else [one]
        first += EPISODES
        table = samples.joined()
        futures = np.concatenate([one.futures for one in episodes])
        values = critic.values(table.states, futures)
        ends = np.cumsum([len(one.taken) for one in episodes])[:-1]
        gained = np.concatenate(
            [advantages(one.rewards, v) for one, v in zip(episodes, np.split(values, ends), strict=True)]
        )
        loss = critic.learn(
            table.states[:, None], futures[:, None], (gained + values)[:, None].astype(np.float32), left, rng
        )
        taken = np.concatenate([one.taken for one in episodes])
        kl = 0.0
        if update >= CRITIC_UPDATES:
            kl = _improve(policy, optimiser, tuple(map(torch.from_numpy, table[:3])), taken, gained, rng)
            networks = [weights_of([network]) for network in policy.networks]  # type: ignore[list-item]
            now = replace(now, weights=joined(networks))
        update += 1
        if update % 10 == 0:
            total = float(np.mean([one.rewards.sum() for one in episodes])) * SCALE
            explained = 1.0 - float(gained.var() / (gained + values).var())
            spread = float(gained.std()) * SCALE
            progress(f"update {update}: {total:.2f} %, critic {loss:.4f}, explained {explained:.2f}, KL {kl:.4f}")
            progress(f"advantages of a decision spread by {spread:.2f} % of the rule's episode")
    return now


def _improve(
    policy: Voters,
    optimiser: torch.optim.Adam,
    seen: tuple[Tensor, ...],
    taken: NDArray[np.int64],
    gained: Floats,
    rng: np.random.Generator,
) -> float:
    """Take the steps of an update; return the divergence from the policy that played."""
    chosen = np.flatnonzero(taken >= 0)
    action, worth = torch.from_numpy(np.maximum(taken, 0)), torch.from_numpy(gained)
    worth = (worth - worth[chosen].mean()) / (worth[chosen].std() + 1e-8)
    parts = [torch.from_numpy(part) for part in np.array_split(chosen, max(len(chosen) // BATCH, 1))]
    with torch.no_grad():
        old = torch.zeros(len(taken))
        for part in parts:
            old[part] = policy(*(one[part] for one in seen)).gather(1, action[part, None])[:, 0]
    kl = 0.0
    for _ in range(EPOCHS):
        order = rng.permutation(chosen)
        for rows in np.array_split(order, max(len(order) // BATCH, 1)):
            part = torch.from_numpy(rows)
            moved = policy(*(one[part] for one in seen)).gather(1, action[part, None])[:, 0] - old[part]
            ratio = moved.exp()
            kl = float((ratio - 1.0 - moved).mean().detach())
            if kl > MOST_KL:
                return kl
            loss = -torch.min(worth[part] * ratio, worth[part] * ratio.clamp(1.0 - CLIP, 1.0 + CLIP)).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimiser.step()
    return kl


def main(given: Sequence[str] | None = None) -> int:
    """Train, optimise, judge and print."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--seeds", type=int, default=1, help="trainings, each with an optimisation (default 1)")
    parser.add_argument("--episodes", type=int, default=60, help="episodes per round of training (default 60)")
    parser.add_argument("--selection", type=int, default=15, help="fleets of the selection (default 15)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a processor, per optimisation (default 60)")
    parser.add_argument("--rate", type=float, default=RATE, help=f"of learning, at first (default {RATE:g})")
    parser.add_argument("--directory", type=Path, help="not used: nothing is written")
    parser.add_argument("--full", action="store_true", help="2 seeds, 500 episodes a round, 180 fleets, 240 seconds")
    asked = parser.parse_args(given)
    seeds, episodes, selection = (2, 500, 180) if asked.full else (asked.seeds, asked.episodes, asked.selection)
    torch.set_num_threads(1)
    recipe = Recipe(rounds=(episodes,) * 3, selection=selection)
    found: dict[str, list[Judged]] = {"scorer": [], "optimised": []}
    for seed in range(seeds):
        begun = time.process_time()
        trained = train(lessons, recipe, seed, lambda line: progress(f"scorer: {line}"))
        judged, start = on_selection(trained, time.process_time() - begun)
        found["scorer"].append(judged)
        begun = time.process_time()
        after = optimised(start, seed, 240.0 if asked.full else asked.seconds, asked.rate)
        found["optimised"].append(on_selection(after, time.process_time() - begun)[0])
    groups = [group for group, _ in Selection(preset("live-like"), selection).cases]
    figures, notes = compared(found, groups)
    notes |= {"seeds": seeds, "episodes per round": episodes, "fleets of the selection": selection}
    return report("scorer_optimisation", figures, as_json=asked.json, packages=("torch", "numba", "numpy"), notes=notes)


if __name__ == "__main__":
    sys.exit(main())
