"""No shared file goes that a checkpoint uses or may come to use, and none stays for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.ids import CheckpointId
from tidegate.protocol.shared_files import SharedFiles


def registry(*, retained: dict[int, set[str]], pending: tuple[int, ...] = ()) -> SharedFiles:
    files = SharedFiles()
    for checkpoint, used in retained.items():
        files.on_completed(CheckpointId(checkpoint), frozenset(used))
    for checkpoint in pending:
        files.on_triggered(CheckpointId(checkpoint))
    return files


def deletable(files: SharedFiles, **written_by: int) -> list[str]:
    return files.deletable((file, CheckpointId(writer)) for file, writer in written_by.items())


def test_a_file_stays_while_any_retained_checkpoint_refers_to_it() -> None:
    files = registry(retained={1: {"a"}, 2: {"a", "b"}})
    files.on_retired(CheckpointId(1))
    assert deletable(files, a=1, b=2) == []
    files.on_completed(CheckpointId(3), frozenset({"b"}))
    files.on_retired(CheckpointId(2))
    assert deletable(files, a=1, b=2) == ["a"]


@pytest.mark.parametrize(("first", "second"), [(3, 4), (4, 3)])
def test_a_file_that_lost_its_last_reference_waits_for_what_was_pending_then(first: int, second: int) -> None:
    files = registry(retained={1: {"a"}, 2: set()}, pending=(3, 4))
    files.on_retired(CheckpointId(1))
    files.on_triggered(CheckpointId(5))
    files.on_settled(CheckpointId(first))
    assert deletable(files, a=1) == []
    files.on_settled(CheckpointId(second))
    assert deletable(files, a=1) == ["a"]


def test_a_pending_one_that_referred_to_it_keeps_it() -> None:
    files = registry(retained={1: {"a"}, 2: set()}, pending=(3,))
    files.on_retired(CheckpointId(1))
    files.on_completed(CheckpointId(3), frozenset({"a", "c"}))
    assert deletable(files, a=1, c=3) == []


def test_a_file_that_is_referred_to_again_waits_anew_when_that_ends() -> None:
    files = registry(retained={1: {"a"}, 2: set()}, pending=(3, 4))
    files.on_retired(CheckpointId(1))
    files.on_completed(CheckpointId(3), frozenset({"a"}))
    files.on_retired(CheckpointId(3))
    assert deletable(files, a=1) == []
    files.on_settled(CheckpointId(4))
    assert deletable(files, a=1) == ["a"]


def test_what_a_pending_checkpoint_writes_stays() -> None:
    files = registry(retained={1: set()}, pending=(2,))
    assert deletable(files, b=2) == []


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1)])
def test_what_an_aborted_one_wrote_waits_for_those_that_were_pending_with_it(first: int, second: int) -> None:
    files = registry(retained={}, pending=(1, 2, 3))
    files.on_settled(CheckpointId(2))
    files.on_triggered(CheckpointId(4))
    files.on_settled(CheckpointId(first))
    assert deletable(files, b=2) == []
    files.on_settled(CheckpointId(second))
    assert deletable(files, b=2) == ["b"]


def test_what_an_aborted_one_still_uploads_later_goes_too() -> None:
    files = registry(retained={}, pending=(1,))
    files.on_settled(CheckpointId(1))
    files.on_triggered(CheckpointId(2))
    assert deletable(files, late=1) == ["late"]


def test_what_a_completed_one_wrote_in_vain_waits_for_those_that_were_pending_with_it() -> None:
    files = registry(retained={}, pending=(1, 2))
    files.on_completed(CheckpointId(1), frozenset({"a"}))
    assert deletable(files, a=1, vain=1) == []
    files.on_settled(CheckpointId(2))
    assert deletable(files, a=1, vain=1) == ["vain"]


def test_a_file_of_a_checkpoint_that_is_not_known_yet_stays() -> None:
    files = registry(retained={4: set()})
    assert deletable(files, strange=5) == []
    files.on_triggered(CheckpointId(6))
    assert deletable(files, strange=5) == ["strange"]


def test_an_id_that_is_tried_again_protects_its_files_again() -> None:
    files = registry(retained={}, pending=(1,))
    files.on_settled(CheckpointId(1))
    files.on_triggered(CheckpointId(1))
    assert deletable(files, a=1) == []


def test_settling_twice_changes_nothing() -> None:
    files = registry(retained={1: {"a"}}, pending=(2, 3))
    files.on_completed(CheckpointId(2), frozenset({"a"}))
    files.on_settled(CheckpointId(2))
    files.on_settled(CheckpointId(2))
    assert deletable(files, a=1) == []


class Job:
    """Snapshots that refer to whatever they may, a store, and retention: files are deleted as soon as they may be."""

    def __init__(self) -> None:
        self.registry = SharedFiles()
        self.store: dict[str, CheckpointId] = {}
        self.retained: dict[CheckpointId, set[str]] = {}
        self.pending: dict[CheckpointId, set[str]] = {}
        self.last = 0

    def trigger(self) -> None:
        self.last += 1
        self.pending[CheckpointId(self.last)] = set()
        self.registry.on_triggered(CheckpointId(self.last))

    def write(self, checkpoint: CheckpointId) -> None:
        name = f"{checkpoint}-{len(self.pending[checkpoint])}-{len(self.store)}"
        self.store[name] = checkpoint
        self.pending[checkpoint].add(name)

    def refer(self, data: st.DataObject, checkpoint: CheckpointId) -> None:
        """To a file of a checkpoint that is retained just now; it may be retired before this one completes."""
        candidates = sorted({file for files in self.retained.values() for file in files})
        if candidates:
            self.pending[checkpoint].add(data.draw(st.sampled_from(candidates)))

    def complete(self, data: st.DataObject, checkpoint: CheckpointId) -> None:
        used = self.pending.pop(checkpoint)
        # Some of its own may have been written in vain.
        unused = {file for file in sorted(used) if self.store[file] == checkpoint and data.draw(st.booleans())}
        self.retained[checkpoint] = used - unused
        self.registry.on_completed(checkpoint, frozenset(used - unused))

    def abort(self, checkpoint: CheckpointId) -> None:
        del self.pending[checkpoint]
        self.registry.on_settled(checkpoint)

    def retire_oldest(self) -> None:
        if len(self.retained) > 1:
            oldest = min(self.retained)
            del self.retained[oldest]
            self.registry.on_retired(oldest)

    def sweep(self) -> None:
        for file in self.registry.deletable(list(self.store.items())):
            del self.store[file]


@settings(max_examples=100)
@given(st.data())
def test_no_file_is_missed_while_it_is_used_and_all_others_go_in_the_end(data: st.DataObject) -> None:
    job = Job()
    for _ in range(data.draw(st.integers(0, 40))):
        actions = ["trigger", "retire"] if len(job.pending) < 3 else ["retire"]
        actions += ["write", "refer", "complete", "abort"] if job.pending else []
        action = data.draw(st.sampled_from(actions))
        match action:
            case "trigger":
                job.trigger()
            case "retire":
                job.retire_oldest()
            case _:
                checkpoint = data.draw(st.sampled_from(sorted(job.pending)))
                match action:
                    case "write":
                        job.write(checkpoint)
                    case "refer":
                        job.refer(data, checkpoint)
                    case "complete":
                        job.complete(data, checkpoint)
                    case "abort":
                        job.abort(checkpoint)
        job.sweep()
        needed = [*job.retained.values(), *job.pending.values()]
        assert {file for files in needed for file in files} <= job.store.keys()
    for checkpoint in sorted(job.pending):
        job.abort(checkpoint)
    job.sweep()
    assert job.store.keys() == {file for files in job.retained.values() for file in files}
    # Nothing is remembered of what is gone: the registry does not grow with the life of the job.
    assert not job.registry._released and not job.registry._settled
