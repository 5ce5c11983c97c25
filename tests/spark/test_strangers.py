"""Whoever connects to the ports of a running query without its secret gets nothing and disturbs nothing."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.network.handshake import NONCE_BYTES, Handshake, NeedMore, Role

pytestmark = pytest.mark.spark

OTHER_SECRET = b"x" * 32


def recorded_exchange(secret: bytes) -> bytes:
    """What a true slot once said to a listener of this query: hello and proof, for a nonce that will not come again."""
    dialer = Handshake(Role.DIALER, secret, b"a slot of an older generation", b"d" * NONCE_BYTES)
    listener = Handshake(Role.ACCEPTOR, secret, b"a listener", b"a" * NONCE_BYTES)
    hello = dialer.start()
    answer = listener.feed(hello)
    assert isinstance(answer, NeedMore)
    proof = dialer.feed(answer.send)
    assert isinstance(proof, NeedMore)
    return hello + proof.send


WORDS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda secret: b"",
    "garbage": lambda secret: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(range(256)) * 64,
    "half a hello": lambda secret: recorded_exchange(secret)[:20],
    "a hello with a wrong secret": lambda secret: recorded_exchange(OTHER_SECRET),
    "a long introduction": lambda secret: recorded_exchange(OTHER_SECRET)[:71] + struct.pack("<H", 65535) + b"i" * 999,
    "a recorded exchange": recorded_exchange,
}


@pytest.fixture
def strangers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ports_of(query: tg.StreamingQuery) -> list[tuple[socket.AddressFamily, object]]:
    """The coordinator's and every slot's, by TCP and by unix socket."""
    roster = query._coordinator._roster
    found = [roster._listener.addresses, *roster.addresses().values()]
    assert len(found) == 3
    by_tcp = [(socket.AF_INET, (address.tcp_host, address.tcp_port)) for address in found]
    by_unix = [(socket.AF_UNIX, f"\0{address.unix_name}") for address in found if address.unix_name is not None]
    return [*by_tcp, *by_unix]


def intrude(query: tg.StreamingQuery, strangers: ExitStack) -> list[tuple[str, socket.socket]]:
    """One stranger of each kind at each port; all stay."""
    secret = query._coordinator._secret
    connected = []
    for family, target in ports_of(query):
        for kind, words in WORDS.items():
            stranger = strangers.enter_context(socket.socket(family, socket.SOCK_STREAM))
            stranger.settimeout(10)
            stranger.connect(target)  # type: ignore[arg-type]
            try:
                stranger.sendall(words(secret))
            except (BrokenPipeError, ConnectionResetError):
                pass  # it was shown the door already
            connected.append((kind, stranger))
    return connected


def waiting_at_the_coordinator(query: tg.StreamingQuery) -> int:
    """By TCP and by unix socket."""
    return sum(acceptor.unauthenticated for acceptor in query._coordinator._roster._acceptors)


def heard_by(stranger: socket.socket) -> bytes:
    """All that has come so far."""
    stranger.setblocking(False)
    heard = b""
    try:
        while piece := stranger.recv(4096):
            heard += piece
    except (BlockingIOError, ConnectionResetError):
        pass
    return heard


def add_file(folder: Path, first: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    draft = folder / "in" / f".{first}"
    pq.write_table(pa.table({"v": pa.array(range(first, first + 500), pa.int64())}), draft)
    draft.rename(folder / "in" / f"{first:08d}.parquet")


def rows_of(folder: Path) -> list[int]:
    return sorted(
        v for path in (folder / "out").glob("*.parquet") for v in pq.ParquetFile(path).read()["v"].to_pylist()
    )


def test_strangers_at_every_port_get_nothing_and_disturb_neither_rows_nor_checkpoints_nor_a_restart(
    spark: SparkSession, tmp_path: Path, strangers: ExitStack
) -> None:
    fail_once = tmp_path / "fail-once"

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if fail_once.exists():
                fail_once.unlink()
                raise ValueError("asked to")
            yield batch

    add_file(tmp_path, 0)
    rows = spark.readStream.schema("v long").parquet(str(tmp_path / "in")).repartition(2).mapInArrow(pass_on, "v long")
    writer = tg.writeStream(rows).option("checkpointLocation", tmp_path / "chk").option("parallelism", 2)
    query = writer.option("checkpoint.interval", "100ms").format("parquet").start(str(tmp_path / "out"))
    try:
        query.processAllAvailable()
        connected = intrude(query, strangers)
        add_file(tmp_path, 500)
        query.processAllAvailable()
        assert query._coordinator.view().generation == 1
        assert [c.failure_reason for c in query.checkpoints if c.status == "failed"] == []
        # In place: the slots meet again while strangers wait at their doors, and more come.
        connected += intrude(query, strangers)
        fail_once.touch()
        add_file(tmp_path, 1000)
        query.processAllAvailable()
        assert query._coordinator.view().generation == 2
        add_file(tmp_path, 1500)
        query.processAllAvailable()
        deadline = time.monotonic() + 10
        while (waiting := waiting_at_the_coordinator(query)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert waiting == 0, "who is silent is dropped in the end"
    finally:
        query.stop()
    assert rows_of(tmp_path) == list(range(2000))
    for kind, stranger in connected:
        heard = heard_by(stranger)
        if kind == "a recorded exchange":  # the answer to a true hello: another nonce, and no word of who answers
            assert len(heard) in (0, 71) and b"slot" not in heard
        else:
            assert heard == b"", kind
