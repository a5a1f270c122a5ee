"""The settings of alarms: where people hear of what needs them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from agent.settings.kinds import Expected, Section, web_address


def _webhook(value: SecretStr) -> SecretStr:
    parts = web_address(value.get_secret_value())
    host = parts.hostname or ""
    # The key in its path must not cross a network in the clear.
    is_here = host == "localhost" or re.fullmatch(r"127\.[0-9]+\.[0-9]+\.[0-9]+|::1", host) is not None
    if parts.scheme != "https" and not is_here:
        raise ValueError
    return value


WebhookUrl = Annotated[
    SecretStr, AfterValidator(_webhook), Expected("the https:// address of a webhook; http:// only for this machine")
]
TopicArn = Annotated[
    str,
    Field(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$"),
    Expected("the ARN of an SNS topic such as arn:aws:sns:eu-west-1:123456789012:ops"),
]


class AlarmSettings(Section):
    """Alarms: told once, again while they last, and when they are over. They are always logged."""

    webhook_url: WebhookUrl | None = Field(
        None,
        description='Gets a POST with {"text": ..., "alarm": {...}} for each alarm; a secret. Not set: none is called.',
    )
    sns_topic_arn: TopicArn | None = Field(
        None,
        description="SNS topic for alarms; in observe mode nothing is published. Not set: none.",
        examples=["arn:aws:sns:eu-west-1:123456789012:ops"],
    )
    repeat_s: float = Field(3600.0, ge=60, le=604_800, description="An alarm that lasts is told again after this time.")
    quiet_s: float = Field(
        1800.0, ge=60, le=604_800, description="An alarm about an event is over when it has not come up for so long."
    )
