"""Loads the model that the settings name; one that is refused is told, and the rules go on without it."""

from __future__ import annotations

import structlog

from agent.settings import Settings
from agent.standing import StandingBoard
from domain.observations.autoscale import OBS7_NAMES, OBS7_VERSION, schema_hash

log = structlog.get_logger(__name__)

PROBLEM = "model"


def start_model(settings: Settings, board: StandingBoard) -> None:
    """Verify the model file and note on the board what it is, or why it is refused; without one, do nothing."""
    path = settings.learned.model_file
    if path is None:
        return
    # ONNX Runtime costs a third of a second and 30 MB: only who has a model pays for it.
    from agent.models import ModelRefused, ModelSlot

    try:
        model = ModelSlot(schema_hash(OBS7_NAMES, OBS7_VERSION)).load(path)
    except ModelRefused as refusal:
        board.problem(PROBLEM, str(refusal))
        log.error("model_refused", detail=str(refusal))
        return
    board.change(model=model.name)
    log.info("model_ready", model=model.name)
