"""Asks Prometheus for the measurements of a fleet: the PromQL of the input map, on `/api/v1/query`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from collectors.json_source import JsonSource, NotReached, Tls
from collectors.mapping import OF_THE_FLEET, Hosts, Query, is_for
from domain.errors import CollectionFailed
from domain.fleet import Fleet
from domain.samples import Sample, Series

EXPLAINED: Final = (400, 422, 503)
"""Statuses with which Prometheus says in its body what is wrong."""
NOTES: Final = "PromQL info:"
"""Begins a warning that is none: it is about how the query is written, not about what is missing."""
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`"""
_BRACES = rf"""\{{(?:[^{{}}"'`]|{_QUOTED})*\}}"""
SELECTOR: Final = re.compile(rf"[A-Za-z_:][A-Za-z0-9_:]*\s*(?:{_BRACES})?|{_BRACES}")
_TIMESTAMP: Final = rf"timestamp\s*\(\s*(?:{SELECTOR.pattern})\s*\)"
"""Gives the time of a selector's sample, but of any other expression that of the question."""
_TOKEN: Final = re.compile(
    rf"""(?P<other>{_TIMESTAMP}|\s+|\#[^\n]*|{_QUOTED}|\[[^\]]*\]|[0-9.][A-Za-z0-9_.]*|[^A-Za-z_:{{])|(?P<selector>{SELECTOR.pattern})|.""",
    re.DOTALL,
)
_OF_LABELS: Final = re.compile(r"\s*\([^()]*\)")
_NO_SELECTORS: Final = frozenset({"and", "or", "unless", "atan2", "bool", "offset", "start", "end", "inf", "nan"})
_LABELS_FOLLOW: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_OTHERWISE_TIMED: Final = re.compile(r"\s*(?:\(|\[|@|offset\b|(?:by|without)\b\s*\()")
"""Follows the name of a function or an aggregation, or a selector that says itself how far it looks back."""
SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class PrometheusOptions:
    """The address of Prometheus and the settings of its queries.

    max_age_s: samples older than this are not taken, and do not go into an expression. timeout_s: bounds all queries of
    one collection together. authorization: value of that header.
    """

    url: str
    interval_s: float = 15.0
    timeout_s: float = 10.0
    max_age_s: float = 90.0
    max_response_bytes: int = 16 * 2**20
    authorization: str | None = field(default=None, repr=False)
    tls: Tls | None = None


