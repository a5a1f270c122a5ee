"""Starts alarms beside the loop, as the settings say."""

from __future__ import annotations

from agent.alarms.book import AlarmBook
from agent.alarms.delivery import Alarms, Channel, SnsTopic
from agent.settings import Settings
from agent.view.board import StandingBoard
from collectors.aws import AwsSession
from domain.decisions import Mode


def start_alarms(settings: Settings, session: AwsSession, board: StandingBoard) -> Alarms:
    """Start the alarms and have them hear of every turn; the caller stops them."""
    chosen = settings.alarms
    channels: list[Channel] = []
    if chosen.webhook_url is not None:
        # An HTTP client weighs 5 MB: only who has a webhook pays for it.
        from agent.alarms.webhook import Webhook

        channels.append(Webhook(chosen.webhook_url.get_secret_value()))
    if chosen.sns_topic_arn is not None and settings.mode is Mode.ACT:
        channels.append(SnsTopic(session, chosen.sns_topic_arn))
    book = AlarmBook(chosen.repeat_s, chosen.quiet_s)
    alarms = Alarms(book, channels, problem=lambda sentence: board.problem("alarms", sentence))
    alarms.start()
    board.listen(alarms.on_turn)
    return alarms
