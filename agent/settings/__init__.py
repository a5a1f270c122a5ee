"""The agent's settings: read from environment and credentials, checked as a whole, explained by themselves.

Their models take a quarter of a second to load, so a name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.settings.load import LoadResult, Source, load_settings, read_settings
    from agent.settings.model import DriftHandling, Settings

__all__ = ["DriftHandling", "LoadResult", "Settings", "Source", "load_settings", "read_settings"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "model" if name in ("DriftHandling", "Settings") else "load"
    return getattr(import_module(f"{__name__}.{module}"), name)
