"""What a job goes on from, as exact decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.ids import CheckpointId, Generation
from tidegate.protocol.recovery import Decision, Refuse, Restore, SinkRollback, StartFresh, StoredCheckpoint, decide

NONE, TO_ANY, DUPLICATES = SinkRollback.NONE, SinkRollback.TO_ANY_CHECKPOINT, SinkRollback.DUPLICATES_ALLOWED


def stored(
    checkpoint: int, *, committed: bool = True, has_committables: bool = True, damaged: bool = False
) -> StoredCheckpoint:
    return StoredCheckpoint(
        checkpoint=CheckpointId(checkpoint),
        generation=Generation(1),
        has_committables=has_committables,
        is_committed=committed,
        damage=f"checkpoints/{checkpoint}-g1/0.state has a wrong checksum." if damaged else None,
    )


def restore(checkpoint: int, *, commit_first: tuple[int, ...] = (), skipped: tuple[int, ...] = ()) -> Restore:
    return Restore(
        checkpoint=CheckpointId(checkpoint),
        commit_first=tuple(map(CheckpointId, commit_first)),
        skipped=tuple(map(CheckpointId, skipped)),
    )


def refusal(decision: Decision) -> str:
    assert isinstance(decision, Refuse)
    return decision.message


def test_a_job_without_checkpoints_starts_fresh() -> None:
    assert decide([], rollback=NONE) == StartFresh()


def test_the_newest_is_restored() -> None:
    assert decide([stored(1), stored(2)], rollback=NONE) == restore(2)


def test_what_is_not_recorded_is_committed_first_in_log_order() -> None:
    found = [stored(1), stored(2, committed=False), stored(4, committed=False, has_committables=False)]
    assert decide(found, rollback=NONE) == restore(4, commit_first=(2, 4))


def test_an_older_damaged_one_does_not_matter_once_it_is_committed() -> None:
    assert decide([stored(1, damaged=True), stored(2)], rollback=NONE) == restore(2)


def test_going_back_past_committed_rows_is_refused_and_names_file_and_option() -> None:
    assert refusal(decide([stored(1), stored(2, damaged=True)], rollback=NONE)) == (
        "Going back to checkpoint 1 would write rows again that checkpoint 2 may have committed, but it is the newest "
        "that can be used because of the damaged checkpoint 2 of generation 1 "
        "[checkpoints/2-g1/0.state has a wrong checksum]: restore the file from a backup, or accept duplicates with "
        ".option('restore.allowDuplicates', 'true') (nothing was changed or deleted)."
    )


@pytest.mark.parametrize("rollback", [TO_ANY, DUPLICATES])
def test_committed_rows_may_be_replayed_if_they_are_taken_back_or_accepted_twice(rollback: SinkRollback) -> None:
    found = [stored(1), stored(2, damaged=True), stored(3, damaged=True)]
    assert decide(found, rollback=rollback) == restore(1, skipped=(2, 3))


def test_going_back_past_a_checkpoint_without_output_is_harmless() -> None:
    found = [stored(1), stored(2, damaged=True, has_committables=False)]
    assert decide(found, rollback=NONE) == restore(1, skipped=(2,))


def test_a_commit_that_may_have_begun_counts_as_committed() -> None:
    """Its record is missing, but nothing stood before it: the driver may have died in between."""
    found = [stored(1), stored(2, damaged=True, committed=False)]
    assert "checkpoint 2 may have committed" in refusal(decide(found, rollback=NONE))
    assert decide(found, rollback=TO_ANY) == restore(1, skipped=(2,))


def test_a_commit_cannot_have_begun_while_an_older_one_is_not_recorded() -> None:
    found = [stored(1, committed=False), stored(2, damaged=True, committed=False)]
    assert decide(found, rollback=NONE) == restore(1, commit_first=(1,), skipped=(2,))


def test_the_first_of_several_skipped_ones_with_output_is_what_forbids_it() -> None:
    found = [stored(1), stored(2, damaged=True, has_committables=False), stored(3, damaged=True)]
    message = refusal(decide(found, rollback=NONE))
    assert "checkpoint 3 may have committed" in message
    assert "checkpoints/3-g1/0.state" in message


def test_a_damaged_one_with_uncommitted_output_is_replayed_and_never_passed_over() -> None:
    """Restoring 3 would lose the rows that only 2 knows of; 3 cannot be committed before 2 is."""
    found = [stored(1), stored(2, damaged=True, committed=False), stored(3, committed=False)]
    assert decide(found, rollback=TO_ANY) == restore(1, skipped=(2, 3))
    assert decide(found, rollback=DUPLICATES) == restore(1, skipped=(2, 3))
    assert "checkpoints/2-g1/0.state" in refusal(decide(found, rollback=NONE))


def test_a_damaged_one_without_output_is_passed_over_and_recorded() -> None:
    found = [stored(1), stored(2, damaged=True, committed=False, has_committables=False), stored(3, committed=False)]
    assert decide(found, rollback=NONE) == restore(3, commit_first=(2, 3))


@pytest.mark.parametrize("rollback", list(SinkRollback))
def test_lost_rows_cannot_be_accepted_by_any_option(rollback: SinkRollback) -> None:
    found = [stored(2, damaged=True, committed=False), stored(3, committed=False)]
    assert refusal(decide(found, rollback=rollback)) == (
        "Going on from checkpoint 3 would lose rows that are not committed yet, they are in the damaged checkpoint 2 "
        "of generation 1 [checkpoints/2-g1/0.state has a wrong checksum], and no usable checkpoint is older: restore "
        "the file from a backup, or start from the beginning with a new checkpointLocation "
        "(nothing was changed or deleted)."
    )


@pytest.mark.parametrize("rollback", list(SinkRollback))
def test_a_job_whose_checkpoints_are_all_damaged_never_starts_fresh(rollback: SinkRollback) -> None:
    found = [stored(1, damaged=True), stored(2, damaged=True, has_committables=False)]
    assert refusal(decide(found, rollback=rollback)) == (
        "None of the 2 retained checkpoints can be restored, the newest is the damaged checkpoint 2 of generation 1 "
        "[checkpoints/2-g1/0.state has a wrong checksum]: restore the file from a backup, or start from the beginning "
        "with a new checkpointLocation (nothing was changed or deleted)."
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[StoredCheckpoint], set[int]]:
    """What a job may leave, with commits in order and the last one perhaps half done; and who has rows out."""
    count = draw(st.integers(1, 5))
    recorded = draw(st.integers(0, count))
    begun = draw(st.booleans())
    found: list[StoredCheckpoint] = []
    out: set[int] = set()
    for number in range(1, count + 1):
        has_committables = draw(st.booleans())
        is_out = has_committables and (number <= recorded or (begun and number == recorded + 1))
        found.append(
            stored(
                number,
                committed=number <= recorded,
                has_committables=has_committables,
                damaged=draw(st.booleans()),
            )
        )
        out |= {number} if is_out else set()
    return found, out


@given(histories(), st.sampled_from(SinkRollback))
def test_no_row_is_lost_and_none_comes_twice_unless_it_is_taken_back_or_accepted(
    history: tuple[list[StoredCheckpoint], set[int]], rollback: SinkRollback
) -> None:
    found, out = history
    decision = decide(found, rollback=rollback)
    if isinstance(decision, Refuse):
        assert any(c.damage for c in found)
        return
    assert isinstance(decision, Restore)
    by_id = {c.checkpoint: c for c in found}
    assert by_id[decision.checkpoint].damage is None
    upto = [c for c in found if c.checkpoint <= decision.checkpoint]
    # Everything up to the restored one comes out: it is recorded, or committed now from what can be read.
    for candidate in upto:
        assert candidate.is_committed or candidate.checkpoint in decision.commit_first
    for checkpoint in decision.commit_first:
        assert by_id[checkpoint].damage is None or not by_id[checkpoint].has_committables
    assert decision.skipped == tuple(c.checkpoint for c in found if c.checkpoint > decision.checkpoint)
    if rollback is NONE:
        assert not out & set(decision.skipped)


@given(histories())
def test_an_undamaged_job_always_goes_on_from_its_newest_checkpoint(
    history: tuple[list[StoredCheckpoint], set[int]],
) -> None:
    found = [stored(c.checkpoint, committed=c.is_committed, has_committables=c.has_committables) for c in history[0]]
    open_ids = tuple(c.checkpoint for c in found if not c.is_committed)
    assert decide(found, rollback=NONE) == restore(len(found), commit_first=open_ids)
