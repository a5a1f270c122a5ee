"""What is recorded when a learned policy sees what its training did not."""

from types import SimpleNamespace
from typing import Any

import pytest

from agent.autoscaling.state_events import _about_training
from agent.models.card import SCORER_MEMORY
from agent.rails.state import LoopState
from domain.decisions import Reason
from domain.observations.autoscaling_scorer import MEMORY, STATE_FEATURES

SEEN: Any = SimpleNamespace(groups=(None,) * 3)


@pytest.mark.parametrize("place", range(len(STATE_FEATURES)))
def test_every_feature_of_a_scorer_is_called_by_its_name(place: int) -> None:
    memory = {f"0123.{SCORER_MEMORY}": (0.0,) * MEMORY, "0123.outside": (float(place),)}
    (event,) = _about_training("web", LoopState(), LoopState(memory=memory), SEEN, 0.0)
    assert event.reason is Reason.OUTSIDE_TRAINING
    assert event.detail.endswith(f": {STATE_FEATURES[place]}")
