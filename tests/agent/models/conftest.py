"""An empty directory of models, and three models to put into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.models.making import ADD_L, ADD_M, ADD_S, preferring
from trainer.promotion.directory import ModelsWriter


@pytest.fixture
def directory(tmp_path: Path) -> ModelsWriter:
    return ModelsWriter(tmp_path / "models")


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [preferring(tmp_path, action) for action in (ADD_S, ADD_M, ADD_L)]
