"""The settings of learned policies: where the models are."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from agent.models.promotion_seal import SHORTEST_KEY_BYTES
from agent.settings.kinds import Directory, Expected, File, Section
from agent.settings.location import promotion_key_of


def _key(value: SecretStr) -> SecretStr:
    if len(promotion_key_of(value.get_secret_value()) or b"") < SHORTEST_KEY_BYTES:
        raise ValueError
    return value


PromotionKey = Annotated[SecretStr, AfterValidator(_key), Expected(f"a key of at least {SHORTEST_KEY_BYTES} bytes")]


class LearnedSettings(Section):
    """Learned policies: the models that the policy `learned` takes."""

    models_dir: Directory | None = Field(
        None,
        description="Directory of models and of `champion.json`, which `trimtab promote` writes. A new champion is "
        "taken up at the next tick, or at SIGHUP. Not set: `models` in the state directory. Without a champion that "
        "fits the fleet, a model that comes with the agent and fits it decides.",
        examples=["/var/lib/trimtab/models"],
    )
    promotion_key: PromotionKey | None = Field(
        None,
        description="Key that signs the reports of promotions (`PROMOTION_KEY` of `trimtab promote`): with it a "
        "champion is taken up only if its report is signed. Not set: the report must be whole. Give it as the "
        "credential `trimtab_learned__promotion_key`.",
    )
    model_file: File | None = Field(
        None,
        description="ONNX file of the model that decides for every fleet with the policy `learned`, named after its "
        "SHA-256, in place of the champion. One that is refused is told on /readyz, and the rules stand in for it.",
        examples=["/var/lib/trimtab/models/3f7a51d0.onnx"],
    )
