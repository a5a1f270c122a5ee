"""Graphite plaintext: bytes in chunks of any size become readings; what cannot be read is counted, never kept."""

from __future__ import annotations

from collections.abc import Callable

from collectors.base import SampleSink
from collectors.intake import IntakeCounters
from domain.errors import RejectReason
from domain.samples import MAX_LINE_BYTES

NOW_STAMP = -1.0
"""Graphite's timestamp for "when you receive it"."""


class LineReader:
    """Splits one stream into lines `path value timestamp` and hands the readings to the sink, a chunk at a time.

    It holds at most one unfinished line of `MAX_LINE_BYTES`; a longer one is counted TOO_LONG when it passes that
    length and skipped up to its newline. Every newline-terminated line counts exactly once, accepted or refused.
    peer: the address that the stream comes from.
    """

    __slots__ = ("_counters", "_now", "_sink", "_skipping", "_tail", "peer")

    def __init__(self, sink: SampleSink, counters: IntakeCounters, now: Callable[[], float], peer: str = "") -> None:
        self.peer = peer
        self._sink = sink
        self._counters = counters
        self._now = now
        self._tail = b""
        self._skipping = False

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished line held now."""
        return len(self._tail)

    def feed(self, chunk: bytes) -> int:
        """Take the next bytes of the stream; return how many lines of them the sink took."""
        if self._skipping:
            _, newline, chunk = chunk.partition(b"\n")
            if not newline:
                return 0
            self._skipping = False
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        taken = self._take(lines) if lines else 0
        if len(self._tail) > MAX_LINE_BYTES:
            self._counters.refuse(RejectReason.TOO_LONG, self._tail)
            self._tail = b""
            self._skipping = True
        return taken

    def close(self) -> None:
        """End the stream: an unfinished line is refused, since a cut number would be a wrong number."""
        if self._tail:
            self._counters.refuse(RejectReason.MALFORMED, self._tail)
            self._tail = b""
        self._skipping = False

    def whole(self, message: bytes) -> None:
        """Take a message that is complete by itself, such as a datagram: its last line needs no newline."""
        self.feed(message if message.endswith(b"\n") else message + b"\n")
        self.close()

    def _take(self, lines: list[bytes]) -> int:
        now = self._now()
        if max(map(len, lines)) > MAX_LINE_BYTES:
            lines = [line for line in lines if self._fits(line)]
        paths: list[bytes] = []
        values: list[float] = []
        times: list[float] = []
        for line in lines:
            try:
                path, value_text, time_text = line.split()
                value, at = float(value_text), float(time_text)
            except ValueError:
                self._counters.refuse(_why_unreadable(line), line)
                continue
            paths.append(path)
            values.append(value)
            times.append(at)
        if not paths:
            return 0
        if NOW_STAMP in times:
            times = [now if at == NOW_STAMP else at for at in times]
        refusals = self._sink.append(paths, values, times, now, self.peer)
        taken = len(paths) - len(refusals)
        self._counters.accepted += taken
        for position, reason in refusals:
            shown = b"%b %r %r" % (paths[position], values[position], times[position])
            self._counters.refuse(reason, shown)
        return taken

    def _fits(self, line: bytes) -> bool:
        if len(line) <= MAX_LINE_BYTES:
            return True
        self._counters.refuse(RejectReason.TOO_LONG, line)
        return False


def _why_unreadable(line: bytes) -> RejectReason:
    if not is_text(line):
        return RejectReason.NOT_TEXT
    return RejectReason.BAD_VALUE if len(line.split()) == 3 else RejectReason.MALFORMED


def is_text(line: bytes) -> bool:
    """Return whether the bytes are UTF-8 without NUL."""
    if b"\0" in line:
        return False
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
