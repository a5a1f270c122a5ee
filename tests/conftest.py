"""What every test shares: reproducible hypothesis profiles, the policy on skips, no AWS account, a small heap."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No test meets an account of ours. Here, because loading the tests below already loads botocore, which reads them.
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# A shell starts background jobs with SIGINT ignored, and their children inherit that: Ctrl-C could not be tested there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "pytester",
    "tests.isolation",
    "tests.skip_policy",
    "tests.shared_descriptions",
    "tests.shared_adapters",
    "tests.shared_schema",
    "tests.examples",
    "tests.sample",
]

# No deadline: two busy cores make time per example a matter of luck. In CI the same examples run every time,
# so that a red run can be repeated; on a developer's machine new ones are tried.
_shared = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("developer", _shared)
settings.register_profile("ci", _shared, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") or os.environ.get("TRIMTAB_REQUIRE_REAL") else "developer")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each module, exempt from collection what is alive then: the libraries, and what pytest has collected.

    There are millions of such objects, and the daemon collects after each of its turns: two thirds of the time of all
    tests went there.
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Do so also before the first test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Chromium, one for all tests of a process: playwright's loop allows no second one."""
    from tests.agent.web.browsing import launched

    with launched() as made:
        yield made
