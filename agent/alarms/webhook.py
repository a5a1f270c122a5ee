"""Posts alarms to a webhook."""

from __future__ import annotations

import socket
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

    def fault(self) -> str:
        """Return why nothing can be delivered as things are, "" where the host takes connections; posts nothing."""
        try:
            url = httpx.URL(self._url)
            port = url.port or (443 if url.scheme == "https" else 80)
            with socket.create_connection((url.host, port), TIMEOUT_S):
                return ""
        except Exception as error:
            return f"{type(error).__name__}: correct TRIMTAB_ALARMS__WEBHOOK_URL, or let the agent reach that host"

    def tell(self, alarm: Alarm) -> None:
        """Post the alarm; ConnectionError, without the address, when it did not arrive."""
        try:
            answer = self._client.post(self._url, json={"text": alarm.sentence, "alarm": asdict(alarm)})
        except Exception as error:
            # The error's own text can hold the address, which is a secret; its kind says enough. Not all of httpx's
            # errors are HTTPError: an address that it cannot read raises another.
            raise ConnectionError(type(error).__name__) from None
        if not answer.is_success:
            raise ConnectionError(f"it answered {answer.status_code}")
