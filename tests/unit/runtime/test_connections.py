"""Connections that end where the other machine is gone: which are watched, and how."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from outcrop.runtime.connections import WatchedConnections


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pair(opened: ExitStack) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = opened.enter_context(closing(socket.create_connection(server.getsockname())))
        other, _ = server.accept()
    return one, opened.enter_context(closing(other))


def silence(found: socket.socket) -> tuple[int, int]:
    """Seconds until a silent connection ends, idle and with bytes on the way; 0: it does not by an option."""
    asks = found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    again = [
        found.getsockopt(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    ]
    idle = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + again[0] * again[1]
    return asks * idle, found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) // 1000


def test_connections_of_the_block_are_watched_and_no_others(opened: ExitStack) -> None:
    watched, before = WatchedConnections(), pair(opened)
    with watched.opening():
        within = pair(opened)
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).connect(("127.0.0.1", 9))
        for one in socket.socketpair():
            opened.enter_context(one)
    after = pair(opened)
    assert [silence(one) for one in within] == [(45, 45)] * 2
    assert [silence(one) for one in (*before, *after, server)] == [(0, 0)] * 5
    assert sorted(watched.own_ends) == sorted(one.getsockname() for one in within)


def test_it_is_known_whom_a_connection_that_ended_was_with(opened: ExitStack) -> None:
    watched = WatchedConnections()
    with watched.opening():
        first, second = pair(opened), pair(opened)
    with watched.opening():
        third = pair(opened)
    assert watched.ended() == []
    others = [second[0].getpeername(), third[1].getpeername()]
    second[0].close()
    third[1].close()
    assert sorted(watched.ended()) == sorted(others)
    assert first[0].getpeername() not in watched.ended()
