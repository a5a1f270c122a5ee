"""The live stream: journal rows and changed parts as server-sent events, resumed by the journal's own numbers.

A connection begins at the number its page was rendered at, or after a break at the last one it was sent. Each row
carries its number as the event's id, so that a stream cut anywhere goes on with the very next row.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent.view.view import JournalRow
from agent.web.page import Pages, Version
from domain.errors import BadInput, LedgerError
from domain.subject import Subject

log = structlog.get_logger(__name__)

MAX_BEHIND: Final = 1000
"""A reader that has missed more rows than this must load the page anew: that is shorter."""
_ROWS_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """How many streams there may be, how often each looks for news, and how long silence and a stuck write may last."""

    streams: int = 16
    look_every_s: float = 1.0
    beat_every_s: float = 15.0
    send_within_s: float = 10.0
    retry_ms: int = 2000


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new: encoded events, the journal number reached, and whether the reader must begin anew."""

    chunk: bytes
    seq: int
    reload: bool = False


class Feed:
    """Makes streams, each at its own place in the journal."""

    def __init__(self, pages: Pages, limits: FeedLimits) -> None:
        self.limits = limits
        self._pages = pages
        self._open = 0

    @property
    def open(self) -> int:
        """How many streams there are now."""
        return self._open

    def take(self) -> bool:
        """Take a place for a stream; False when there is none. Only the event loop's thread may call this."""
        if self._open >= self.limits.streams:
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        """Give the place back."""
        self._open -= 1

    async def events(self, since: int, subject: Subject | None) -> AsyncIterator[bytes]:
        """Yield encoded events after journal number `since`, of one subject or of all, until the agent stops."""
        yield encoded("hello", {"build": self._pages.build}, retry_ms=self.limits.retry_ms)
        seen: Version | None = None
        sent: dict[str, str] = {}
        spoke = time.monotonic()
        while not self._pages.view.parts.board.read().stopping:
            version = await run_in_threadpool(self._pages.version, self.limits.look_every_s / 2.0)
            if not version.same(seen):
                batch = await run_in_threadpool(self._news, version, since, subject, sent)
                since, seen = batch.seq, version
                if batch.chunk:
                    spoke = time.monotonic()
                    yield batch.chunk
                if batch.reload:
                    return
            if time.monotonic() - spoke >= self.limits.beat_every_s:
                spoke = time.monotonic()
                yield b": heartbeat\n" + encoded("beat", {})
            await asyncio.sleep(self.limits.look_every_s)

    def _news(self, version: Version, since: int, subject: Subject | None, sent: dict[str, str]) -> Batch:
        """Return the rows between `since` and the version's number, then the parts that differ from those sent."""
        seq = version.seq
        try:
            if seq is not None and seq < since:
                # The page may have been rendered after this version was looked up.
                seq = self._pages.view.parts.ledger.newest_seq()
            if seq is not None and not 0 <= seq - since <= MAX_BEHIND:
                return Batch(encoded("reload", {}), since, reload=True)
            rows = b"" if seq is None else self._rows(since, seq, subject)
            parts = self._pages.parts(self._pages.moment(subject))
        except LedgerError:
            return Batch(self._changed(self._pages.alerts_alone(), sent, since), since)
        except BadInput:
            # The subject is gone, page and all.
            return Batch(encoded("reload", {}), since, reload=True)
        seq = since if seq is None else seq
        return Batch(rows + self._changed(parts, sent, seq), seq)

    def _rows(self, since: int, until: int, subject: Subject | None) -> bytes:
        events = []
        while since < until:
            page = self._pages.view.journal(since, limit=_ROWS_AT_ONCE)
            for row in page.events:
                if row.seq > until or not concerns(row, subject):
                    continue
                if (shown := self._pages.row(row)) is not None:
                    kind, html = shown
                    events.append(encoded(kind, {"seq": row.seq, "ref": row.ref, "html": html}, row.seq))
            if page.next_since_seq == since:
                break
            since = page.next_since_seq
        return b"".join(events)

    def _changed(self, parts: Mapping[str, str], sent: dict[str, str], seq: int) -> bytes:
        changed = {name: html for name, html in parts.items() if sent.get(name) != html}
        sent.update(changed)
        # Sent even when nothing in it changed: its id tells the reader how far it has come.
        return encoded("parts", {"parts": changed}, seq)


def concerns(row: JournalRow, subject: Subject | None) -> bool:
    """Return whether a row belongs on a subject's page: its own, the agent's, one before rows named a decision."""
    return subject is None or (row.decision in ("", subject.decision) and row.subject in ("", subject.name))


def encoded(event: str, data: Mapping[str, Any], seq: int | None = None, retry_ms: int | None = None) -> bytes:
    """Return one server-sent event; JSON keeps line ends out of its data."""
    lines = [f"event: {event}", f"data: {json.dumps(data, ensure_ascii=False)}"]
    if seq is not None:
        lines.insert(0, f"id: {seq}")
    if retry_ms is not None:
        lines.insert(0, f"retry: {retry_ms}")
    return ("\n".join(lines) + "\n\n").encode()


class EventStream(Response):
    """The answer that carries a stream; it ends when the reader goes, falls behind, or the agent stops."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, since: int, subject: Subject | None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._since = since
        self._subject = subject

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events as they come; the place taken for this stream is given back however it ends."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            sending = asyncio.ensure_future(self._send_all(send))
            leaving = asyncio.ensure_future(_gone(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
            finally:
                sending.cancel()
                leaving.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
        finally:
            self._feed.leave()

    async def _send_all(self, send: Send) -> None:
        async for chunk in self._feed.events(self._since, self._subject):
            try:
                async with asyncio.timeout(self._feed.limits.send_within_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TimeoutError:
                log.info("stream_dropped", detail="the reader is too slow")
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
