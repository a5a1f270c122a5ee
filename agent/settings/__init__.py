"""The agent's settings: read from environment and credentials, checked as a whole, explained by themselves."""

from agent.settings.load import LoadResult, Source, load_settings, read_settings
from agent.settings.model import DriftHandling, Settings

__all__ = ["DriftHandling", "LoadResult", "Settings", "Source", "load_settings", "read_settings"]
