"""How two processes of one job prove to each other that they know its secret, as a pure machine: bytes in, bytes out.

It must never touch a socket, a clock or a random source. A listener says nothing to who does not know the secret.

    dialer      hello = magic "TGHS" | u16 version | u8 role | 32 bytes nonce | HMAC-SHA256(dialer, own nonce)
    acceptor    hello, likewise
    dialer      u16 length | introduction | HMAC-SHA256(dialer, both nonces, own introduction)
    acceptor    u16 length | introduction | HMAC-SHA256(acceptor, both nonces, both introductions)

The dialer speaks first, and the acceptor answers only to a hello that was made with the secret. Somebody who recorded
one and plays it again sees another nonce, and has no proof for it; the acceptor's proof covers the whole exchange. The
role inside every proof makes an echoed proof worthless.
"""

import enum
import hmac
import struct
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.model.errors import ProtocolViolation

VERSION = 2
NONCE_BYTES = 32
# A stranger can make us hold this much and no more.
MAX_INTRODUCTION_BYTES = 4 << 10
# Shorter secrets could be found by trying.
MIN_SECRET_BYTES = 16

_MAGIC = b"TGHS"
_PROOF_BYTES = 32
_HELLO = struct.Struct(f"<4sHB{NONCE_BYTES}s{_PROOF_BYTES}s")
_PREFIX_BYTES = struct.calcsize("<4sH")
_LENGTH = struct.Struct("<H")
_LABEL = b"tidegate handshake 2"


class Role(enum.IntEnum):
    DIALER = 1
    ACCEPTOR = 2


class RefusalReason(enum.Enum):
    NOT_TIDEGATE = "it does not speak this protocol"
    OTHER_VERSION = "it speaks another version of the handshake: run the same Tidegate version everywhere"
    REFLECTED = "it sent our own words back, or plays the same role"
    OVERSIZED = f"its introduction is longer than {MAX_INTRODUCTION_BYTES} bytes"
    WRONG_PROOF = "it does not know the secret of this job"


@dataclass(frozen=True, slots=True)
class NeedMore:
    send: bytes


