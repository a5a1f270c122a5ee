"""The settings of learned policies: where the models are."""

from __future__ import annotations

from pydantic import Field

from agent.settings.http import File
from agent.settings.kinds import Directory, Section


class LearnedSettings(Section):
    """Learned policies: the models that the policy `learned` takes."""

    models_dir: Directory | None = Field(
        None,
        description="Directory of models and of `champion.json`, which `trimtab promote` writes. A new champion is "
        "taken up at the next tick, or at SIGHUP. Not set: `models` in the state directory. Without a champion, a "
        "model that comes with the agent and fits the fleet decides.",
        examples=["/var/lib/trimtab/models"],
    )
    model_file: File | None = Field(
        None,
        description="ONNX file of the model that decides for every fleet with the policy `learned`, named after its "
        "SHA-256, in place of the champion. One that is refused is told on /readyz, and the rules stand in for it.",
        examples=["/var/lib/trimtab/models/3f7a51d0.onnx"],
    )
