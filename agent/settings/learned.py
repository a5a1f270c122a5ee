"""The settings of learned policies: which model file the agent holds ready."""

from __future__ import annotations

from pydantic import Field

from agent.settings.http import File
from agent.settings.kinds import Section


class LearnedSettings(Section):
    """Learned policies: the model that is verified at the start and held ready."""

    model_file: File | None = Field(
        None,
        description="ONNX file of a model, named after its SHA-256. One that is refused is told on /readyz, and the "
        "rules stand in for it. Not set: none.",
        examples=["/var/lib/trimtab/models/3f7a51d0.onnx"],
    )
