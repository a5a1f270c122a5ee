"""What it costs to read AWS's answer: botocore's own parser on a DescribeAutoScalingGroups answer of a given size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any
from xml.sax.saxutils import escape

import botocore.parsers
import botocore.session

OPERATION = "DescribeAutoScalingGroups"
TURNS = 5


def parse_ms(groups: Iterable[Mapping[str, Any]]) -> float:
    """Return the processor time in milliseconds, median of a few, that parsing an answer with these groups takes."""
    shape = botocore.session.get_session().get_service_model("autoscaling").operation_model(OPERATION).output_shape
    assert shape is not None, "a describe answers"
    parser = botocore.parsers.create_parser("query")
    named = _xml({"AutoScalingGroups": list(groups)})
    body = f"<{OPERATION}Response><{OPERATION}Result>{named}</{OPERATION}Result></{OPERATION}Response>".encode()
    took = []
    for _ in range(TURNS):
        begin = time.process_time()
        parser.parse({"status_code": 200, "headers": {}, "body": body}, shape)
        took.append(time.process_time() - begin)
    return 1000.0 * statistics.median(took)


def _xml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "".join(f"<{name}>{_xml(part)}</{name}>" for name, part in value.items())
    if isinstance(value, list):
        return "".join(f"<member>{_xml(part)}</member>" for part in value)
    return escape(str(value).lower() if isinstance(value, bool) else str(value))
