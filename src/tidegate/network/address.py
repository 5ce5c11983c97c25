"""Where a slot can be reached, and how to get there: TCP, or a unix socket for those on the same host.

Owns listening sockets and the choice of the way. It must never trust who connects: that is the handshake's part.
"""

import errno
import os
import platform
import secrets
import socket
import sys
from dataclasses import dataclass

import msgspec

from tidegate.model.errors import EnvironmentProblem, OptionError

# Every other slot may connect twice at the same moment, and strangers too; the kernel lowers it to its own limit.
BACKLOG = 4096
_LARGEST_PORT = 65535
_WILDCARDS = ("", "0.0.0.0", "::")


class SlotAddress(msgspec.Struct, frozen=True, kw_only=True):
    host_id: str
    tcp_host: str
    tcp_port: int
    unix_name: str | None
    """Name of an abstract unix socket, without its leading zero byte."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way to an address."""

    family: socket.AddressFamily
    target: object

    def __str__(self) -> str:
        match self.target:
            case (host, port, *_):
                return f"{host}:{port}"
            case _:
                return "its unix socket"


class Listener:
    """The listening sockets of one slot, for its whole life: they outlast a generation, and so does their backlog."""

    def __init__(self, *, bind_host: str, advertised_host: str | None = None, ports: str = "0") -> None:
        if advertised_host is None and bind_host in _WILDCARDS:
            raise OptionError(
                f"Option 'network.bindHost' is {bind_host!r}, which others cannot connect to: "
                "set 'network.advertisedHost' to the name or address of this host."
            )
        self._tcp = _listen_tcp(bind_host, parse_ports(ports))
        # Abstract names exist on Linux only; they leave nothing on disk, and the random part cannot be guessed.
        unix_name = f"tidegate-{secrets.token_hex(16)}" if sys.platform == "linux" else None
        self._unix = None if unix_name is None else _listen_unix(unix_name)
        host, port = self._tcp.getsockname()[:2]
        self._addresses = SlotAddress(
            host_id=host_id(), tcp_host=advertised_host or host, tcp_port=port, unix_name=unix_name
        )

    @property
    def addresses(self) -> SlotAddress:
        return self._addresses

    @property
    def sockets(self) -> list[socket.socket]:
        return [self._tcp] if self._unix is None else [self._tcp, self._unix]

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def host_id() -> str:
    """Equal only for processes that reach each other's abstract unix sockets: same kernel, same network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        # Equal to no other host's, so that TCP is used, which is always right.
        return f"{platform.node()}/{secrets.token_hex(16)}"


def routes(address: SlotAddress, *, own_host_id: str) -> list[Route]:
    """Every way to that address, best first. Raises OSError if the host's name is not known."""
    ways = []
    if address.unix_name is not None and address.host_id == own_host_id:
        ways.append(Route(socket.AF_UNIX, "\0" + address.unix_name))
    found = socket.getaddrinfo(address.tcp_host, address.tcp_port, type=socket.SOCK_STREAM)
    return ways + [Route(family, target) for family, _, _, _, target in found]


def begin_connect(route: Route) -> socket.socket:
    """A non-blocking socket on its way: writable when it is there, or has failed."""
    sock = socket.socket(route.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(route.target)  # type: ignore[arg-type]
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except OSError:
        sock.close()
        raise
    return sock


def connect(address: SlotAddress, own_host_id: str, *, timeout_ms: float = 5000) -> socket.socket:
    """A connected, non-blocking socket; the ways are tried in order, each for at most `timeout_ms`."""
    failures = []
    for route in routes(address, own_host_id=own_host_id):
        sock = socket.socket(route.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_ms / 1000)
            sock.connect(route.target)  # type: ignore[arg-type]
            sock.setblocking(False)
            return sock
        except OSError as error:
            sock.close()
            failures.append(f"{route}: {error}")
    raise OSError(errno.EHOSTUNREACH, f"no way leads there ({'; '.join(failures)})")


def parse_ports(text: str) -> list[int]:
    """`0` or `any` (the kernel chooses), `4000-4010`, `4000,4002`, or both mixed."""
    if text.strip() in ("0", "any"):
        return [0]
    ports: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _not_ports(text)
        low, high = int(first), int(last if dash else first)
        if not 1 <= low <= high <= _LARGEST_PORT:
            raise _not_ports(text)
        ports.extend(range(low, high + 1))
    return ports


def _not_ports(text: str) -> OptionError:
    return OptionError(
        f"Option 'network.ports' is {text!r}, which names no ports: write for example 4000-4010, 4000,4002 or any."
    )


def _listen_tcp(bind_host: str, ports: list[int]) -> socket.socket:
    try:
        family, _, _, _, target = socket.getaddrinfo(
            bind_host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise OptionError(
            f"Option 'network.bindHost' is {bind_host!r}, which this host cannot resolve ({error}): "
            "give a name or address of this host."
        ) from error
    for port in ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((target[0], port, *target[2:]))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise EnvironmentProblem(
                f"Cannot listen on {bind_host!r} ({error.strerror}): set 'network.bindHost' to an address of this host."
            ) from error
        sock.setblocking(False)
        return sock
    raise EnvironmentProblem(
        f"None of the {len(ports)} ports of 'network.ports' is free on {bind_host!r}: allow more ports."
    )


def _listen_unix(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind("\0" + name)
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock
