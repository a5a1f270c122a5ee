"""The range of plausible readings, and the counters of refused ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from collectors.base import SampleSink
from domain.errors import RejectReason
from domain.samples import JOB_QUANTILES, MAX_LINE_BYTES, MAX_MAGNITUDE, QueueMetric, VmMetric
from domain.units import MINUTE_S

PERCENT_METRICS = frozenset({VmMetric.CPU_PERCENT, VmMetric.RAM_PERCENT})
MAX_PERCENT = 105.0
"""Samplers overshoot 100 a little (counter against clock); such a reading is taken as 100. More is refused: it is a
reporter that adds up its cores, and taking 400 % as 100 % would scale a fleet out for a mistake in a script."""

EXAMPLE_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Seconds that a reading's time may lie ahead of our clock, and behind it."""

    max_ahead_s: float = 60.0
    max_age_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Values of one metric: 0..`limit` are believable, those above `full` are taken as `full`."""

    full: float
    limit: float


_PERCENT = ValueRange(100.0, MAX_PERCENT)
_COUNT = ValueRange(MAX_MAGNITUDE, MAX_MAGNITUDE)
_JOB_LENGTHS = frozenset({QueueMetric.JOB_CORE_SECONDS, *JOB_QUANTILES.values()})
COUNTERS = frozenset({QueueMetric.SUBMITTED_TOTAL, QueueMetric.FINISHED_TOTAL, QueueMetric.FINISHED_CORE_SECONDS_TOTAL})
"""Metrics that only ever grow, except when their counter restarts: what is bounded is by how much."""


SMALL_COUNT = 100.0
"""Jobs; a counter that falls to no more is taken for one that restarted, whatever it had counted."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Bounds on the claims of a fleet's sources; a reading beyond them is refused, and so counts as absent.

    Jobs waiting and running; jobs submitted in a minute; the oldest job's wait and the mean work of a job. Of a VM:
    busy cores as a share of its cores, and for how long the work under way on them can have run.
    """

    max_waiting: float = 1e6
    max_running: float = 1e6
    max_submitted_per_minute: float = 1e6
    max_oldest_wait_s: float = 1_209_600.0
    max_job_core_s: float = 1e6
    max_busy_share: float = 1.0
    max_work_s: float = 2_592_000.0

    def limit(self, metric: str, cores: float) -> tuple[float, str]:
        """Return the largest value that is believed, and the name of the bound; `cores` are those of the VM."""
        match metric:
            case QueueMetric.WAITING:
                return self.max_waiting, "MAX_WAITING"
            case QueueMetric.RUNNING:
                return self.max_running, "MAX_RUNNING"
            case QueueMetric.OLDEST_WAIT_SECONDS:
                return self.max_oldest_wait_s, "MAX_OLDEST_WAIT_S"
            case _ if metric in _JOB_LENGTHS:
                return self.max_job_core_s, "MAX_JOB_CORE_S"
            case VmMetric.BUSY_CORES:
                return self.max_busy_share * cores, "MAX_BUSY_SHARE"
            case VmMetric.WORK_CORE_SECONDS:
                return self.max_work_s * self.max_busy_share * cores, "MAX_WORK_S"
            case _:
                return value_range(metric).limit, ""

    def growth(self, seconds: float, metric: str = QueueMetric.SUBMITTED_TOTAL) -> float:
        """Return by how much a counter may grow in so many seconds; never less than in a minute."""
        each = self.max_job_core_s if metric == QueueMetric.FINISHED_CORE_SECONDS_TOTAL else 1.0
        return each * self.max_submitted_per_minute * max(1.0, seconds / MINUTE_S)

    def restarted(self, before: float, value: float, seconds: float, metric: str = QueueMetric.SUBMITTED_TOTAL) -> bool:
        """Return whether a counter that fell from `before` to `value` within `seconds` can have restarted at zero.

        Else what it sums has lost a part: it kept more than half of a large count, or more than can have come since.
        """
        return value <= max(before / 2.0, SMALL_COUNT) and value <= self.growth(seconds, metric)


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """Readings of one metric that were not believed: how many, the last one, its sender, the limit and its bound."""

    count: int
    value: float
    peer: str
    limit: float
    bound: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Readings of one metric that contradict one taken before: how many, and what the last one contradicts."""

    count: int
    detail: str


def value_range(metric: str) -> ValueRange:
    """Return the believable range of a metric of any fleet; no metric is ever below 0."""
    return _PERCENT if metric in PERCENT_METRICS else _COUNT


@dataclass(slots=True)
class ForwardingCounters:
    """Lines to another agent since the start: forwarded to its connection, and dropped as too many waited for one."""

    forwarded: int = 0
    dropped: int = 0


