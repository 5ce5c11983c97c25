"""A state file gives back every section as it was added, and any changed byte is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import Damaged, ProtocolViolation
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.storage import state_file
from tidegate.storage.state_file import FileSum, SectionKey, StateFile, StateFileWriter, check_sum, sum_of


def key(
    name: str = "counts", *, vertex: int = 1, subtask: int = 0, operator: int = 0, kind: str = "state"
) -> SectionKey:
    return SectionKey(TaskId(VertexId(vertex), subtask), operator, kind, name, KeyGroupRange(0, 64))  # type: ignore[arg-type]


def written(sections: dict[SectionKey, bytes]) -> bytes:
    writer = StateFileWriter()
    for section_key, data in sections.items():
        writer.add(section_key, data)
    return b"".join(writer.finish())


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_sections_come_back_whole_and_in_order(contents: list[bytes]) -> None:
    sections = {key(str(i)): content for i, content in enumerate(contents)}
    file = StateFile.open(written(sections), name="0.state")
    assert {section.key: bytes(section.data) for section in file.sections()} == sections
    assert file.keys() == list(sections)


def test_sections_start_where_arrow_can_read_in_place() -> None:
    data = written({key(str(i)): bytes([65 + i]) * (i * 37 + 1) for i in range(6)})
    for section in StateFile.open(data, name="0.state").sections():
        assert data.index(bytes(section.data)) % 64 == 0


def test_sections_are_views_and_not_copies() -> None:
    data = bytearray(written({key(): b"abcdef"}))
    (section,) = StateFile.open(data, name="0.state").sections()
    view = section.data
    data[0:6] = b"ABCDEF"
    assert bytes(view) == b"ABCDEF"


def test_a_section_is_read_when_its_data_is_asked_for_and_not_kept() -> None:
    data = written({key("a"): b"A" * 100, key("b"): b"B" * 50})
    reads: list[tuple[int, int]] = []

    def read(start: int, length: int) -> memoryview:
        reads.append((start, length))
        return memoryview(data)[start : start + length]

    file = StateFile.open_ranges(read, length_bytes=len(data), name="0.state")
    assert sum(length for _, length in reads) == file.index_bytes == len(data) - 128 - 64
    reads.clear()
    first, second = file.sections()
    assert (first.length_bytes, second.length_bytes) == (100, 50) and not reads
    assert bytes(second.data) == bytes(second.data) == b"B" * 50
    assert reads == [(128, 50)] * 2


def test_sections_are_found_by_what_they_belong_to() -> None:
    keys = [
        key("a", vertex=1, subtask=0, operator=0),
        key("b", vertex=1, subtask=1, operator=1, kind="source"),
        key("c", vertex=2, subtask=0, operator=0, kind="channel"),
    ]
    file = StateFile.open(written({k: k.name.encode() for k in keys}), name="0.state")

    def names(**wanted: object) -> list[str]:
        return [section.key.name for section in file.sections(**wanted)]  # type: ignore[arg-type]

    assert names(vertex=VertexId(1)) == ["a", "b"]
    assert names(task=TaskId(VertexId(1), 1)) == ["b"]
    assert names(operator=0) == ["a", "c"]
    assert names(kind="channel") == ["c"]
    assert names(kind="channel", operator=1) == []


def test_one_key_twice_is_a_bug_and_said_to_be_one() -> None:
    writer = StateFileWriter()
    writer.add(key(), b"1")
    with pytest.raises(ProtocolViolation, match=r"'counts' of task v1\.0"):
        writer.add(key(), b"2")


def test_any_flipped_byte_of_a_section_or_the_index_is_found() -> None:
    whole = written({key("a"): b"A" * 64, key("b"): b"B" * 64})
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 0x40
        with pytest.raises(Damaged, match=r"checkpoints/1-g1/0\.state"):
            [section.data for section in StateFile.open(data, name="checkpoints/1-g1/0.state").sections()]


def test_any_truncation_is_found() -> None:
    whole = written({key("a"): b"A" * 64, key("b"): b"B" * 10})
    for length in range(len(whole)):
        with pytest.raises(Damaged, match=r"0\.state"):
            StateFile.open(whole[:length], name="0.state")


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "VERSION", 9)
    data = written({key(): b"x"})
    monkeypatch.undo()
    with pytest.raises(Damaged, match="format version 9 and this Tidegate reads version 1"):
        StateFile.open(data, name="0.state")


def test_a_damaged_section_does_not_keep_the_others_from_being_read() -> None:
    data = bytearray(written({key("a", operator=0): b"A" * 64, key("b", operator=1): b"B" * 64}))
    data[3] ^= 1
    file = StateFile.open(data, name="0.state")
    assert [bytes(section.data) for section in file.sections(operator=1)] == [b"B" * 64]
    (damaged,) = file.sections(operator=0)
    with pytest.raises(Damaged, match="section state 'a'"):
        _ = damaged.data


def test_the_sum_of_pieces_is_the_sum_of_the_file() -> None:
    writer = StateFileWriter()
    writer.add(key(), b"hello")
    pieces = writer.finish()
    whole = b"".join(pieces)
    assert sum_of(pieces) == sum_of([whole])
    check_sum(whole, sum_of(pieces), name="0.state")


def test_a_file_that_is_not_the_manifests_is_named() -> None:
    with pytest.raises(Damaged, match=r"0\.state.*3 bytes where the manifest says 4"):
        check_sum(b"abc", FileSum(4, 0), name="0.state")
    with pytest.raises(Damaged, match=r"0\.state.*checksum"):
        check_sum(b"abc", FileSum(3, 0), name="0.state")
