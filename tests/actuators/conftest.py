"""A cloud over HTTP on a virtual clock and an actuator that may be killed and started again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.actuators.shift import Shift, running_shift


@pytest.fixture
def shift() -> Iterator[Shift]:
    """A fleet `web` of three groups in service, two VMs each, and an actuator in act mode."""
    with running_shift() as made:
        yield made
