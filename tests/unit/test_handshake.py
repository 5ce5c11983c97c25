"""Two sides that know the secret find each other; everybody else learns a nonce and no more."""

import io
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import ProtocolViolation
from tidegate.network.handshake import (
    MAX_INTRODUCTION_BYTES,
    NONCE_BYTES,
    Established,
    Handshake,
    NeedMore,
    RefusalReason,
    Refused,
    Role,
)

SECRET = b"s" * 32
HELLO_BYTES = 39
PROOF_BYTES = 32


def dialer(secret: bytes = SECRET, introduction: bytes = b"slot 2", nonce: bytes = b"d" * NONCE_BYTES) -> Handshake:
    return Handshake(Role.DIALER, secret, introduction, nonce)


def acceptor(secret: bytes = SECRET, introduction: bytes = b"slot 0", nonce: bytes = b"a" * NONCE_BYTES) -> Handshake:
    return Handshake(Role.ACCEPTOR, secret, introduction, nonce)


def proof_of(one: Handshake, hello: bytes) -> bytes:
    step = one.feed(hello)
    assert isinstance(step, NeedMore)
    return step.send


def test_both_sides_learn_who_the_other_is():
    one, other = dialer(), acceptor()
    proof = proof_of(one, other.start())
    answer = other.feed(one.start() + proof)
    assert isinstance(answer, Established)
    assert answer.peer_introduction == b"slot 2"
    assert one.feed(answer.send) == Established(b"", b"slot 0", b"")


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), max_size=20), st.binary(max_size=100), st.binary(max_size=100))
def test_any_chunking_gives_the_same_result(sizes: list[int], ours: bytes, theirs: bytes):
    one, other = dialer(introduction=ours), acceptor(introduction=theirs)
    to_acceptor, to_dialer = one.start(), other.start()
    results: dict[Role, Established] = {}
    for size in itertools.cycle([*sizes, 7]):
        chunk, to_acceptor = to_acceptor[:size], to_acceptor[size:]
        if chunk:
            step = other.feed(chunk)
            assert not isinstance(step, Refused)
            to_dialer += step.send
            if isinstance(step, Established):
                results[Role.ACCEPTOR] = step
        chunk, to_dialer = to_dialer[:size], to_dialer[size:]
        if chunk:
            step = one.feed(chunk)
            assert not isinstance(step, Refused)
            to_acceptor += step.send
            if isinstance(step, Established):
                results[Role.DIALER] = step
        if not to_acceptor and not to_dialer:
            break
    assert results[Role.ACCEPTOR].peer_introduction == ours
    assert results[Role.DIALER].peer_introduction == theirs


def test_bytes_after_the_handshake_are_handed_on():
    one, other = dialer(), acceptor()
    proof = proof_of(one, other.start())
    answer = other.feed(one.start() + proof + b"first frame")
    assert isinstance(answer, Established)
    assert answer.leftover == b"first frame"
    assert one.feed(answer.send + b"and back") == Established(b"", b"slot 0", b"and back")


def test_reading_only_the_wanted_bytes_never_reads_beyond_the_handshake():
    one, other = dialer(), acceptor()
    stream = io.BytesIO(one.start() + proof_of(one, other.start()) + b"first frame")
    step = other.feed(stream.read(other.wanted_bytes))
    while isinstance(step, NeedMore):
        assert other.wanted_bytes > 0
        step = other.feed(stream.read(other.wanted_bytes))
    assert isinstance(step, Established)
    assert step.leftover == b""
    assert other.wanted_bytes == 0
    assert stream.read() == b"first frame"


def test_a_stranger_is_shown_the_nonce_and_nothing_else():
    other = acceptor(introduction=b"job 17, slot 0")
    shown = other.start()
    assert len(shown) == HELLO_BYTES
    step = other.feed(dialer(secret=b"x" * 32).start())
    assert step == NeedMore(b"")


def test_the_acceptor_refuses_a_wrong_secret_without_a_word():
    one, other = dialer(secret=b"x" * 32), acceptor()
    assert other.feed(one.start() + proof_of(one, other.start())) == Refused(RefusalReason.WRONG_PROOF)


def test_the_dialer_refuses_an_acceptor_with_a_wrong_secret():
    one, impostor = dialer(), acceptor(secret=b"x" * 32)
    proof_of(one, impostor.start())
    forged = (6).to_bytes(2, "little") + b"slot 0" + b"\0" * PROOF_BYTES
    assert one.feed(forged) == Refused(RefusalReason.WRONG_PROOF)


def test_a_stranger_that_echoes_the_acceptor_is_refused():
    other = acceptor()
    assert other.feed(other.start()) == Refused(RefusalReason.REFLECTED)


def test_a_stranger_that_echoes_the_acceptors_nonce_under_the_other_role_is_refused():
    other = acceptor()
    echoed = dialer(nonce=b"a" * NONCE_BYTES).start()
    assert other.feed(echoed) == Refused(RefusalReason.REFLECTED)