class PrometheusCollector:
    """The measurements of one fleet that queries of the input map give; each reading is returned once.

    A plain selector is asked for with a range, so that samples come with the times of their scrapes and an old one is
    seen to be old. Any other expression has the time of the question, and its selectors have no sample older than
    max_age_s. What is not finite is absent. Of a query without a usable answer nothing is taken: also of one that the
    server says is not complete, or that has two series for one measurement. The others go on, and at the end
    CollectionFailed says what failed. A query that failed is asked after the others the next time, so that a slow one
    does not take their time for good.
    """

    def __init__(self, fleet: Fleet, queries: Sequence[Query], hosts: Hosts, options: PrometheusOptions) -> None:
        self._fleet, self._hosts, self._options = fleet, hosts, options
        self._queries = [query for query in queries if is_for(query.fleet, fleet.name)]
        self._source = JsonSource(
            "Prometheus",
            options.url,
            options.timeout_s,
            options.max_response_bytes,
            options.authorization,
            options.tls,
        )
        self._newest: dict[Series, float] = {}
        self.name = f"prometheus:{fleet.name}"
        self.interval_s = options.interval_s
        self.timeout_s = options.timeout_s

    def collect(self, now: float) -> Iterator[Sample]:
        """Yield the readings of the fleet that are new and at most max_age_s old; at the end CollectionFailed."""
        deadline = time.monotonic() + self._options.timeout_s
        # Prometheus counts in milliseconds: rounded up, its answer would be from the future.
        now = math.floor(now * 1000.0) / 1000.0
        oldest = now - self._options.max_age_s
        # A clock set back would hide what is measured from now on behind times that lie ahead.
        self._newest = {series: at for series, at in self._newest.items() if oldest < at <= now}
        taken: set[Series] = set()
        failed: dict[int, CollectionFailed] = {}
        for place, query in enumerate(self._queries):
            try:
                found = self._answered(query, now, deadline, taken)
            except CollectionFailed as error:
                failed[place] = error
                if isinstance(error, NotReached):
                    break
                continue
            for series, points in found.items():
                taken.add(series)
                seen = max(oldest, self._newest.get(series, -math.inf))
                fresh = [(at, value) for at, value in points if seen < at <= now]
                self._newest[series] = max((at for at, _ in fresh), default=seen)
                yield from (Sample(series, query.offset + query.scale * value, at) for at, value in fresh)
        if failed:
            last = [query for place, query in enumerate(self._queries) if place in failed]
            self._queries = [query for place, query in enumerate(self._queries) if place not in failed] + last
            first = next(iter(failed.values()))
            more = f" (and {len(failed) - 1} more of {len(self._queries)} queries)" if len(failed) > 1 else ""
            raise CollectionFailed(f"{first}{more}")

    def close(self) -> None:
        """Close the connections; the collector may still be used and opens new ones."""
        self._source.close()

    def _answered(
        self, query: Query, now: float, deadline: float, taken: Collection[Series]
    ) -> dict[Series, list[tuple[float, float]]]:
        found: dict[Series, list[tuple[float, float]]] = {}
        for series, points in self._series(query, self._asked(query, now, deadline)):
            if series in found or series in taken:
                why = f"two series become {series.path}: aggregate them, as by `avg by (...)`"
                raise self._source.failed(f"{_shown(query.promql)}: {why}")
            found[series] = points
        return found

    def _asked(self, query: Query, now: float, deadline: float) -> list[Any]:
        promql, age = query.promql.replace(OF_THE_FLEET, self._fleet.name), f"{math.ceil(self._options.max_age_s)}s"
        promql = f"{promql}[{age}]" if SELECTOR.fullmatch(promql) else bounded(promql, age)
        form = {
            "query": promql,
            "time": f"{now:.3f}",
            "timeout": f"{max(math.ceil(deadline - time.monotonic()), 1)}s",
        }
        status, answer = self._source.post("api/v1/query", form, deadline, EXPLAINED)
        answer = answer if isinstance(answer, dict) else {}
        if status != 200 or answer.get("status") != "success":
            why = answer.get("error") or f"status {status}"
            raise self._source.failed(f"{_shown(promql)}: {_shown(str(why))}")
        warnings = answer.get("warnings") or []
        warnings = warnings if isinstance(warnings, list) else [warnings]
        partial = [str(one) for one in warnings if not str(one).startswith(NOTES)]
        if partial:
            raise self._source.failed(f"{_shown(promql)}: the answer is not complete: {_shown('; '.join(partial))}")
        match answer.get("data"):
            case {"resultType": "vector" | "matrix", "result": list(result)}:
                return result
            case {"resultType": "scalar", "result": list(point)}:
                return [{"metric": {}, "value": point}]
            case _:
                raise self._source.failed(f"{_shown(promql)}: the answer has no series: a query must give numbers")

    def _series(self, query: Query, answer: list[Any]) -> Iterator[tuple[Series, list[tuple[float, float]]]]:
        for item in answer:
            match item:
                case {"metric": dict(labels), "values": list(points)} | {"metric": dict(labels), "value": points}:
                    rows = points if "values" in item else [points]
                case {"metric": dict(labels)}:
                    # Native histograms have no number.
                    rows = []
                case _:
                    raise self._source.failed(f"{_shown(query.promql)}: a series has no labels or no values")
            if not all(isinstance(value, str) for value in labels.values()):
                raise self._source.failed(f"{_shown(query.promql)}: a label is not text")
            series = query.series(self._fleet.name, labels, self._hosts.find)
            if series is None or series.fleet != self._fleet.name:
                continue
            yield series, [reading for reading in map(_reading, rows) if reading is not None]


def bounded(promql: str, age: str) -> str:
    """Return an expression whose instant selectors have no value where the newest sample is older than `age` ("90s").

    Prometheus itself looks back five minutes, and gives what it finds the time of the question. Ranges, and selectors
    with `offset` or `@`, stay as they are: they say themselves from when they take samples.
    """
    found, place = [], 0
    while place < len(promql):
        token = _TOKEN.match(promql, place)
        assert token is not None, "any character is a token"
        place, text, selector = token.end(), token[0], token["selector"]
        name = (selector or "").strip().lower()
        if name in _LABELS_FOLLOW:
            labels = _OF_LABELS.match(promql, place)
            text, place = (text, place) if labels is None else (text + labels[0], labels.end())
        elif name and name not in _NO_SELECTORS and _OTHERWISE_TIMED.match(promql, place) is None:
            text = f"({text} and last_over_time({text}[{age}]))"
        found.append(text)
    return "".join(found)


def _reading(point: Any) -> tuple[float, float] | None:
    """Return (time, value) of a [time, "value"] pair; None where nothing was measured."""
    try:
        at, value = point
        reading = float(at), float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return reading if all(map(math.isfinite, reading)) else None


def _shown(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
