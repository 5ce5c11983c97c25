"""Two sides that know the secret find each other; everybody else learns nothing."""

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
HELLO_BYTES = 71
PROOF_BYTES = 32


def dialer(secret: bytes = SECRET, introduction: bytes = b"slot 2", nonce: bytes = b"d" * NONCE_BYTES) -> Handshake:
    return Handshake(Role.DIALER, secret, introduction, nonce)


def acceptor(secret: bytes = SECRET, introduction: bytes = b"slot 0", nonce: bytes = b"a" * NONCE_BYTES) -> Handshake:
    return Handshake(Role.ACCEPTOR, secret, introduction, nonce)


def proof_of(one: Handshake, hello: bytes) -> bytes:
    step = one.feed(hello)
    assert isinstance(step, NeedMore)
    return step.send


def opened(one: Handshake, other: Handshake) -> bytes:
    """The dialer's proof, after both have said hello."""
    step = other.feed(one.start())
    assert isinstance(step, NeedMore)
    return proof_of(one, step.send)


def hello_of(nonce: bytes = b"a" * NONCE_BYTES) -> bytes:
    """What an acceptor with that nonce answers to a dialer's hello."""
    step = acceptor(nonce=nonce).feed(dialer().start())
    assert isinstance(step, NeedMore)
    return step.send


def test_both_sides_learn_who_the_other_is():
    one, other = dialer(), acceptor()
    answer = other.feed(opened(one, other))
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
    answer = other.feed(opened(one, other) + b"first frame")
    assert isinstance(answer, Established)
    assert answer.leftover == b"first frame"
    assert one.feed(answer.send + b"and back") == Established(b"", b"slot 0", b"and back")


def test_reading_only_the_wanted_bytes_never_reads_beyond_the_handshake():
    one, other = dialer(), acceptor()
    stream = io.BytesIO(one.start() + proof_of(one, hello_of()) + b"first frame")
    step = other.feed(stream.read(other.wanted_bytes))
    while isinstance(step, NeedMore):
        assert other.wanted_bytes > 0
        step = other.feed(stream.read(other.wanted_bytes))
    assert isinstance(step, Established)
    assert step.leftover == b""
    assert other.wanted_bytes == 0
    assert stream.read() == b"first frame"


def test_the_acceptor_says_nothing_before_it_has_a_hello_of_somebody_who_knows_the_secret():
    other = acceptor(introduction=b"job 17, slot 0")
    assert other.start() == b""
    assert other.feed(dialer(secret=b"x" * 32).start()) == Refused(RefusalReason.WRONG_PROOF)


def test_a_hello_that_was_recorded_is_answered_by_another_nonce_and_leads_nowhere():
    recorded = dialer().start()
    other = acceptor(nonce=b"b" * NONCE_BYTES, introduction=b"job 17, slot 0")
    answer = other.feed(recorded)
    assert isinstance(answer, NeedMore) and len(answer.send) == HELLO_BYTES and b"job 17" not in answer.send
    assert other.feed(proof_of(dialer(), hello_of())) == Refused(RefusalReason.WRONG_PROOF)


def test_a_hello_with_a_changed_nonce_is_refused():
    hello = bytearray(dialer().start())
    hello[7] ^= 1
    assert acceptor().feed(bytes(hello)) == Refused(RefusalReason.WRONG_PROOF)


def test_the_dialer_refuses_an_acceptor_with_a_wrong_secret():
    impostor = acceptor(secret=b"x" * 32)
    assert impostor.feed(dialer(secret=b"x" * 32).start()) != NeedMore(b"")
    assert dialer().feed(impostor._hello()) == Refused(RefusalReason.WRONG_PROOF)


def test_the_dialer_refuses_an_acceptor_that_cannot_prove_what_it_says():
    one = dialer()
    proof_of(one, hello_of())
    forged = (6).to_bytes(2, "little") + b"slot 0" + b"\0" * PROOF_BYTES
    assert one.feed(forged) == Refused(RefusalReason.WRONG_PROOF)


def test_a_stranger_that_echoes_the_acceptor_is_refused():
    assert acceptor().feed(hello_of()) == Refused(RefusalReason.REFLECTED)


def test_a_stranger_that_echoes_the_acceptors_nonce_under_the_other_role_is_refused():
    other = acceptor()
    echoed = dialer(nonce=b"a" * NONCE_BYTES).start()
    assert other.feed(echoed) == Refused(RefusalReason.REFLECTED)


