"""Everything Tidegate raises.

    TidegateError
    ├── UserError              the caller can fix it; raised before anything starts, nothing was changed
    │   ├── OptionError        an option or argument: unknown, of a wrong type, contradicting another
    │   ├── UnsupportedPlan    a node or expression that Tidegate does not run, by Spark's name for it
    │   ├── EnvironmentProblem Java, cores, versions, a session that cannot carry the job
    │   └── IncompatibleCheckpoint  the checkpoint does not fit this query
    ├── JobFailure             the job ran and failed
    │   ├── UserCodeFailure    a user's function raised; its traceback is kept
    │   ├── SlotLost           a slot's process or connection is gone; worth a restart
    │   └── ProtocolViolation  two parts disagree; a bug or a stranger; never retried silently
    ├── StorageFailure         reading or writing durable data
    │   ├── Damaged            a file is missing, truncated, of another version, or its checksum is wrong
    │   ├── DidNotHappen       the write surely had no effect; retry as you like
    │   └── MayHaveHappened    the write may be there; look before you repeat it
    └── Superseded             a newer driver owns this checkpoint location; stop, commit nothing

Expected outcomes ("already there", "nothing to read now") are return values, not errors.
"""


class TidegateError(Exception):
    """Root of the tree."""


class UserError(TidegateError):
    """The caller can fix it: one sentence that names the thing and the fix."""


class OptionError(UserError):
    pass


class UnsupportedPlan(UserError):
    pass


class EnvironmentProblem(UserError):
    pass


class IncompatibleCheckpoint(UserError):
    pass


class JobFailure(TidegateError):
    pass


class UserCodeFailure(JobFailure):
    pass


class SlotLost(JobFailure):
    pass


class ProtocolViolation(JobFailure):
    pass


class StorageFailure(TidegateError):
    pass


class Damaged(StorageFailure):
    pass


class Missing(Damaged):
    """A file that should be there is not."""


class DidNotHappen(StorageFailure):
    pass


class MayHaveHappened(StorageFailure):
    pass


class Superseded(TidegateError):
    pass
