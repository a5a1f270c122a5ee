"""A real Graphite for the tests of this folder: installed once, started once per session, stopped at its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectors.graphite.installation import NotInstallable, installed
from tests.collectors.graphite.real_graphite import Graphite, running_carbon, running_web


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of Graphite's programs; the first test that needs them installs them."""
    try:
        return installed()
    except NotInstallable as reason:
        pytest.skip(f"needs a real Graphite: {reason}")


@pytest.fixture(scope="session")
def graphite(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graphite]:
    """A carbon-cache with tags and the graphite-web over it."""
    place = tmp_path_factory.mktemp("graphite")
    with running_carbon(programs, place, tags=True) as carbon, running_web(programs, carbon) as running:
        yield running
