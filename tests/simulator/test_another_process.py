"""A seed plays the same in every process: nothing depends on the hashes of strings or on what was compiled there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np

from simulator.admission import PRESETS, Rule, draw_run, play
from simulator.autoscaling.batch import FastSimulation
from simulator.autoscaling.configuration import RemovalChoice
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.world_file import preset
from simulator.deferral.engine import play as play_deferral
from simulator.deferral.engine import rule_of
from simulator.deferral.scenarios import episode
from simulator.oversubscription.batch import OversubscriptionBatch
from simulator.oversubscription.scenario import scenario_of
from simulator.workloads.synthetic import train_fit
from tests.architecture.product import ROOT


def digest(*parts: np.ndarray) -> str:
    text = hashlib.sha256()
    for part in parts:
        text.update(part.tobytes())
    return text.hexdigest()


def autoscaling(kind: type[Simulation] | type[FastSimulation]) -> str:
    simulation = kind(preset("train-fit", removal_choice=RemovalChoice.RANDOM), train_fit(), seed=11)
    return digest(*(simulation.step((step * 5) % 7).obs for step in range(120)))


def oversubscription() -> str:
    batch = OversubscriptionBatch(scenario_of("internal_like"), ["s0"], 1)
    seen = [batch.reset(np.array([5])).copy()]
    seen += [batch.step(np.full((1, 12), hour % 6))[0].copy() for hour in range(20)]
    return digest(*seen, batch.usage)


def digests() -> dict[str, str]:
    """Return a digest of a short run of each simulator."""
    return {
        "admission": digest(play(draw_run(PRESETS["K"], 4, hours=100.0), Rule("zeroth", 500.0), log=200_000).log),
        "autoscaling": autoscaling(FastSimulation),
        "autoscaling, reference": autoscaling(Simulation),
        "deferral": digest(play_deferral(episode("sched_drop", 3), rule_of("knapsack"))),
        "oversubscription": oversubscription(),
    }


def test_another_process_sees_the_same_bits() -> None:
    code = "import json; from tests.simulator.test_another_process import digests; print(json.dumps(digests()))"
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, check=True, capture_output=True, text=True
    )
    here = digests()
    assert json.loads(done.stdout) == here
    assert here["autoscaling"] == here["autoscaling, reference"]
