"""One decision of a learned policy: ONNX Runtime as the agent runs it, and torch as it was trained, in the same run.

Both answer one observation with the published network (7 features, LSTM of 128, 7 actions), from numpy arrays to numpy
arrays, on one thread, in rounds that take turns. Torch is measured twice, with the trainer's own network and with
torch's LSTM module under inference mode; the faster of the two counts. Memory is read in processes of their own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from agent.autoscaling.policies.ppo_lstm import LearnedPolicy
from agent.models.card import ModelCard
from agent.models.file import Model, load_model
from agent.rails.state import Memory
from benchmarks.report import Target, arguments, repeat, report
from domain.fleet import Fleet, Group
from domain.snapshot import GroupSnapshot, Snapshot
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit
from trainer.autoscaling.export import PolicyFacts, answer_of, export, layers_of
from trainer.autoscaling.ppo_lstm import NetworkKind, PolicyValueNetwork

FEATURES, ACTIONS, HIDDEN = 7, 7, 128
ROUND_STEPS = 50
RESIDENT = """
import json, pathlib, sys
import numpy as np
import agent.settings, agent.autoscaling.policies.fallback
def resident_mb():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20
before = resident_mb()
from agent.models.file import load_model
model = load_model(pathlib.Path(sys.argv[1]))
inputs = {"observation": np.zeros((1, 7), np.float32)}
inputs |= {name: np.zeros((1, 128), np.float32) for name in model.card.memory}
for _ in range(100):
    model.run(inputs)
after = resident_mb()
import torch
print(json.dumps({"onnx": after - before, "torch": resident_mb() - after}))
"""

Floats = NDArray[np.float32]
Step = Callable[[dict[str, Floats]], object]


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--steps", type=int, default=2000, help="decisions of each kind in a run (default 2000)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    network = PolicyValueNetwork(NetworkKind.LSTM, FEATURES, ACTIONS, HIDDEN, seed=0)
    world = preset("train-fit")
    learned = PolicyFacts("obs-7", "act-7", masked=True, network="lstm", world=world)
    with tempfile.TemporaryDirectory(dir=chosen.directory) as place:
        path = export(layers_of(network), answer_of(network), learned, [train_fit()], Path(place))
        policy = LearnedPolicy(cast("Model[ModelCard]", load_model(path)))
        steps: dict[str, Step] = {
            "p50_us": policy.model.run,
            "torch_network_p50_us": answer_of(network),
            "torch_module_p50_us": torch_module(),
            "decision_p50_us": decision(policy),
        }
        figures = repeat(lambda: measure(steps, chosen.steps), chosen.runs)
        memory = resident(path)
    figures["torch_p50_us"] = min(figures["torch_network_p50_us"], figures["torch_module_p50_us"])
    figures["ratio_vs_torch"] = figures["torch_p50_us"] / figures["p50_us"]
    figures |= {"resident_mb_added": memory["onnx"], "torch_resident_mb_added": memory["torch"]}
    return report(
        "policy_inference",
        figures,
        as_json=chosen.json,
        packages=("onnxruntime", "torch", "numpy"),
        targets=[Target("ratio_vs_torch", 3.0, at_most=False)],
        notes={"steps": chosen.steps, "runs": chosen.runs, "model_kb": 4 * 70_664 // 1024},
    )


def measure(steps: Mapping[str, Step], count: int) -> Mapping[str, float]:
    """Time each kind of step `count` times, in rounds that take turns; return medians in microseconds."""
    rng = np.random.default_rng(0)
    sizes = {"observation": FEATURES, "hidden": HIDDEN, "cell": HIDDEN}
    times: dict[str, list[int]] = {name: [] for name in steps}
    for _ in range(max(1, count // ROUND_STEPS)):
        for name, step in steps.items():
            inputs = {key: rng.uniform(0.0, 1.0, size=(1, size)).astype(np.float32) for key, size in sizes.items()}
            step(inputs)
            for _ in range(ROUND_STEPS):
                began = time.perf_counter_ns()
                step(inputs)
                times[name].append(time.perf_counter_ns() - began)
    return {name: statistics.median(each) / 1000.0 for name, each in times.items()}


def torch_module() -> Step:
    """Return a step of torch's own LSTM module with two heads."""
    lstm = torch.nn.LSTM(FEATURES, HIDDEN)
    heads = torch.nn.Linear(HIDDEN, ACTIONS + 1)

    @torch.inference_mode()
    def step(inputs: dict[str, Floats]) -> object:
        observation, hidden, cell = (torch.from_numpy(inputs[name])[None] for name in ("observation", "hidden", "cell"))
        output, (after, cells) = lstm(observation, (hidden, cell))
        return heads(output[0]).numpy(), after.numpy(), cells.numpy()

    return step


def decision(policy: LearnedPolicy) -> Step:
    """Return the policy's whole minute: observation and memory from the snapshot, masks, choice, sentence, memory."""
    types = preset("train-fit").types
    fleet = Fleet("web", tuple(Group(key, key, kind, 0, 10) for key, kind in zip("sml", types, strict=True)))
    groups = tuple(GroupSnapshot(key, 2, 2, 2, 0, 0, 0, 0, 0, 0, 2, 0, 10) for key in "sml")
    memory: Memory = {}

    def step(inputs: dict[str, Floats]) -> object:
        nonlocal memory
        seen = tuple(inputs["observation"][0].tolist())
        snapshot = Snapshot("web", 0.0, 0.0, groups, None, 1.0, 0.0, obs7=seen)
        proposal, memory = policy.decide(fleet, snapshot, memory)
        return proposal

    return step


def resident(path: Path) -> dict[str, float]:
    """Return the memory in MB that ONNX Runtime with the model adds to the agent, and that torch would add."""
    done = subprocess.run([sys.executable, "-c", RESIDENT, str(path)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
