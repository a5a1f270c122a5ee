"""A pytest plugin: FastAPI asks pydantic for the schema of a field once per process, and not once per application.

An agent has some 80 routes with 300 fields; building their schemas anew for each agent took longer than most tests.
"""

from __future__ import annotations

import sys
from typing import Any


def pytest_collection_finish() -> None:
    # A run of tests that know no application shall not load one.
    if "fastapi" not in sys.modules:
        return
    from fastapi._compat import v2

    plain = v2.TypeAdapter
    made: dict[Any, Any] = {}

    def shared(annotated: Any, *, config: Any = None) -> Any:
        # Equal descriptions of one type: functions in them are alive, and so their addresses, as long as the adapter.
        key = annotated.__origin__, repr(annotated.__metadata__), repr(config)
        try:
            if key not in made:
                made[key] = plain(annotated, config=config)
        except TypeError:
            return plain(annotated, config=config)
        return made[key]

    v2.TypeAdapter = shared  # type: ignore[assignment, misc]
