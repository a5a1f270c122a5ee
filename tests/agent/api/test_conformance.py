"""What the OpenAPI description claims, tried on a real server by schemathesis: a thousand requests and no failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.api.conftest import Serve
from tests.agent.api.running import ASKER, OPERATOR, READER, Running

SEED = "20"
EXAMPLES = "10"
"""Random requests for each operation, beside those that try every bound and every wrong type once."""
REPLACED = "positive_data_acceptance"
"""Takes no 422 from a request that fits the description; `conformance_checks` tells which fields may have one."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("phases", ["examples,coverage", "fuzzing"])
def test_the_agent_does_what_its_description_says(serve: Serve, running: Running, tmp_path: Path, phases: str) -> None:
    server = serve(port=0, token=READER, ask_token=ASKER, operator_token=OPERATOR)
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run",
         f"http://127.0.0.1:{server.port}/api/v1/openapi.json", "--header", f"Authorization: Bearer {OPERATOR}",
         "--phases", phases, "--checks", "all", "--exclude-checks", REPLACED,
         "--exclude-method", "HEAD", "--seed", SEED, "--max-examples", EXAMPLES,
         "--continue-on-failure", "--generation-database", "none", "--no-color"],
        cwd=tmp_path, env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.agent.api.conformance_checks",
                           "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused_for_its_meaning_alone" not in done.stderr
