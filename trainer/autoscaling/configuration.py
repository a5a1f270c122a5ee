"""Everything that a training run depends on, with the named presets: the published settings and the best ones found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from domain.errors import BadInput
from simulator.autoscaling.configuration import SimulationConfig
from trainer.autoscaling.networks import NetworkKind
from trainer.kit.checkpoint import plain

if TYPE_CHECKING:
    from domain.workload import Trace
    from simulator.autoscaling.batch import AutoscalingBatch
    from trainer.autoscaling.rollout import MakeWorlds


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """Everything that a training run depends on. Fractions and coefficients have no unit; raises BadInput.

    task: a name of `trainer.autoscaling.tasks.TASKS`, or a task file. seed: of weights, exploration and worlds.
    total_steps: environment steps.

    Sight and action: observation (obs-7 | obs-v2), action_set (act-7 | act-multi), masked (hide actions that would have
    no effect). network (lstm | mlp), hidden: its memory size, forget_bias: initial bias of the forget gate.

    Experience: environments: copies of the world over all workers. steps_per_update: of each copy. warm_steps: copies
    begin their first episodes spread over so many steps, so that they are out of phase. most_episode_steps: an episode
    is cut there and its value estimated.

    Return: gamma, gae_lambda. scale_rewards: divide rewards by the standard deviation of their discounted sum.
    progress_reward: dollars over an episode, paid as jobs finish; time_price_per_minute: dollars a minute takes.

    Update: epochs over the experience, each in `minibatches` parts (whole environments, never parts of their time).
    clip, value_clip (0 for none): how far a ratio and a value may move. value_coefficient, entropy_coefficient: weights
    in the loss. learning_rate, adam_epsilon. anneal_rate, anneal_clip, anneal_entropy: let learning
    rate, clip, weight of the entropy fall linearly to 0.
    gradient_norm: longest gradient. target_kl: epochs stop where the policy has moved so far (0: never).
    normalise_advantages: per minibatch.

    Watch: evaluate_every_steps: held-out episodes are played after so many; selection_episodes: how many, greedy, and
    as many sampled. collapse_share, collapse_entropy: a policy that takes one action in more than this share of steps,
    or has less entropy (nats per head), and whose held-out cost is `collapse_worse` times the best so far, has
    collapsed; so has any whose cost, greedy and sampled, is `collapse_lost` times the best: the best weights return, at
    `collapse_rate` times the learning rate.

    workers: processes that share the environments and average their gradients. device: cpu or cuda.
    """

    task: str = "train-fit"
    seed: int = 0
    total_steps: int = 4_000_000
    observation: str = "obs-7"
    action_set: str = "act-7"
    masked: bool = True
    network: NetworkKind = NetworkKind.LSTM
    hidden: int = 128
    forget_bias: float = 1.0
    environments: int = 512
    steps_per_update: int = 32
    warm_steps: int = 256
    most_episode_steps: int = 600
    gamma: float = 0.98
    gae_lambda: float = 0.95
    scale_rewards: bool = True
    progress_reward: float = 0.0
    time_price_per_minute: float = 0.0
    epochs: int = 4
    minibatches: int = 8
    clip: float = 0.2
    value_clip: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.003
    learning_rate: float = 2e-3
    adam_epsilon: float = 1e-5
    anneal_rate: bool = True
    anneal_clip: bool = False
    anneal_entropy: bool = False
    gradient_norm: float = 0.5
    target_kl: float = 0.02
    normalise_advantages: bool = True
    evaluate_every_steps: int = 131_072
    selection_episodes: int = 16
    collapse_share: float = 0.95
    collapse_entropy: float = 0.05
    collapse_worse: float = 1.25
    collapse_lost: float = 3.0
    collapse_rate: float = 0.5
    workers: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", NetworkKind(self.network))
        for name in ("observation", "action_set", "device"):
            if getattr(self, name) not in CHOICES[name]:
                raise BadInput(name, getattr(self, name), f"choose one of {', '.join(CHOICES[name])}")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise BadInput(name, getattr(self, name), "give a number above 0")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(name, getattr(self, name), "give a number in 0..1")
        parts = self.workers * self.minibatches
        if self.environments % parts:
            raise BadInput("environments", self.environments, f"give a multiple of workers x minibatches, {parts}")

    def heads(self, world: SimulationConfig) -> int:
        """Return how many actions are chosen per step: one, or one per VM type."""
        return len(world.types) if self.action_set == "act-multi" else 1

    def worlds(
        self, make_worlds: MakeWorlds, world: SimulationConfig, traces: tuple[Trace, ...], copies: int
    ) -> AutoscalingBatch:
        """Build copies of a world, as the policy sees it, whose episodes are cut after `most_episode_steps`."""
        cut = replace(world, max_steps=min(world.max_steps, self.most_episode_steps))
        return make_worlds(cut, traces, copies, observation=self.observation, actions=self.action_set)

    def plain(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        data: dict[str, Any] = plain(asdict(self))
        return data


CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"observation": ("obs-7", "obs-v2"), "action_set": ("act-7", "act-multi"), "device": ("cpu", "cuda")}
)
_POSITIVE = (
    *("total_steps", "hidden", "environments", "steps_per_update", "epochs", "minibatches", "learning_rate", "clip"),
    *("most_episode_steps", "gradient_norm", "evaluate_every_steps", "selection_episodes", "workers"),
)
PRESETS: Mapping[str, PPOConfig] = MappingProxyType(
    {
        "default": PPOConfig(),
        "published": PPOConfig(
            masked=False,
            forget_bias=0.0,
            environments=16,
            steps_per_update=128,
            warm_steps=0,
            minibatches=4,
            gamma=0.99,
            clip=0.1,
            value_clip=0.1,
            anneal_clip=True,
            entropy_coefficient=0.01,
            learning_rate=2.5e-4,
            target_kl=0.0,
        ),
        "fit": PPOConfig(
            total_steps=2_000_000,
            observation="obs-v2",
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
        "text": PPOConfig(
            task="train-text",
            total_steps=2_000_000,
            observation="obs-v2",
            environments=128,
            steps_per_update=128,
            minibatches=4,
            entropy_coefficient=0.01,
            anneal_entropy=True,
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
        "coevolution": PPOConfig(
            task="coevolution-rent",
            total_steps=1_000_000,
            observation="obs-v2",
            action_set="act-multi",
            hidden=64,
            environments=256,
            warm_steps=192,
            most_episode_steps=400,
            minibatches=4,
            gamma=0.99,
            value_clip=0.0,
            progress_reward=13.5,
            time_price_per_minute=0.03,
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
    }
)
"""`published`: what the publication states, and for the rest the discrete-action defaults of the code it names. `fit`
and `text`: the cheapest policies found for the tasks train-fit and train-text. `coevolution`: least rent where a minute
of the closed loop costs three cents; progress is paid what an episode then costs, so that neither haste nor delay pays
of itself. For other prices: 14.9 at four cents, 11.5 at two."""


def configuration(preset: str = "default", **changes: Any) -> PPOConfig:
    """Return a preset with some fields changed; BadInput names what there is."""
    if preset not in PRESETS:
        raise BadInput("preset", preset, f"choose one of {', '.join(PRESETS)}")
    known = {known_field.name for known_field in fields(PPOConfig)}
    for name in changes:
        if name not in known:
            raise BadInput("field", name, f"choose one of {', '.join(sorted(known))}")
    return replace(PRESETS[preset], **changes)
