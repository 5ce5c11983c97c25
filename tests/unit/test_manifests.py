"""A manifest is readable, comes back as it was, and is trusted only when nothing in it changed."""

import json

import pytest
from msgspec import structs

from tidegate.model.errors import Damaged
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, Sequence, SlotIndex, TaskId, VertexId
from tidegate.storage.manifests import (
    ChannelRange,
    Manifest,
    SharedFile,
    SlotFile,
    TaskCommittables,
    decode_manifest,
    encode_manifest,
    seal,
)

NAME = "checkpoints/7-g2/manifest.json"
MANIFEST = Manifest(
    checkpoint=CheckpointId(7),
    generation=Generation(2),
    kind="switched",
    is_savepoint=False,
    triggered_at_ms=1_700_000_000_000,
    duration_ms=12.5,
    plan_fingerprint=["source rate", "aggregate count"],
    parallelism=2,
    max_parallelism=128,
    vertex_parallelism=[2, 1],
    slots=[
        SlotFile(
            SlotIndex(0),
            "checkpoints/7-g2/0.state",
            1000,
            0xDEADBEEF,
            [SharedFile("shared/6-g2-s0.channels", 300, 0xFEEDF00D)],
        )
    ],
    channels=[
        ChannelRange(ChannelId(EdgeId(0), 0, 1), first=Sequence(4), row=17, h=Sequence(6), n=Sequence(9)),
    ],
    committables=[TaskCommittables(TaskId(VertexId(1), 0), [b"\x00\xff", b""])],
    tasks={"v1.0": {"alignment_ms": 3.5}},
)


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), name=NAME) == MANIFEST


def test_a_manifest_can_be_read_by_people_and_other_programs() -> None:
    text = encode_manifest(MANIFEST).decode()
    content = json.loads(text)["content"]
    assert content["checkpoint"] == 7
    assert content["slots"][0]["path"] == "checkpoints/7-g2/0.state"
    assert content["committables"][0]["committables"] == ["AP8=", ""]
    assert len(text.splitlines()) > 20


def test_a_channel_between_every_pair_of_slots_takes_one_short_line() -> None:
    slots = 128
    channels = [
        ChannelRange(
            ChannelId(EdgeId(3), sender, receiver),
            first=Sequence(40_000),
            row=99,
            h=Sequence(40_007),
            n=Sequence(40_012),
        )
        for sender in range(slots)
        for receiver in range(slots)
    ]

    text = encode_manifest(structs.replace(MANIFEST, channels=channels))

    lines = [line for line in text.splitlines() if line.startswith(b'  {"channel"')]
    assert len(lines) == slots**2
    assert len(text) < 80 * slots**2
    assert decode_manifest(text, name=NAME).channels == channels


def test_any_truncation_is_found() -> None:
    data = encode_manifest(MANIFEST)
    for length in range(len(data) - 1):  # The last byte is a line end, which carries nothing.
        with pytest.raises(Damaged, match=NAME):
            decode_manifest(data[:length], name=NAME)


def test_a_changed_value_is_found() -> None:
    data = encode_manifest(MANIFEST).replace(b'"parallelism": 2', b'"parallelism": 3')
    with pytest.raises(Damaged, match=r"manifest\.json cannot be used: its checksum is wrong; restore it"):
        decode_manifest(data, name=NAME)


def test_another_version_is_named_whatever_else_it_contains() -> None:
    with pytest.raises(Damaged, match="format version 1 and this Tidegate reads version 2"):
        decode_manifest(b'{"version": 1, "something": "else"}', name=NAME)


def test_a_sound_envelope_with_other_content_is_refused() -> None:
    with pytest.raises(Damaged, match="its content does not fit"):
        decode_manifest(seal(b'{"checkpoint": 1}'), name=NAME)
