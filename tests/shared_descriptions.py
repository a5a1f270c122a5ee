"""A pytest plugin: botocore's descriptions of AWS are read once per process, not once per session.

Tests make hundreds of sessions, and reading EC2's description takes longer than most of them.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.loaders import Loader

REMEMBERED = ("list_available_services", "determine_latest_version", "load_data_with_path", "load_service_model")


def _share(kind: type[Loader], name: str, remembered: dict[Any, Any]) -> None:
    plain = vars(kind)[name]

    @functools.wraps(plain)
    def shared(self: Loader, *arguments: Any, **named: Any) -> Any:
        key = (kind, type(self), name, tuple(self.search_paths), arguments, tuple(sorted(named.items())))
        if key not in remembered:
            remembered[key] = plain(self, *arguments, **named)
        return remembered[key]

    setattr(kind, name, shared)


def pytest_collection_finish() -> None:
    # A run of tests that know no AWS shall not load what speaks to it.
    if "collectors.aws_models" not in sys.modules:
        return
    from botocore.loaders import Loader

    from collectors.aws_models import SlimLoader

    remembered: dict[Any, Any] = {}
    for name in REMEMBERED:
        _share(Loader, name, remembered)
    _share(SlimLoader, "load_service_model", remembered)
