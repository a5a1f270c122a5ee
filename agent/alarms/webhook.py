"""Posts alarms to a webhook."""

from __future__ import annotations

from dataclasses import asdict
from urllib.parse import urlsplit

import httpx

from agent.alarms.book import Alarm

TIMEOUT_S = 5.0


class Webhook:
    """Posts `{"text": sentence, "alarm": {...}}`; `text` is what chat services show. Only 2xx counts as arrived."""

    def __init__(self, url: str, client: httpx.Client | None = None) -> None:
        self._url = url
        self._client = client or httpx.Client(timeout=TIMEOUT_S, follow_redirects=False)

    @property
    def name(self) -> str:
        """The host alone: paths of webhooks are secrets."""
        return f"webhook {urlsplit(self._url).hostname}"

    def tell(self, alarm: Alarm) -> None:
        """Post the alarm; ConnectionError, without the address, when it did not arrive."""
        try:
            answer = self._client.post(self._url, json={"text": alarm.sentence, "alarm": asdict(alarm)})
        except httpx.HTTPError as error:
            # The error's own text can hold the address, which is a secret; its kind says enough.
            raise ConnectionError(type(error).__name__) from None
        if not answer.is_success:
            raise ConnectionError(f"it answered {answer.status_code}")
