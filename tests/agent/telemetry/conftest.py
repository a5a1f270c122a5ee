"""The agents of the HTTP tests, with their metrics."""

from tests.agent.api.conftest import one_loader, running, serve, shared, socket_directory, stage

__all__ = ["one_loader", "running", "serve", "shared", "socket_directory", "stage"]
