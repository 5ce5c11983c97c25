"""The job's durable side: the log, manifests, commits, retention. Blocking; runs beside the coordinator's loop.

Every method may raise StorageFailure, Superseded or what a sink raises; the coordinator decides what follows.
"""

import hashlib
import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tidegate.connectors.contract import HoldsBack, SinkCommitter
from tidegate.coordinator.checkpoint_files import check_files
from tidegate.coordinator.claims import ClaimRemoval, refuse_if_running
from tidegate.coordinator.compatibility import NotRestored, check_backend, check_fits, check_is_restored
from tidegate.coordinator.failed_savepoints import FailedSavepoint, FailedSavepoints
from tidegate.coordinator.named_checkpoint import locate, open_named
from tidegate.coordinator.orphans import find_orphans, remove
from tidegate.coordinator.rolling_back import RollingBack, output_of
from tidegate.coordinator.staged_inputs import check_staged_inputs, lay_out_staged_inputs, with_staged_inputs
from tidegate.coordinator.state_evolution import left_out_states, with_left_out
from tidegate.coordinator.used_files import KeptFiles, shared_files
from tidegate.model.errors import Damaged, StorageFailure
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.plan.matching import PlanMatch
from tidegate.plan.parts import Place
from tidegate.plan.physical import JobPlan
from tidegate.protocol.commit import permit_logged
from tidegate.protocol.recovery import (
    CapturedRows,
    Decision,
    Refuse,
    Restore,
    SinkRollback,
    StartFresh,
    StoredCheckpoint,
    decide,
)
from tidegate.protocol.retention import (
    Completed,
    KeepFor,
    KeepNumber,
    OnCancel,
    RestoreMode,
    skipped_to_retire,
    to_retire,
)
from tidegate.state.contract import HEAP
from tidegate.storage import layout
from tidegate.storage.job_log import (
    SHORTENED_FROM,
    CheckpointClaimed,
    CheckpointCompleted,
    CheckpointRetired,
    CheckpointSkipped,
    Committed,
    Entry,
    JobLog,
    RolledBack,
    claimed_checkpoint,
    next_checkpoint_id,
    retained_checkpoints,
    skipped_checkpoints,
    to_roll_back,
    uncommitted,
    unused_claim,
)
from tidegate.storage.manifests import Manifest, check_content, decode_manifest, encode_manifest
from tidegate.storage.store import AlreadyThere, Store, delete_all
from tidegate.storage.stored_plan import UserState
from tidegate.worker.restoring import read_source_states, stored_places, stored_sections

log = logging.getLogger("tidegate")

# A committable rides with later checkpoints until its slot knows that it is committed: a few checkpoints at the most.
_REMEMBERED_COMMITTABLES = 100_000
_ADVICE = re.compile(r"[:;] restore ")


@dataclass(frozen=True, slots=True)
class GenerationBasis:
    """What a new generation stands on. `restore_location` is None for the job's own checkpoint location."""

    generation: Generation
    restore_manifest: str | None
    restored_checkpoint: CheckpointId | None
    next_checkpoint: CheckpointId
    source_states: dict[TaskId, bytes]
    restore_location: str | None = None
    captured_rows: CapturedRows = CapturedRows.DELIVER
    is_own: bool = True  # not what `restore.from` names: of that there is no older one to go back to


@dataclass(frozen=True, slots=True)
class _Choice:
    """`why_not_back`: one sentence if the output of what is skipped stays where it is."""

    restored: CheckpointCompleted | None
    skipped: tuple[CheckpointCompleted, ...] = ()
    why_not_back: str | None = None
    damage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableSettings:
    """`restore_from`: a checkpoint or savepoint to start from, as long as the job has none of its own.

    `without_captured_rows`: a checkpoint whose rows in flight are dropped if it is the one to be restored. `run`: what
    the names of savepoints have of this start.
    """

    fingerprint: tuple[str, ...]
    keep: KeepNumber | KeepFor
    restore_from: str | None = None
    rollback: SinkRollback = SinkRollback.NONE
    # From so many on, a summary takes the place of the log's entries.
    log_entries: int = SHORTENED_FROM
    not_restored: NotRestored = NotRestored.REFUSED
    restore_mode: RestoreMode = RestoreMode.NO_CLAIM
    on_cancel: OnCancel = OnCancel.RETAIN
    without_captured_rows: CheckpointId | None = None
    state_backend: str = HEAP
    run: str = ""


