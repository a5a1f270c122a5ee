"""Training on a GPU compared with training on the processor: the three kinds of networks, for a few updates each.

For ppo (an LSTM of `train autoscaling`), sets (the set transformer of `train deferral`) and scorer (a fit of
`--form scorer`): *_cpu_s is the wall time on `cpu`, *_ratio that over the time on `cuda`, above 1 where the GPU is
faster, and *_apart the greatest relative difference of a loss of the first update between the devices. Medians of
--runs, after one run that loads and compiles. Written before any run on a GPU: *_apart is at most 0.01; a ratio has no
target, for these networks are small. Without a GPU the ratios are None, and the note `cuda` has the reason.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from benchmarks.report import Target, arguments, progress, report
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from simulator.autoscaling.branching import NO_WEIGHTS
from trainer.autoscaling.fast_lstm import fast_products
from trainer.autoscaling.lessons import Lesson
from trainer.autoscaling.ppo_lstm import Training
from trainer.autoscaling.ppo_runs import configuration
from trainer.autoscaling.scorer import Recipe, Samples, expected_gain, fit, join, play_lessons
from trainer.autoscaling.tasks import TRAINING_SEED, task_of
from trainer.deferral.set_transformer import Learner, preset
from trainer.kit.device import CPU, CUDA, device_of

Losses = Mapping[str, float]
Train = Callable[[str], Losses]
MOST_APART = 0.01
LEAST = 0.1
"""A loss that is smaller counts as this: advantages and worths have a spread of about 1."""


def ppo(asked: Namespace) -> Train:
    """Return updates of PPO of the default size; its losses are those of the first update."""

    def train(device: str) -> Losses:
        with fast_products():
            config = configuration(task="train-fit", device=device, total_steps=10**9, target_kl=0.0)
            run = Training(replace(config, environments=min(512, asked.steps // config.steps_per_update)))
            first = run.update()
            while run.steps < asked.steps:
                run.update()
        return {name: first[name] for name in ("loss/policy", "loss/value", "policy/entropy") if name in first}

    return train


def sets(asked: Namespace) -> Train:
    """Return two rounds of imitation of the set transformer; its losses are those of the first."""

    def train(device: str) -> Losses:
        learner = Learner(preset("imitation", environments=asked.environments, rounds=2, iterations=0, device=device))
        first = learner.imitate()
        learner.updates = 1
        learner.imitate()
        return {name: first[name] for name in ("loss/worth", "loss/order", "loss/auxiliary")}

    return train


def scorer(asked: Namespace) -> Train:
    """Return a fit of a network of the scorer; its loss is the gain that it expects of its lessons, in per cent."""
    stage = task_of("train-fit").stages[0]
    rule = RuleSetting(horizon_s=150.0, idle_s=0.0)
    recipe = Recipe(epochs=2.0, branch_steps=100)
    lessons = [Lesson(stage.config, stage.traces[0], rule, TRAINING_SEED + k) for k in range(asked.lessons)]
    samples: Samples = join([play_lessons([one], recipe, NO_WEIGHTS, 0.0) for one in lessons])

    def train(device: str) -> Losses:
        network = fit(samples, replace(recipe, device=device), 1, expected_gain).cpu()
        states, candidates, there, gains, worths = samples.tensors()
        with torch.no_grad():
            logits = network(states, candidates, there)
        return {"loss": float(expected_gain(logits, there, gains, worths, recipe))}

    return train


PARTS: Mapping[str, Callable[[Namespace], Train]] = {"ppo": ppo, "sets": sets, "scorer": scorer}


def compared(name: str, train: Train, devices: list[str], runs: int) -> dict[str, float | None]:
    """Return the figures of a kind of network."""
    losses = {device: train(device) for device in devices}
    walls: dict[str, list[float]] = {device: [] for device in devices}
    for number in range(max(1, runs)):
        for device in devices[:: 1 if number % 2 == 0 else -1]:
            begun = time.perf_counter()
            train(device)
            walls[device].append(time.perf_counter() - begun)
            progress(f"{name} on {device}: {walls[device][-1]:.2f} s")
    cpu_s, ratio, apart = statistics.median(walls[CPU]), None, None
    if CUDA in devices:
        ratio = cpu_s / statistics.median(walls[CUDA])
        pairs = [(losses[CUDA][loss], value) for loss, value in losses[CPU].items()]
        apart = max(abs(there - here) / max(abs(here), LEAST) for there, here in pairs)
    if not np.isfinite([value for one in losses.values() for value in one.values()]).all():
        raise AssertionError(f"{name}: a loss is not finite: {losses}")
    return {f"{name}_cpu_s": cpu_s, f"{name}_ratio": ratio, f"{name}_apart": apart}


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of PPO (default 100,000)")
    parser.add_argument("--environments", type=int, default=16, help="episodes of a round of imitation (default 16)")
    parser.add_argument("--lessons", type=int, default=60, help="lessons that a scorer is fitted to (default 60)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    devices, reason = [CPU], "measured"
    try:
        device_of(CUDA)
        devices.append(CUDA)
    except BadInput as missing:
        reason = str(missing)
    figures: dict[str, float | None] = {}
    for name, make in PARTS.items():
        figures |= compared(name, make(asked), devices, asked.runs)
    targets = [Target(f"{name}_apart", MOST_APART) for name in PARTS]
    notes = {"cuda": reason, "steps": asked.steps, "environments": asked.environments, "lessons": asked.lessons}
    return report("devices", figures, as_json=asked.json, packages=("numpy", "torch"), targets=targets, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
