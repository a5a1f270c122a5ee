"""A learned policy: one step of its network per minute on ONNX Runtime, its memory kept in the ledger.

Autoscaler specification §13. The policy is greedy: of the actions that physics allows it takes the one with the largest
logit. Its memory bears the model's name, so that another model starts from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.base import InputAbsent
from agent.models.card import Choice, ModelCard, heads_of, misfit
from agent.rails.state import Memory
from domain.decisions import Proposal, Reason
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.snapshot import GroupSnapshot, Snapshot

if TYPE_CHECKING:
    from agent.models.file import Model

LEARNED = "learned"
"""What a learned policy's name begins with; behind the colon stands the SHA-256 of its model's file."""

MODEL = "model"
"""What begins the name of a policy that is given by its file."""

SHA_DIGITS = 64
NAME_DIGITS = 12
OUTSIDE = "outside"
"""Under this name a policy remembers which features stood outside the ranges of its training."""

TOP_CHOICES = 3

Floats = NDArray[np.float32]


def names_model(text: str) -> bool:
    """Return whether the policy's name stands for a model: `learned`, `learned:<sha256>` or `model:FILE`."""
    return text.partition(":")[0] in (LEARNED, MODEL)


def sha_of(text: str) -> str:
    """Return the SHA-256 in `learned:<sha256>`, "" in every other name."""
    name, _, sha = text.partition(":")
    return sha if name == LEARNED and len(sha) == SHA_DIGITS and set(sha) <= set("0123456789abcdef") else ""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedPolicy:
    """A verified network as a policy."""

    model: Model[ModelCard]

    @property
    def name(self) -> str:
        """`learned:` and the SHA-256 of the model's file."""
        return f"{LEARNED}:{self.model.name}"

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Take one step of the network and propose the most probable of the possible actions.

        InputAbsent when the minute has no observation; PolicyFailure when the model was trained for other VM types or
        answers with what is no number.
        """
        card = self.model.card
        unfit = misfit(card, fleet)
        if unfit:
            raise PolicyFailure(f"the model {self.model.name[:NAME_DIGITS]} does not fit: {unfit}")
        observation = self._observation(snapshot)
        outputs = self.model.run({"observation": observation, **self._recall(memory)})
        broken = [name for name, value in outputs.items() if not np.isfinite(value).all()]
        if broken:
            raise PolicyFailure(f"the model {self.model.name[:NAME_DIGITS]} answers {', '.join(broken)} with no number")
        chosen, words = [], []
        first = 0
        for head in heads_of(card):
            logits = outputs["logits"][0, first : first + len(head)].astype(np.float64)
            first += len(head)
            shares = _shares(logits, [not (card.masked and bar_of(choice, snapshot.groups)) for choice in head])
            best = head[int(shares.argmax())]
            chosen.append(best)
            words.append(_spoken(head, shares, snapshot.groups))
        desired = _sizes(fleet, snapshot, chosen)
        outside = self.model.out_of_range(observation)
        value = outputs.get("value")
        about = [
            "; ".join(words) + ("" if value is None else f"; value {float(value[0, 0]):.3g}"),
            f"saw {_seen(card.features, observation)}",
            _forbidden(snapshot.groups),
            f"outside the training range: {', '.join(outside.values())}" if outside else "",
        ]
        detail = "; ".join(filter(None, about))
        after = {self._key(name): compact(outputs[f"{name}_next"][0]) for name in card.memory}
        if outside:
            after[self._key(OUTSIDE)] = tuple(float(index) for index in outside)
        return Proposal(fleet.name, self.name, desired, Reason.LEARNED, detail), after

    def _observation(self, snapshot: Snapshot) -> Floats:
        extended = self.model.card.observation == "obs-v2"
        vector = snapshot.obs_v2 if extended else snapshot.obs7
        if vector is None:
            lacking = ", ".join(snapshot.absent) or "the age of the waiting jobs, or the busy VMs"
            raise InputAbsent(f"the learned policy needs the whole {self.model.card.observation}; absent: {lacking}")
        return np.array([vector], dtype=np.float32)

    def _key(self, name: str) -> str:
        return f"{self.model.name[:NAME_DIGITS]}.{name}"

    def _recall(self, memory: Memory) -> dict[str, Floats]:
        """Return the recurrent inputs; zeros at the start of an episode, and for a model that has not decided yet."""
        nothing = (0.0,) * self.model.card.hidden_size
        return {
            name: np.array([memory.get(self._key(name), nothing)], dtype=np.float32) for name in self.model.card.memory
        }


def compact(values: Floats) -> tuple[float, ...]:
    """Return float32 numbers with as few decimals as tell them from each other: half the bytes in the ledger."""
    return tuple(float(text) for text in values.astype(str))


def outside_training(memory: Memory) -> frozenset[int]:
    """Return the positions of the features that stood outside the ranges of the training in the minute before."""
    return frozenset(
        int(position) for key, values in memory.items() if key.endswith(f".{OUTSIDE}") for position in values
    )


def bar_of(choice: Choice, groups: Sequence[GroupSnapshot]) -> str:
    """Return why the choice would have no effect now, "" when it would have one or asks for none."""
    if choice.change == 0:
        return ""
    group = groups[choice.kind]
    return group.cannot_add if choice.change > 0 else group.cannot_remove


def _shares(logits: NDArray[np.float64], possible: Sequence[bool]) -> NDArray[np.float64]:
    """Return the probability of each choice, 0 for the impossible ones; doing nothing is always possible."""
    masked = np.where(possible, logits, -np.inf)
    raised = np.exp(masked - masked.max())
    shares: NDArray[np.float64] = raised / raised.sum()
    return shares


def _sizes(fleet: Fleet, snapshot: Snapshot, chosen: Sequence[Choice]) -> tuple[int, ...]:
    """Return the sizes that the choices come to: VM by VM as far as there is room, none that physics forbids."""
    sizes = list(snapshot.requested)
    for choice in chosen:
        group, seen = fleet.groups[choice.kind], snapshot.groups[choice.kind]
        if bar_of(choice, snapshot.groups):
            continue
        if choice.change > 0:
            room = max(0, min(group.maximum, seen.maximum) - seen.requested)
            sizes[choice.kind] += min(choice.change, room)
        elif choice.change < 0:
            spare = max(0, seen.warm - max(group.minimum, seen.minimum))
            sizes[choice.kind] -= min(-choice.change, spare)
    return tuple(sizes)


def _named(choice: Choice, groups: Sequence[GroupSnapshot]) -> str:
    if choice.change == 0:
        return "nothing"
    return f"{groups[choice.kind].key} {choice.change:+d}"


def _spoken(head: Sequence[Choice], shares: NDArray[np.float64], groups: Sequence[GroupSnapshot]) -> str:
    """Return the likeliest choices of one head with their probabilities."""
    likely = sorted(range(len(head)), key=lambda k: (-shares[k], k))[:TOP_CHOICES]
    likeliest = [f"{_named(head[k], groups)} {shares[k]:.1%}" for k in likely if shares[k] > 0.0]
    own_head = len({choice.kind for choice in head}) == 1
    return f"{groups[head[0].kind].key}: {', '.join(likeliest)}" if own_head else ", ".join(likeliest)


def _seen(features: Sequence[str], observation: Floats) -> str:
    pairs = zip(features, observation[0].tolist(), strict=True)
    return ", ".join(f"{name} {value:.3g}" for name, value in pairs if value) or "nothing but zeros"


def _forbidden(groups: Sequence[GroupSnapshot]) -> str:
    bars = [(f"{group.key} {sign}1", bar) for group in groups for sign, bar in _bars(group)]
    return f"impossible now: {', '.join(f'{what} ({bar})' for what, bar in bars)}" if bars else ""


def _bars(group: GroupSnapshot) -> list[tuple[str, str]]:
    """Return what is worth telling: that an empty group can lose nothing goes without saying."""
    remove = group.cannot_remove if group.requested else ""
    return [(sign, bar) for sign, bar in (("+", group.cannot_add), ("-", remove)) if bar]
