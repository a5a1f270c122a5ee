"""What every test shares: reproducible hypothesis profiles, the policy on skips, no AWS account."""

import os

from hypothesis import HealthCheck, settings

# No test meets an account of ours. Here, because loading the tests below already loads botocore, which reads them.
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

pytest_plugins = ["pytester", "tests.skip_policy"]

# No deadline: two busy cores make time per example a matter of luck. In CI the same examples run every time,
# so that a red run can be repeated; on a developer's machine new ones are tried.
_shared = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("developer", _shared)
settings.register_profile("ci", _shared, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") or os.environ.get("TRIMTAB_REQUIRE_REAL") else "developer")