@dataclass(frozen=True, slots=True)
class Established:
    send: bytes
    """Still to be sent; the peer is not convinced before it has it."""
    peer_introduction: bytes
    leftover: bytes
    """Came after the handshake and belongs to what the connection is for."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: RefusalReason


Step: TypeAlias = NeedMore | Established | Refused


class _Phase(enum.Enum):
    AWAITING_HELLO = enum.auto()
    AWAITING_PROOF = enum.auto()
    OVER = enum.auto()


class Handshake:
    """One side of one connection. `nonce` must be fresh random bytes, never used before."""

    def __init__(self, role: Role, secret: bytes, introduction: bytes, nonce: bytes) -> None:
        _check_arguments(secret=secret, introduction=introduction, nonce=nonce)
        self._role = role
        self._secret = secret
        self._introduction = introduction
        self._nonce = nonce
        self._peer_nonce = b""
        self._received = bytearray()
        self._phase = _Phase.AWAITING_HELLO

    def start(self) -> bytes:
        """What to send before anything has come: the acceptor is silent until it knows whom it speaks to."""
        match self._role:
            case Role.DIALER:
                return self._hello()
            case Role.ACCEPTOR:
                return b""

    @property
    def wanted_bytes(self) -> int:
        """How many bytes are surely still part of the handshake; who reads no more leaves the rest in the socket."""
        return max(0, self._message_bytes() - len(self._received))

    def feed(self, data: bytes) -> Step:
        if self._phase is _Phase.OVER:
            raise ProtocolViolation("A handshake that is over was given more bytes: this is a bug in Tidegate.")
        self._received += data
        send = b""
        if self._phase is _Phase.AWAITING_HELLO:
            match self._on_hello():
                case NeedMore(send=send):
                    pass
                case other:
                    return other
        return self._on_proof(send) if self._phase is _Phase.AWAITING_PROOF else NeedMore(send)

    def _message_bytes(self) -> int:
        match self._phase:
            case _Phase.AWAITING_HELLO:
                return _PREFIX_BYTES if len(self._received) < _PREFIX_BYTES else _HELLO.size
            case _Phase.AWAITING_PROOF:
                if len(self._received) < _LENGTH.size:
                    return _LENGTH.size
                return _LENGTH.size + self._introduction_bytes() + _PROOF_BYTES
            case _Phase.OVER:
                return 0

    def _on_hello(self) -> NeedMore | Refused:
        # Looked at byte by byte: who sends something else is refused before it sent a whole hello.
        if not _MAGIC.startswith(self._received[: len(_MAGIC)]):
            return self._refuse(RefusalReason.NOT_TIDEGATE)
        if len(self._received) >= _PREFIX_BYTES:
            (version,) = struct.unpack_from("<H", self._received, len(_MAGIC))
            if version != VERSION:
                return self._refuse(RefusalReason.OTHER_VERSION)
        if len(self._received) < _HELLO.size:
            return NeedMore(b"")
        _, _, role, nonce, proof = _HELLO.unpack_from(self._received)
        del self._received[: _HELLO.size]
        if role == self._role or hmac.compare_digest(nonce, self._nonce):
            return self._refuse(RefusalReason.REFLECTED)
        if role not in tuple(Role):
            return self._refuse(RefusalReason.NOT_TIDEGATE)
        if not hmac.compare_digest(proof, self._prove_nonce(Role(role), nonce)):
            return self._refuse(RefusalReason.WRONG_PROOF)
        self._peer_nonce = nonce
        self._phase = _Phase.AWAITING_PROOF
        match self._role:
            case Role.DIALER:
                return NeedMore(self._introduce(self._prove(Role.DIALER, dialer=self._introduction, acceptor=b"")))
            case Role.ACCEPTOR:
                return NeedMore(self._hello())

    def _on_proof(self, send: bytes) -> Step:
        if len(self._received) < _LENGTH.size:
            return NeedMore(send)
        if self._introduction_bytes() > MAX_INTRODUCTION_BYTES:
            return self._refuse(RefusalReason.OVERSIZED)
        size = self._message_bytes()
        if len(self._received) < size:
            return NeedMore(send)
        peer_introduction = bytes(self._received[_LENGTH.size : size - _PROOF_BYTES])
        proof = bytes(self._received[size - _PROOF_BYTES : size])
        if not hmac.compare_digest(proof, self._expected_proof(peer_introduction)):
            return self._refuse(RefusalReason.WRONG_PROOF)
        leftover = bytes(self._received[size:])
        self._phase = _Phase.OVER
        return Established(self._last_words(send, peer_introduction), peer_introduction, leftover)

    def _expected_proof(self, peer_introduction: bytes) -> bytes:
        match self._role:
            case Role.DIALER:
                return self._prove(Role.ACCEPTOR, dialer=self._introduction, acceptor=peer_introduction)
            case Role.ACCEPTOR:
                return self._prove(Role.DIALER, dialer=peer_introduction, acceptor=b"")

    def _last_words(self, send: bytes, peer_introduction: bytes) -> bytes:
        match self._role:
            case Role.DIALER:
                return send
            case Role.ACCEPTOR:
                proof = self._prove(Role.ACCEPTOR, dialer=peer_introduction, acceptor=self._introduction)
                return send + self._introduce(proof)

    def _introduction_bytes(self) -> int:
        length: int = _LENGTH.unpack_from(self._received)[0]
        return length

    def _introduce(self, proof: bytes) -> bytes:
        return _LENGTH.pack(len(self._introduction)) + self._introduction + proof

    def _hello(self) -> bytes:
        return _HELLO.pack(_MAGIC, VERSION, self._role, self._nonce, self._prove_nonce(self._role, self._nonce))

    def _prove_nonce(self, prover: Role, nonce: bytes) -> bytes:
        return hmac.digest(self._secret, _LABEL + b" hello" + bytes([prover]) + nonce, "sha256")

    def _prove(self, prover: Role, *, dialer: bytes, acceptor: bytes) -> bytes:
        nonces = self._nonce + self._peer_nonce if self._role is Role.DIALER else self._peer_nonce + self._nonce
        # Lengths go in too, so that no other split of the same bytes has the same proof.
        said = _LENGTH.pack(len(dialer)) + dialer + _LENGTH.pack(len(acceptor)) + acceptor
        return hmac.digest(self._secret, _LABEL + bytes([prover]) + nonces + said, "sha256")

    def _refuse(self, reason: RefusalReason) -> Refused:
        self._phase = _Phase.OVER
        return Refused(reason)


def _check_arguments(*, secret: bytes, introduction: bytes, nonce: bytes) -> None:
    if len(secret) < MIN_SECRET_BYTES:
        raise ProtocolViolation(f"The secret of a job has {len(secret)} bytes: give it at least {MIN_SECRET_BYTES}.")
    if len(introduction) > MAX_INTRODUCTION_BYTES:
        raise ProtocolViolation(
            f"An introduction of {len(introduction)} bytes is too long: say who you are in {MAX_INTRODUCTION_BYTES}."
        )
    if len(nonce) != NONCE_BYTES:
        raise ProtocolViolation(f"A nonce has {len(nonce)} bytes: give it {NONCE_BYTES} fresh random ones.")
