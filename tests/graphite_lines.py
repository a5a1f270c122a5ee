"""Graphite's plaintext lines of samples."""

from __future__ import annotations

from domain.samples import Sample


def format_line(sample: Sample) -> str:
    """Return the plaintext line (with its newline) that carries the sample without loss."""
    return f"{sample.series.path} {sample.value!r} {sample.at!r}\n"
