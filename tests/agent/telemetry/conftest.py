"""The agents of the HTTP tests, with their metrics."""

from tests.agent.api.conftest import running, serve, socket_directory, stage, standing

__all__ = ["running", "serve", "socket_directory", "stage", "standing"]