@dataclass(slots=True)
class IntakeCounters:
    """Counters of accepted and refused lines since the start, and the last refused line of each reason.

    connections_displaced: closed to make room for others. *_foreign: from outside the networks that may send.
    last_foreign, last_crowded: the address last refused for that, and the one whose connection was last refused or
    closed for want of room. forwarding: by the name of the agent; these lines are also counted as accepted. One thread
    writes (the listener's); any thread may read.
    """

    accepted: int = 0
    connections_open: int = 0
    connections_total: int = 0
    connections_refused: int = 0
    connections_idled_out: int = 0
    connections_displaced: int = 0
    connections_foreign: int = 0
    datagrams: int = 0
    datagrams_foreign: int = 0
    last_foreign: str = ""
    last_crowded: str = ""
    forwarding: Mapping[str, ForwardingCounters] = field(default_factory=dict)
    _rejected: dict[RejectReason, int] = field(default_factory=lambda: dict.fromkeys(RejectReason, 0))
    _examples: dict[RejectReason, bytes] = field(default_factory=lambda: dict.fromkeys(RejectReason, b""))

    @property
    def rejected(self) -> Mapping[RejectReason, int]:
        """Refused lines by reason."""
        return MappingProxyType(self._rejected)

    @property
    def examples(self) -> Mapping[RejectReason, str]:
        """The last refused line of each reason, printable and cut to size; empty where there was none."""
        return {reason: printable(line) for reason, line in self._examples.items()}

    @property
    def rejected_total(self) -> int:
        """Refused lines in all."""
        return sum(self._rejected.values())

    def refuse(self, reason: RejectReason, line: bytes) -> None:
        """Count a refused line and keep its start as its reason's example."""
        self._rejected[reason] += 1
        # Made printable when it is shown: a sender of nothing else would cost the listener's thread ten times as much.
        self._examples[reason] = line[: EXAMPLE_CHARACTERS + 1]


def printable(line: bytes) -> str:
    """Return the start of a line with everything replaced that a terminal or a log might act on."""
    text = line[:EXAMPLE_CHARACTERS].decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown + "…" if len(line) > EXAMPLE_CHARACTERS else shown


NOW_STAMP = -1.0
"""Graphite's timestamp for "when you receive it"."""
BLOCK_BYTES = 2048
"""Least bytes of lines that are first read all at once."""
_GRAPHIC = bytes(range(ord(" ") + 1, 256))
_Readings = tuple[list[bytes], list[float], list[float]]
"""Paths, values and times, as long as each other."""


class LineReader:
    """Splits one stream into lines `path value timestamp` and hands the readings to the sink, a chunk at a time.

    It holds at most one unfinished line of `MAX_LINE_BYTES`; a longer one is counted TOO_LONG when it passes that
    length and skipped up to its newline. Every newline-terminated line counts exactly once, accepted or refused.
    peer: the sender, see `collectors.base.sender_at`.
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
        if self._tail:
            chunk = self._tail + chunk
        end = chunk.rfind(b"\n") + 1
        self._tail = chunk[end:]
        taken = self._take(chunk[:end]) if end else 0
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

    def _take(self, block: bytes) -> int:
        now = self._now()
        regular = _regular_lines(block) if len(block) >= BLOCK_BYTES else None
        paths, values, times = regular or self._read_lines(block.split(b"\n")[:-1])
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

    def _read_lines(self, lines: list[bytes]) -> _Readings:
        """Return the readings of lines, and count the unreadable ones as refused."""
        if max(map(len, lines)) > MAX_LINE_BYTES:
            lines = [line for line in lines if self._fits(line)]
        paths: list[bytes] = []
        values: list[float] = []
        times: list[float] = []
        for line in lines:
            try:
                path, value_text, time_text = line.split()
                if b"_" in value_text or b"_" in time_text:
                    # Python reads 1_4 as 14.
                    raise ValueError
                value, at = float(value_text), float(time_text)
            except ValueError:
                self._counters.refuse(_why_unreadable(line), line)
                continue
            paths.append(path)
            values.append(value)
            times.append(at)
        return paths, values, times

    def _fits(self, line: bytes) -> bool:
        if len(line) <= MAX_LINE_BYTES:
            return True
        self._counters.refuse(RejectReason.TOO_LONG, line)
        return False


def _regular_lines(block: bytes) -> _Readings | None:
    """Return the readings of whole lines; None unless each is short and has three fields with one space between."""
    fields = block.split()
    paths, value_texts, time_texts = fields[::3], fields[1::3], fields[2::3]
    # With two spaces a line has at most three fields, so three times the lines leave no line with fewer.
    if len(fields) != 3 * len(paths) or block.translate(None, _GRAPHIC) != b"  \n" * len(paths):
        return None
    # A line that is too long leaves a half of its length without a newline.
    half = MAX_LINE_BYTES // 2
    if any(block.find(b"\n", start, start + half) < 0 for start in range(0, len(block), half)):
        return None
    distinct_times = set(time_texts)
    if b"_" in b"".join(value_texts) or b"_" in b"".join(distinct_times):
        return None
    try:
        time_of = {text: float(text) for text in distinct_times}
        return paths, list(map(float, value_texts)), list(map(time_of.__getitem__, time_texts))
    except ValueError:
        return None


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
