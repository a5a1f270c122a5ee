"""Fixtures that several collectors' tests share: listeners, and an AWS of moto's."""

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.listener import GraphiteListener, ListenerLimits
from tests.collectors.surroundings import T0, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start listeners at the time T0, over a small store unless another is given; each is stopped at the end."""
    running: list[GraphiteListener] = []

    def start(
        host: str = "127.0.0.1", *, store: Any = None, networks: str = "127.0.0.0/8,::1/128", **given: Any
    ) -> GraphiteListener:
        about = {name: given.pop(name) for name in ("tcp", "udp", "port") if name in given}
        limits = ListenerLimits(networks=tuple(ip_network(one) for one in networks.split(",")), **given)
        sink = store if store is not None else SeriesStore(capacity=500)
        listener = GraphiteListener(sink, lambda: T0, host, about.pop("port", 0), limits, **about)
        running.append(listener)
        listener.start()
        return listener

    yield start
    for listener in running:
        listener.stop()


@pytest.fixture
def listener(serve: Serve) -> GraphiteListener:
    return serve()


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The address of moto's AWS."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