def test_a_stranger_that_echoes_the_dialers_challenge_and_proof_is_refused():
    one = dialer()
    assert one.feed(one.start()) == Refused(RefusalReason.REFLECTED)
    one = dialer()
    proof = proof_of(one, acceptor().start())
    assert one.feed(proof) == Refused(RefusalReason.WRONG_PROOF)


def test_an_echoed_proof_is_worthless_even_when_there_is_nothing_to_introduce():
    one = dialer(introduction=b"")
    proof = proof_of(one, acceptor().start())
    assert one.feed(proof) == Refused(RefusalReason.WRONG_PROOF)


@pytest.mark.parametrize("role", list(Role))
def test_two_sides_of_the_same_role_refuse_each_other(role: Role):
    one = Handshake(role, SECRET, b"slot 1", b"1" * NONCE_BYTES)
    other = Handshake(role, SECRET, b"slot 2", b"2" * NONCE_BYTES)
    assert one.feed(other.start()) == Refused(RefusalReason.REFLECTED)


def test_a_proof_from_another_connection_of_the_same_job_is_worthless():
    one, other = dialer(), acceptor()
    recorded = one.start() + proof_of(one, other.start())
    fresh = acceptor(nonce=b"b" * NONCE_BYTES)
    assert fresh.feed(recorded) == Refused(RefusalReason.WRONG_PROOF)


@pytest.mark.parametrize("swapped", [b"slot 1", b"slot 2 "])
def test_a_changed_introduction_of_the_dialer_is_refused(swapped: bytes):
    one, other = dialer(), acceptor()
    proof = proof_of(one, other.start())[-PROOF_BYTES:]
    changed = len(swapped).to_bytes(2, "little") + swapped + proof
    assert other.feed(one.start() + changed) == Refused(RefusalReason.WRONG_PROOF)


def test_a_changed_introduction_of_the_acceptor_is_refused():
    one, other = dialer(), acceptor()
    answer = other.feed(one.start() + proof_of(one, other.start()))
    assert isinstance(answer, Established)
    assert one.feed(answer.send.replace(b"slot 0", b"slot 1")) == Refused(RefusalReason.WRONG_PROOF)


def test_the_acceptors_proof_covers_what_the_dialer_said():
    lied_to, other = dialer(introduction=b"slot 3"), acceptor()
    honest = dialer(introduction=b"slot 2")
    answer = other.feed(honest.start() + proof_of(honest, other.start()))
    assert isinstance(answer, Established)
    proof_of(lied_to, acceptor().start())
    assert lied_to.feed(answer.send) == Refused(RefusalReason.WRONG_PROOF)


@pytest.mark.parametrize("cut", [1, 5, HELLO_BYTES - 1, HELLO_BYTES, HELLO_BYTES + 1, -1])
def test_a_truncated_exchange_never_establishes(cut: int):
    one, other = dialer(), acceptor()
    whole = one.start() + proof_of(one, other.start())
    assert other.feed(whole[:cut]) == NeedMore(b"")
    assert other.wanted_bytes > 0


def test_an_oversized_introduction_is_refused_by_its_length_alone():
    other = acceptor()
    announced = (MAX_INTRODUCTION_BYTES + 1).to_bytes(2, "little")
    assert other.feed(dialer().start() + announced) == Refused(RefusalReason.OVERSIZED)


def test_the_longest_introduction_passes():
    longest = b"i" * MAX_INTRODUCTION_BYTES
    one, other = dialer(introduction=longest), acceptor()
    step = other.feed(one.start() + proof_of(one, other.start()))
    assert isinstance(step, Established)
    assert step.peer_introduction == longest


def test_another_version_is_refused_before_its_hello_is_complete():
    hello = bytearray(dialer().start()[:6])
    hello[4] = 2
    assert acceptor().feed(bytes(hello)) == Refused(RefusalReason.OTHER_VERSION)


@pytest.mark.parametrize("garbage", [b"G", b"GET / HTTP/1.1\r\n\r\n", b"TGH\0", b"\x16\x03\x01"])
def test_garbage_is_refused_at_its_first_wrong_byte(garbage: bytes):
    assert acceptor().feed(garbage) == Refused(RefusalReason.NOT_TIDEGATE)


def test_an_unknown_role_is_refused():
    hello = bytearray(dialer().start())
    hello[6] = 9
    assert acceptor().feed(bytes(hello)) == Refused(RefusalReason.NOT_TIDEGATE)


def test_a_handshake_that_is_over_takes_no_more_bytes():
    other = acceptor()
    other.feed(b"garbage")
    with pytest.raises(ProtocolViolation, match="over"):
        other.feed(b"more")


@pytest.mark.parametrize(
    "arguments",
    [
        {"secret": b"short"},
        {"introduction": b"i" * (MAX_INTRODUCTION_BYTES + 1)},
        {"nonce": b"n"},
    ],
)
def test_unsafe_arguments_are_refused(arguments: dict[str, bytes]):
    with pytest.raises(ProtocolViolation):
        dialer(**arguments)
