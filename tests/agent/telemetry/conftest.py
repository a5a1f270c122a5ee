"""The agents of the HTTP tests, with their metrics."""

from tests.agent.api.conftest import running, serve, shared, socket_directory, stage

__all__ = ["running", "serve", "shared", "socket_directory", "stage"]