def test_a_hello_that_an_acceptor_once_said_opens_no_other_door():
    recorded = bytearray(hello_of(nonce=b"b" * NONCE_BYTES))
    recorded[6] = Role.DIALER
    assert acceptor().feed(bytes(recorded)) == Refused(RefusalReason.WRONG_PROOF)


def test_a_stranger_that_echoes_the_dialers_challenge_and_proof_is_refused():
    one = dialer()
    assert one.feed(one.start()) == Refused(RefusalReason.REFLECTED)
    one = dialer()
    proof = proof_of(one, hello_of())
    assert one.feed(proof) == Refused(RefusalReason.WRONG_PROOF)


def test_an_echoed_proof_is_worthless_even_when_there_is_nothing_to_introduce():
    one = dialer(introduction=b"")
    proof = proof_of(one, hello_of())
    assert one.feed(proof) == Refused(RefusalReason.WRONG_PROOF)


@pytest.mark.parametrize("role", list(Role))
def test_two_sides_of_the_same_role_refuse_each_other(role: Role):
    one = Handshake(role, SECRET, b"slot 1", b"1" * NONCE_BYTES)
    other = Handshake(role, SECRET, b"slot 2", b"2" * NONCE_BYTES)
    assert one.feed(other._hello()) == Refused(RefusalReason.REFLECTED)


def test_a_proof_from_another_connection_of_the_same_job_is_worthless():
    one, other = dialer(), acceptor()
    recorded = one.start() + opened(one, other)
    fresh = acceptor(nonce=b"b" * NONCE_BYTES)
    assert fresh.feed(recorded) == Refused(RefusalReason.WRONG_PROOF)


@pytest.mark.parametrize("swapped", [b"slot 1", b"slot 2 "])
def test_a_changed_introduction_of_the_dialer_is_refused(swapped: bytes):
    one, other = dialer(), acceptor()
    proof = opened(one, other)[-PROOF_BYTES:]
    changed = len(swapped).to_bytes(2, "little") + swapped + proof
    assert other.feed(changed) == Refused(RefusalReason.WRONG_PROOF)


def test_a_changed_introduction_of_the_acceptor_is_refused():
    one, other = dialer(), acceptor()
    answer = other.feed(opened(one, other))
    assert isinstance(answer, Established)
    assert one.feed(answer.send.replace(b"slot 0", b"slot 1")) == Refused(RefusalReason.WRONG_PROOF)


def test_the_acceptors_proof_covers_what_the_dialer_said():
    lied_to, other = dialer(introduction=b"slot 3"), acceptor()
    honest = dialer(introduction=b"slot 2")
    answer = other.feed(opened(honest, other))
    assert isinstance(answer, Established)
    proof_of(lied_to, hello_of())
    assert lied_to.feed(answer.send) == Refused(RefusalReason.WRONG_PROOF)


def test_no_other_split_of_the_same_words_has_the_same_proof():
    other = acceptor(introduction=b"0")
    answer = other.feed(opened(dialer(introduction=b"slot 12"), other))
    assert isinstance(answer, Established)
    lied_to = dialer(introduction=b"slot 1")
    proof_of(lied_to, hello_of())
    shifted = (2).to_bytes(2, "little") + b"20" + answer.send[-PROOF_BYTES:]
    assert lied_to.feed(shifted) == Refused(RefusalReason.WRONG_PROOF)


@pytest.mark.parametrize("cut", [1, 5, HELLO_BYTES - 1, HELLO_BYTES, HELLO_BYTES + 1, -1])
def test_a_truncated_exchange_never_establishes(cut: int):
    one, other = dialer(), acceptor()
    whole = one.start() + proof_of(one, hello_of())
    step = other.feed(whole[:cut])
    assert isinstance(step, NeedMore) and len(step.send) in (0, HELLO_BYTES)
    assert other.wanted_bytes > 0


def test_an_oversized_introduction_is_refused_by_its_length_alone():
    other = acceptor()
    announced = (MAX_INTRODUCTION_BYTES + 1).to_bytes(2, "little")
    assert other.feed(dialer().start() + announced) == Refused(RefusalReason.OVERSIZED)


def test_the_longest_introduction_passes():
    longest = b"i" * MAX_INTRODUCTION_BYTES
    one, other = dialer(introduction=longest), acceptor()
    step = other.feed(opened(one, other))
    assert isinstance(step, Established)
    assert step.peer_introduction == longest


def test_another_version_is_refused_before_its_hello_is_complete():
    hello = bytearray(dialer().start()[:6])
    hello[4] = 1
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
