"""Ledgers in memory."""

from tests.in_memory import tmp_path

__all__ = ["tmp_path"]
