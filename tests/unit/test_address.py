"""A slot is found by unix socket on its own host and by TCP from anywhere else."""

import socket
import sys

import msgspec
import pytest

from tidegate.model.errors import EnvironmentProblem, OptionError
from tidegate.network.address import Listener, SlotAddress, connect, host_id, parse_ports, routes

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="abstract unix sockets exist on Linux only")


@pytest.fixture
def listener():
    listener = Listener(bind_host="127.0.0.1")
    yield listener
    listener.close()


@on_linux
def test_a_slot_on_the_same_host_is_reached_by_unix_socket(listener: Listener):
    with connect(listener.addresses, host_id()) as sock:
        assert sock.family == socket.AF_UNIX
        assert not sock.getblocking()


def test_a_slot_on_another_host_is_reached_by_tcp(listener: Listener):
    with connect(listener.addresses, "another host") as sock:
        assert sock.family == socket.AF_INET
        assert not sock.getblocking()


@on_linux
def test_a_unix_socket_that_is_not_there_falls_back_to_tcp(listener: Listener):
    stale = msgspec.structs.replace(listener.addresses, unix_name="tidegate-nobody")
    with connect(stale, host_id()) as sock:
        assert sock.family == socket.AF_INET


def test_a_slot_that_is_gone_cannot_be_reached_and_every_way_tried_is_named(listener: Listener):
    listener.close()
    with pytest.raises(OSError, match=r"no way leads there.*127\.0\.0\.1:\d+"):
        connect(listener.addresses, host_id(), timeout_ms=500)


def test_an_address_survives_the_wire(listener: Listener):
    encoded = msgspec.msgpack.encode(listener.addresses)
    assert msgspec.msgpack.decode(encoded, type=SlotAddress) == listener.addresses


@on_linux
def test_unix_names_cannot_be_guessed_and_leave_nothing_on_disk(listener: Listener):
    other = Listener(bind_host="127.0.0.1")
    assert other.addresses.unix_name != listener.addresses.unix_name
    unix = [route for route in routes(other.addresses, own_host_id=host_id()) if route.family == socket.AF_UNIX]
    assert str(unix[0].target).startswith("\0")
    other.close()


@on_linux
def test_processes_in_one_network_namespace_have_one_host_id():
    assert host_id() == host_id()
    assert "net:[" in host_id()


def test_the_first_free_port_of_a_range_is_taken_and_a_full_range_is_named():
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=r"network\.ports"):
            Listener(bind_host="127.0.0.1", ports=str(port))
        spare = socket.create_server(("127.0.0.1", 0))
        free = spare.getsockname()[1]
        spare.close()
        listener = Listener(bind_host="127.0.0.1", ports=f"{port},{free}")
        assert listener.addresses.tcp_port == free
        listener.close()


def test_the_advertised_host_is_what_others_are_told():
    listener = Listener(bind_host="0.0.0.0", advertised_host="worker-3.example")
    assert listener.addresses.tcp_host == "worker-3.example"
    listener.close()


def test_a_wildcard_without_an_advertised_host_is_refused():
    with pytest.raises(OptionError, match=r"network\.advertisedHost"):
        Listener(bind_host="0.0.0.0")


def test_an_address_that_is_not_of_this_host_is_refused():
    with pytest.raises(EnvironmentProblem, match=r"network\.bindHost"):
        Listener(bind_host="192.0.2.1")


@pytest.mark.parametrize(
    ("text", "ports"),
    [("0", [0]), ("any", [0]), ("4000", [4000]), ("4000-4002", [4000, 4001, 4002]), ("1, 5-6", [1, 5, 6])],
)
def test_ports_are_written_as_numbers_lists_and_ranges(text: str, ports: list[int]):
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "x", "5-4", "70000", "1,,2", "1-", "-1", "0-3"])
def test_what_names_no_ports_is_refused(text: str):
    with pytest.raises(OptionError, match=r"network\.ports"):
        parse_ports(text)
