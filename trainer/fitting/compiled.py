"""How the fit's functions are compiled: as the simulator's are, and anew when a source that they call has changed."""

from __future__ import annotations

from pathlib import Path

from domain.rules.admission import belief
from simulator.admission import streams
from simulator.admission.compiled import compiled

__all__ = ["compiled"]


def _drop_stale() -> None:
    """Delete the cached code of this package when one of the sources that it was made from is newer.

    The cache looks at the file of a function only, and would keep the old code of whatever that function calls.
    """
    here = Path(__file__).parent
    sources = [*here.glob("*.py"), Path(belief.__file__), Path(streams.__file__)]
    newest = max(path.stat().st_mtime for path in sources)
    for index in (here / "__pycache__").glob("*.nbi"):
        try:
            if index.stat().st_mtime < newest:
                index.unlink()
        except OSError:
            # Another process was faster, or the folder is not ours to change.
            continue


_drop_stale()