class DurableJob:
    """`open_location` opens the place of a savepoint; `wall_ms` is the time for people and for retention."""

    def __init__(
        self,
        store: Store,
        committer: SinkCommitter,
        plan: JobPlan,
        settings: DurableSettings,
        *,
        open_location: Callable[[str], Store],
        wall_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._committer = committer
        self._plan = plan
        self._settings = settings
        self._open_location = open_location
        self._wall_ms = wall_ms
        self._rolling_back = RollingBack(committer, manifest_of=self._manifest)
        # Digests: of a sink that keeps its rows in memory, a committable is all of an epoch's rows.
        self._committed: dict[bytes, None] = {}
        # By the sink, while its log entry is not known to be there.
        self._unrecorded: CheckpointId | None = None
        self._noted_damage: dict[CheckpointId, str] = {}
        # Of those that are not committed yet.
        self._durations_ms: dict[CheckpointId, float] = {}
        self._kept_files = KeptFiles(store, manifest_of=self._manifest)
        self._failed_savepoints = FailedSavepoints(open_location)
        self._claim_removal = ClaimRemoval(open_location)
        self._generation = Generation(0)
        self._may_have_orphans = True  # of drivers before this one
        self._left_out: dict[Place, list[UserState]] = {}
        self._log = JobLog(store, driver=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    # -- a generation's beginning

    def check_compatible(self) -> None:
        """Before anything starts: whether there is something to restore, and whether it fits. Changes nothing."""
        chosen = self._choose(retained_checkpoints(self._log.read())).restored
        restored = None if chosen is None else chosen.checkpoint
        if chosen is not None:
            self._check_start(self._place_of(chosen), self._manifest(chosen))
        elif self._settings.restore_from is not None:
            named = open_named(self._settings.restore_from, self._open_location)
            restored = named.manifest.checkpoint
            if self._settings.restore_mode is RestoreMode.CLAIM:
                refuse_if_running(named.store, named.location)
            match = self._check_start(named.store, named.manifest)
            check_files(named.store, named.manifest, self._captured_rows_of(restored))
            check_staged_inputs(self._plan, match, named.manifest, named.store)
        check_is_restored(self._settings.without_captured_rows, restored)

    def _check_start(self, store: Store, manifest: Manifest) -> PlanMatch:
        match = self._match(store, manifest)
        check_backend(manifest, match, self._settings.state_backend, lambda: stored_sections(store, manifest))
        return match

    def note_damage(self, checkpoint: CheckpointId, damage: str) -> None:
        """Found by slots that read it. While no generation is being started: the background reads it."""
        self._noted_damage[checkpoint] = damage

    def use(self, plan: JobPlan) -> None:
        """From the next generation on. While none is being started: the background reads it."""
        self._plan = plan

    def start_generation(self, *, at_ms: int) -> GenerationBasis:
        """Own the job from now on, settle what the generation before left open, and choose what to restore."""
        run = self._settings.run
        generation = self._log.start_generation(parallelism=self._plan.parallelism, at_ms=at_ms, run=run)
        self._generation = generation
        entries = self._log.read()
        choice = self._choose(retained_checkpoints(entries))
        chosen = choice.restored
        self._skip(choice)
        self._settle(chosen)
        self._committer.discard_uncommitted([], generation)
        places = (layout.CHECKPOINTS, layout.SHARED, layout.SAVEPOINTS)
        next_checkpoint = next_checkpoint_id(entries, [path for place in places for path in self._store.list(place)])
        if chosen is None:
            self._let_go_of_unused_claim(entries)
            if self._settings.restore_from is not None:
                return self._start_from(self._settings.restore_from, generation, next_checkpoint)
        manifest = None if chosen is None else self._manifest(chosen)
        if manifest is None or chosen is None:
            return GenerationBasis(generation, None, None, next_checkpoint, {})
        place = self._place_of(chosen)
        try:
            match = self._match(place, manifest)
            self._left_out = left_out_states(self._plan, match, manifest.plan)
            source_states = read_source_states(place, manifest, self._plan, match)
        except Damaged as error:
            self.note_damage(chosen.checkpoint, str(error))
            return self.start_generation(at_ms=at_ms)
        if self._may_have_orphans:
            self._may_have_orphans = False
            self._remove_orphans(before_ms=at_ms)
        return GenerationBasis(
            generation=generation,
            restore_manifest=chosen.manifest,
            restored_checkpoint=chosen.checkpoint,
            next_checkpoint=next_checkpoint,
            source_states=source_states,
            restore_location=chosen.location,
            captured_rows=self._captured_rows_of(chosen.checkpoint),
        )

    def _start_from(self, restore_from: str, generation: Generation, first_id: CheckpointId) -> GenerationBasis:
        named = open_named(restore_from, self._open_location)
        manifest = named.manifest
        match = self._match(named.store, manifest)
        self._left_out = left_out_states(self._plan, match, manifest.plan)
        lay_out_staged_inputs(self._plan, match, manifest, named.store)
        if self._settings.restore_mode is RestoreMode.CLAIM:
            self._claim(manifest.checkpoint, named.location, named.path)
        return GenerationBasis(
            generation=generation,
            restore_manifest=named.path,
            restored_checkpoint=manifest.checkpoint,
            next_checkpoint=max(first_id, CheckpointId(manifest.checkpoint + 1)),
            source_states=read_source_states(named.store, manifest, self._plan, match),
            restore_location=named.location,
            captured_rows=self._captured_rows_of(manifest.checkpoint),
            is_own=False,
        )

    def _claim(self, checkpoint: CheckpointId, location: str, path: str) -> None:
        before = claimed_checkpoint(self._log.entries())
        if before is None or (before.location, before.manifest) != (location, path):
            claim = CheckpointClaimed(checkpoint=checkpoint, manifest=path, location=location, at_ms=self._wall_ms())
            self._log.append(claim)

    def _let_go_of_unused_claim(self, entries: Sequence[Entry]) -> None:
        """One that neither this start nor a checkpoint stands on may be all there is of its state: it stays."""
        if (unused := unused_claim(entries)) is None:
            return
        path = self._settings.restore_from if self._settings.restore_mode is RestoreMode.CLAIM else None
        if path is None or locate(path) != (unused.location, unused.manifest):
            self._log.append(CheckpointRetired(checkpoint=unused.checkpoint))

    def _match(self, store: Store, manifest: Manifest) -> PlanMatch:
        """What the plan takes over from a checkpoint; raises if it does not fit."""
        return check_fits(
            manifest,
            self._plan,
            self._settings.fingerprint,
            not_restored=self._settings.not_restored,
            stored_places=lambda: stored_places(store, manifest),
        )

    def _captured_rows_of(self, checkpoint: CheckpointId) -> CapturedRows:
        return CapturedRows.DROP if checkpoint == self._settings.without_captured_rows else CapturedRows.DELIVER

    def _choose(self, retained: Sequence[CheckpointCompleted]) -> _Choice:
        """The one to restore, as `protocol.recovery` decides; raises `Damaged` if none may be."""
        committed = {entry.checkpoint for entry in self._log.entries() if isinstance(entry, Committed)}
        facts: list[StoredCheckpoint] = []
        has_usable = False
        for completed in reversed(retained):
            is_committed = completed.checkpoint in committed
            # What is older than a usable one and committed is not needed: whether it is intact does not matter now.
            damage = None if has_usable and is_committed else self._damage_of(completed)
            has_usable |= damage is None
            facts.insert(
                0,
                StoredCheckpoint(
                    checkpoint=completed.checkpoint,
                    generation=completed.generation,
                    has_committables=completed.has_committables,
                    is_committed=is_committed,
                    damage=damage,
                ),
            )
        is_strict = self._settings.rollback is SinkRollback.NONE
        hoped = SinkRollback.TO_ANY_CHECKPOINT if is_strict else self._settings.rollback
        choice = self._choice(decide(facts, rollback=hoped), retained, facts)
        if not choice.skipped or choice.why_not_back is None:
            return choice
        if is_strict:
            # Only if nothing of what is skipped can be out is it skipped without being taken back.
            decision = decide(facts, rollback=SinkRollback.NONE)
            if isinstance(decision, Refuse) and self._rolling_back.is_possible:
                raise Damaged(f"{decision.message} It cannot be taken back, because {choice.why_not_back}.")
            return self._choice(decision, retained, facts)
        return choice

    def _choice(
        self, decision: Decision, retained: Sequence[CheckpointCompleted], facts: Sequence[StoredCheckpoint]
    ) -> _Choice:
        match decision:
            case StartFresh():
                return _Choice(None)
            case Refuse(message):
                raise Damaged(message)
            case Restore(checkpoint=checkpoint, skipped=skipped):
                by_id = {completed.checkpoint: completed for completed in retained}
                passed = [by_id[each] for each in skipped]
                return _Choice(
                    restored=by_id[checkpoint],
                    skipped=tuple(passed),
                    why_not_back=self._rolling_back.why_not(passed, to=checkpoint) if passed else None,
                    damage=tuple(fact.damage for fact in facts if fact.damage is not None),
                )

    def _skip(self, choice: _Choice) -> None:
        """What is newer than the restored one is not used again, and what it committed is taken back if it can be."""
        if choice.restored is not None and choice.skipped:
            is_taken_back = choice.why_not_back is None
            log.warning(
                "The query goes back to checkpoint %d, and what came after it is read again%s, because of damage: %s.",
                choice.restored.checkpoint,
                "; what was committed since is taken back" if is_taken_back else "",
                "; ".join(choice.damage),
            )
            target = choice.restored.checkpoint if is_taken_back else None
            for passed in choice.skipped:
                self._log.append(CheckpointSkipped(checkpoint=passed.checkpoint, rolls_back_to=target))
        for passed, back_to in to_roll_back(self._log.read()):
            self._rolling_back.roll_back([passed], to=back_to)
            self._log.append(RolledBack(checkpoint=passed.checkpoint))

    def _damage_of(self, completed: CheckpointCompleted) -> str | None:
        """One sentence if its manifest or a file that it names cannot be used."""
        if (noted := self._noted_damage.get(completed.checkpoint)) is not None:
            return _ADVICE.split(noted)[0]
        try:
            captured_rows = self._captured_rows_of(completed.checkpoint)
            check_files(self._place_of(completed), self._manifest(completed), captured_rows)
        except Damaged as error:
            # What to do about it depends on what else there is to restore; that is said where it is decided.
            return _ADVICE.split(str(error))[0]
        return None

    def _settle(self, chosen: CheckpointCompleted | None) -> None:
        """Commit what the log has and the sinks may not, up to the one that is restored."""
        entries = self._log.read()
        still_open = uncommitted(entries)
        settled = [c for c in retained_checkpoints(entries) if c not in still_open]
        if still_open:
            self._remember_newest_of(settled)
        for completed in still_open:
            if chosen is not None and completed.checkpoint <= chosen.checkpoint:
                self.commit(completed.checkpoint, self._manifest(completed))

    # -- a checkpoint's end

    def complete(self, manifest: Manifest, *, location: str | None = None) -> str:
        """Write the manifest, then the log entry: from that moment the checkpoint exists. Gives where it is."""
        check_content(sum(len(file.content) for file in manifest.slots if file.content is not None))
        if self._left_out and manifest.plan is not None:
            manifest = msgspec.structs.replace(manifest, plan=with_left_out(manifest.plan, self._left_out))
        if location is None:
            path = layout.manifest(layout.CheckpointFolder(manifest.checkpoint, manifest.generation))
            self._store.put(path, encode_manifest(manifest))
        else:
            path, place = layout.savepoint_manifest(), self._open_location(location)
            manifest = with_staged_inputs(manifest, self._plan, place)
            created = place.create(path, encode_manifest(manifest))
            if isinstance(created, AlreadyThere):
                raise StorageFailure(f"There is a savepoint in {location} already: name another path.")
        self._log.append(
            CheckpointCompleted(
                checkpoint=manifest.checkpoint,
                generation=manifest.generation,
                manifest=path,
                location=location,
                completed_at_ms=self._wall_ms(),
                is_savepoint=manifest.is_savepoint,
                has_committables=bool(manifest.committables),
                output=self._rolling_back.noted_output(manifest),
            )
        )
        files = shared_files(manifest) if location is None else frozenset[str]()
        self._kept_files.on_completed(manifest.checkpoint, files)
        return path if location is None else location

    def commit(self, checkpoint: CheckpointId, manifest: Manifest, *, duration_ms: float = 0.0) -> None:
        """Commit it, and before it whatever an earlier commit that failed has left: the log's order is kept.

        `duration_ms`: what the checkpoint took, its log entry included; 0 if that is not known.
        """
        self._durations_ms[checkpoint] = duration_ms
        open_ones = uncommitted(self._log.read())
        self._log.check_is_ours()  # else the driver that took over has committed it, or will
        for completed in open_ones:
            if completed.checkpoint < checkpoint:
                self._commit_one(completed.checkpoint, self._manifest(completed))
        self._commit_one(checkpoint, manifest)

    def _commit_one(self, checkpoint: CheckpointId, manifest: Manifest) -> None:
        if checkpoint != self._unrecorded:
            self._give_out(checkpoint, manifest)
            # Before the log has it: its output may be in the next one too, whose commit finds an entry that was written
            # though nobody heard of it.
            self._remember(manifest)
            self._unrecorded = checkpoint
        # The same in a second try: the log finds an entry that may be there already by its being equal.
        self._log.append(Committed(checkpoint=checkpoint, duration_ms=self._durations_ms.get(checkpoint, 0.0)))
        self._durations_ms.pop(checkpoint, None)
        self._unrecorded = None

    def _give_out(self, checkpoint: CheckpointId, manifest: Manifest) -> None:
        # What an earlier checkpoint has committed already is left out: a reader may have taken it away since.
        committables = [c for c in output_of(manifest) if _digest(c) not in self._committed]
        try:
            self._committer.commit(committables, permit_logged(checkpoint))
        except Exception:
            # Whoever took over meanwhile has moved or removed what was to be committed here: that is the true reason.
            self._log.read()
            self._log.check_is_ours()
            raise

    # -- what may go

    def retire(self, pending: frozenset[CheckpointId], *, told: CheckpointId | None = None) -> None:
        """Remove what retention no longer keeps, and what failed checkpoints and savepoints left behind.

        `pending`: those that were under way when the completion of `told` was told to the slots. What is complete by
        now and was not told yet takes no other's place: the next trigger may still refer to what `told` holds. None
        once there are no slots: nothing follows that could try again.
        """
        entries = self._log.read()
        self._log.check_is_ours()
        retained = retained_checkpoints(entries)
        leaving, claimed = self._leaving(entries, told)
        self._kept_files.on_found(retained)
        self._kept_files.on_pending(pending)
        for checkpoint in sorted(leaving):
            self._log.append(CheckpointRetired(checkpoint=checkpoint))
            self._kept_files.on_retired(checkpoint)
        staying = [c for c in [*retained, *skipped_checkpoints(entries)] if c.checkpoint not in leaving]
        kept = {_folder(c) for c in staying}
        newest = max((c.checkpoint for c in retained), default=CheckpointId(0))
        # Newer than the newest completed one may still be in the making.
        self._delete_folders(lambda folder: folder not in kept and folder.checkpoint < newest)
        self._kept_files.delete_unused(staying, up_to=self._generation)
        self._log.shorten(from_entries=self._settings.log_entries)
        # Last, as they lie elsewhere: what cannot be reached there keeps nothing here from going.
        if told is not None:
            self._failed_savepoints.on_acknowledged(told, entries)
        removal = self._claim_removal
        if claimed is not None and (removal.is_done_now(claimed) if told is None else removal.is_done(claimed)):
            self._log.append(CheckpointRetired(checkpoint=claimed.checkpoint))

    def _leaving(
        self, entries: Sequence[Entry], told: CheckpointId | None
    ) -> tuple[set[CheckpointId], CheckpointClaimed | None]:
        """Of the job's own checkpoints; and the claimed one, if it goes as well."""
        committed = {entry.checkpoint for entry in entries if isinstance(entry, Committed)}

        def fact(c: CheckpointCompleted) -> Completed:
            return Completed(
                checkpoint=c.checkpoint,
                completed_at_ms=c.completed_at_ms,
                is_committed=c.checkpoint in committed,
                is_savepoint=c.is_savepoint,
            )

        keep, now_ms, claimed = self._settings.keep, self._wall_ms(), claimed_checkpoint(entries)
        own = [fact(c) for c in retained_checkpoints(entries) if told is None or c.checkpoint <= told]
        going = set(to_retire([*_as_own(claimed), *own], keep=keep, now_ms=now_ms))
        skipped = [fact(c) for c in skipped_checkpoints(entries)]
        leaving = going | set(skipped_to_retire(skipped, own, keep=keep, now_ms=now_ms))
        if claimed is None or claimed.checkpoint not in going:
            return leaving, None
        return leaving - {claimed.checkpoint}, claimed

    def on_savepoint_failed(self, failed: FailedSavepoint) -> None:
        """What is there of it goes with a later `retire`, or when the job ends."""
        self._failed_savepoints.add(failed)

    def oldest_retained(self) -> CheckpointId:
        """Of the checkpoints; what a savepoint needs is the business of its owner."""
        retained = retained_checkpoints(self._log.entries())
        return min((c.checkpoint for c in retained if not c.is_savepoint), default=CheckpointId(0))

    def on_cancelled(self) -> None:
        """The query was stopped: what it keeps for a later start goes, if the user wants that, before `clean_up`."""
        if self._settings.on_cancel is OnCancel.RETAIN:
            return
        entries = self._log.read()
        self._log.check_is_ours()
        still_open = uncommitted(entries)
        for completed in [*retained_checkpoints(entries), *skipped_checkpoints(entries)]:
            if not completed.is_savepoint and completed not in still_open:
                self._log.append(CheckpointRetired(checkpoint=completed.checkpoint))
        if (claimed := claimed_checkpoint(entries)) is not None and self._claim_removal.is_done_now(claimed):
            self._log.append(CheckpointRetired(checkpoint=claimed.checkpoint))

    def _remove_orphans(self, *, before_ms: int) -> None:
        """Of drivers before this one; what its own generations leave, it removes as they end."""
        try:
            remove(self._store, find_orphans(self._store, self._log.entries(), before_ms=before_ms))
        except StorageFailure as error:
            log.warning("What crashed generations left could not be removed: %s", error)

    def publish_held(self) -> None:
        """At the query's end: what the sink has held back of committed epochs appears."""
        if isinstance(self._committer, HoldsBack):
            self._log.read()
            self._log.check_is_ours()
            self._committer.publish_held()

    def clean_up(self, generation: Generation) -> None:
        """Once all slots of `generation` are gone: remove what they left and no completed checkpoint holds."""
        # One that was completed while the job was ending may have made another one too many.
        self.retire(frozenset())
        entries = self._log.read()
        self._log.check_is_ours()
        held = [self._manifest(completed) for completed in uncommitted(entries)]
        keep = [committable for manifest in held for committable in output_of(manifest)]
        self._committer.discard_uncommitted(keep, Generation(generation + 1))
        staying = [*retained_checkpoints(entries), *skipped_checkpoints(entries)]
        kept = {_folder(completed) for completed in staying}
        self._delete_folders(lambda folder: folder not in kept and folder.generation <= generation)
        self._kept_files.delete_all_but(staying, up_to=generation)
        self._failed_savepoints.on_ended(entries)

    def _delete_folders(self, is_over: Callable[[layout.CheckpointFolder], bool]) -> None:
        found = [(layout.parse_checkpoint(path), path) for path in self._store.list(layout.CHECKPOINTS)]
        delete_all(self._store, [path for folder, path in found if folder is not None and is_over(folder)])

    # -- reading

    def _remember_newest_of(self, settled: Sequence[CheckpointCompleted]) -> None:
        """What it committed need not be committed again. A savepoint may be gone: then the one before it will do."""
        for completed in reversed(settled):
            try:
                self._remember(self._manifest(completed))
            except Damaged:
                continue
            return

    def _remember(self, manifest: Manifest) -> None:
        self._committed.update(dict.fromkeys(_digest(committable) for committable in output_of(manifest)))
        while len(self._committed) > _REMEMBERED_COMMITTABLES:
            del self._committed[next(iter(self._committed))]

    def _place_of(self, completed: CheckpointCompleted) -> Store:
        return self._store if completed.location is None else self._open_location(completed.location)

    def _manifest(self, completed: CheckpointCompleted) -> Manifest:
        name = completed.manifest if completed.location is None else f"{completed.location}/{completed.manifest}"
        return decode_manifest(self._place_of(completed).read(completed.manifest), name=name)


def _as_own(claimed: CheckpointClaimed | None) -> list[Completed]:
    if claimed is None:
        return []
    id, at_ms = claimed.checkpoint, claimed.at_ms
    return [Completed(checkpoint=id, completed_at_ms=at_ms, is_committed=True, is_savepoint=False)]


def _digest(committable: bytes) -> bytes:
    return hashlib.blake2b(committable, digest_size=16).digest()


def _folder(completed: CheckpointCompleted) -> layout.CheckpointFolder:
    return layout.CheckpointFolder(completed.checkpoint, completed.generation)
