"""Recurrent PPO from end to end: environment steps per processor second, rollout and update, against sb3-contrib.

steps_per_cpu_s: ours, LSTM 128, 4 epochs, 512 environments, one thread, no action masks (the peer has none).
sb3_steps_per_cpu_s, ratio_vs_sb3: RecurrentPPO on the same simulator with the same sizes and coefficients, in turn with
ours, round by round; ratio_vs_sb3_same_products: the same with oneDNN matrix products for it too, which it does not
choose by itself. collect_share: share of our time that goes into gathering experience.
cpu_s_to_quality: processor seconds with the default preset until the mean held-out cost on train-fit is below --quality
dollars, that of the tuned threshold policy, both by most probable and by drawn actions (16 seeds, after every update;
not counted). Most probable ones alone would not do: a fleet that is left alone costs 7.39, and many a policy does so by
chance after its first update.
sb3_cpu_s_to_quality: the peer's with the same sizes and coefficients, stopped at --patience times ours;
time_to_quality_ratio: the second over the first, a lower bound where quality_reached_by_sb3 is below 1.
time_to_quality_ratio_unmasked: the same with ours unmasked too. Compiling is not counted.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from dataclasses import replace

import torch

from benchmarks.recurrent_ppo_peer import INSTALL, Peer, installed
from benchmarks.report import Target, arguments, progress, report
from trainer.autoscaling.ppo import PPOConfig, Training, configuration
from trainer.autoscaling.recurrence import fast_products

TUNED_THRESHOLD_COST = 7.94


def throughput_settings(options: Namespace) -> PPOConfig:
    """Return what both sides run for throughput: those of the published figure, no epoch cut short."""
    return configuration(
        task="train-fit",
        masked=False,
        environments=options.environments,
        steps_per_update=options.steps,
        hidden=options.hidden,
        epochs=4,
        minibatches=4,
        target_kl=0.0,
    )


def quality_settings(options: Namespace, seed: int) -> PPOConfig:
    """Return what both sides run for quality: our default, at a constant rate, as nobody knows the end."""
    return configuration(
        task="train-fit",
        seed=seed,
        environments=options.environments,
        hidden=options.hidden,
        anneal_rate=False,
        total_steps=10**9,
    )


def our_update(training: Training) -> float:
    """Update once; return the processor seconds it took."""
    with fast_products():
        before = time.process_time()
        training.update()
        return time.process_time() - before


def throughput(options: Namespace, peer_there: bool) -> dict[str, float]:
    """Measure rounds of one update of each, in turn."""
    config = throughput_settings(options)
    training = Training(config)
    peer = Peer(config) if peer_there else None
    our_update(training)
    if peer is not None:
        peer.update()
    ours: list[float] = []
    theirs: list[float] = []
    helped: list[float] = []
    for number in range(options.runs):
        progress(f"round {number + 1} of {options.runs}")
        ours.append(our_update(training))
        if peer is not None:
            theirs.append(peer.update())
            with fast_products():
                helped.append(peer.update())
    steps = config.environments * config.steps_per_update
    before = time.process_time()
    training.gather()
    collecting = time.process_time() - before
    figures = {
        "steps_per_cpu_s": steps / statistics.median(ours),
        "collect_share": collecting / statistics.median(ours),
        "sb3_steps_per_cpu_s": 0.0,
        "ratio_vs_sb3": 0.0,
        "ratio_vs_sb3_same_products": 0.0,
    }
    if peer is not None:
        figures["sb3_steps_per_cpu_s"] = steps / statistics.median(theirs)
        figures["ratio_vs_sb3"] = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        figures["ratio_vs_sb3_same_products"] = statistics.median(b / a for a, b in zip(ours, helped, strict=True))
    return figures


def our_time_to(quality: float, config: PPOConfig, most_s: float) -> tuple[float, bool]:
    """Return the processor seconds until our held-out cost is below `quality`, and whether it came there."""
    with fast_products():
        training = Training(config)
        spent = 0.0
        while spent < most_s:
            spent += our_update(training)
            found = training.held_out()
            if max(found.greedy, found.sampled) < quality:
                return spent, True
    return spent, False


def peer_time_to(quality: float, config: PPOConfig, most_s: float) -> tuple[float, bool]:
    """Return the same of the peer."""
    peer = Peer(config)
    spent = 0.0
    while spent < most_s:
        spent += peer.update()
        if max(peer.held_out_cost(greedy=greedy) for greedy in (True, False)) < quality:
            return spent, True
    return spent, False


def time_to_quality(options: Namespace, peer_there: bool) -> dict[str, float]:
    """Measure over seeds; medians, and ratios of medians."""
    masked: list[float] = []
    unmasked: list[float] = []
    theirs: list[float] = []
    reached: list[bool] = []
    for seed in range(options.quality_seeds):
        progress(f"time to quality, seed {seed}")
        config = quality_settings(options, seed)
        spent, _ = our_time_to(options.quality, config, options.limit)
        masked.append(spent)
        progress(f"  ours: {spent:.1f} s")
        unmasked.append(our_time_to(options.quality, replace(config, masked=False), options.limit)[0])
        if peer_there:
            spent, there = peer_time_to(options.quality, config, options.patience * spent)
            theirs.append(spent)
            reached.append(there)
            progress(f"  RecurrentPPO: {spent:.1f} s{'' if there else ', stopped'}")
    ours = statistics.median(masked)
    peers = statistics.median(theirs) if theirs else 0.0
    return {
        "cpu_s_to_quality": ours,
        "cpu_s_to_quality_unmasked": statistics.median(unmasked),
        "sb3_cpu_s_to_quality": peers,
        "quality_reached_by_sb3": sum(reached) / max(len(reached), 1),
        "time_to_quality_ratio": peers / ours,
        "time_to_quality_ratio_unmasked": peers / statistics.median(unmasked),
    }


def main() -> int:
    """Measure and report."""
    parser = arguments(__doc__)
    parser.add_argument("--environments", type=int, default=512, help="copies of the world (default 512)")
    parser.add_argument("--steps", type=int, default=128, help="steps of each per update (default 128)")
    parser.add_argument("--hidden", type=int, default=128, help="memory size (default 128)")
    parser.add_argument("--quality", type=float, default=TUNED_THRESHOLD_COST, help="dollars an episode (default 7.94)")
    parser.add_argument("--quality-seeds", type=int, default=3, help="runs to that quality, 0 for none (default 3)")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="most processor seconds of one of ours (default 300)"
    )
    parser.add_argument("--patience", type=float, default=10.0, help="the peer is stopped at this times ours")
    parser.add_argument("--directory", help="not used: nothing is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    there = installed()
    if not there:
        progress(f"sb3-contrib is missing, so nothing is compared (0 stands for that); install it with: {INSTALL}")
    figures = throughput(options, there)
    targets = [Target("ratio_vs_sb3", 1.5, at_most=False)]
    if options.quality_seeds:
        figures |= time_to_quality(options, there)
        targets.append(Target("time_to_quality_ratio", 5.0, at_most=False))
    notes = {name: getattr(options, name) for name in ("environments", "steps", "hidden", "quality", "patience")}
    packages = ["torch", "numba", "numpy", *(["stable_baselines3", "sb3_contrib"] if there else [])]
    return report("ppo_throughput", figures, as_json=options.json, packages=packages, targets=targets, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
