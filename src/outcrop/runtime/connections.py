"""Connections to other machines that end where these are gone, however silently.

Where power or a link fails nothing is closed, and who waits for an answer waits for ever. So the kernel asks: after
some seconds of silence it sends a packet that the other kernel answers, also for a process that computes, or is
stopped. Where no answer comes, to that or to what was sent, the connection ends by an error. It costs nothing else.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

GONE_SECONDS = 45  # of silence, after which the other machine is gone
_ASK_SECONDS, _ASK_AGAIN_SECONDS = 15, 10
_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ASK_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_AGAIN_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, (GONE_SECONDS - _ASK_SECONDS) // _ASK_AGAIN_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_SECONDS),
)
End = tuple[str, int]


class Connection(NamedTuple):
    """Names the two ends of a connection, each by address and port."""

    own: End
    other: End


class WatchedConnections:
    """Holds the connections of TCP that libraries of this process have opened within :meth:`opening`."""

    def __init__(self) -> None:
        self._by_inode: dict[int, Connection] = {}

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Has the connections that are opened in the block end where the other machine is gone."""
        before = _sockets()
        yield
        for inode, handle in _sockets().items():
            if inode not in before and (found := _watch(handle)) is not None:
                self._by_inode[inode] = found

    @property
    def own_ends(self) -> list[End]:
        return [connection.own for connection in self._by_inode.values()]

    def ended(self) -> list[End]:
        """Lists the other ends of those that this process has closed since: by an error, or where it leaves."""
        there = _sockets()
        return [connection.other for inode, connection in self._by_inode.items() if inode not in there]


def watch_port(port: int) -> None:
    """Has the connections of this process to ``port`` of whatever machine end where that is gone."""
    for handle in _sockets().values():
        try:
            with socket.socket(fileno=os.dup(handle)) as found:
                leads_there = (
                    found.family in (socket.AF_INET, socket.AF_INET6) and found.getpeername()[1] == port
                )
        except OSError:  # it listens, or is closed by now
            continue
        if leads_there:
            _watch(handle)


def _sockets() -> dict[int, int]:
    """Maps the inodes of this process's sockets to their handles."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # of the folder itself, or closed by now
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino] = int(name)
    return found


def _watch(handle: int) -> Connection | None:
    """Sets the options of a connection of TCP; None where the socket is something else."""
    try:
        with socket.socket(fileno=os.dup(handle)) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                return None
            ends = Connection(found.getsockname()[:2], found.getpeername()[:2])
            for option in _OPTIONS:
                found.setsockopt(*option)
    except OSError:  # it listens, or is closed by now
        return None
    return ends
