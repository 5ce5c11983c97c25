"""What a location is opened with beyond the environment of the process: settings as Hadoop names them.

Travels from the driver to the slots with the job. Never shows a value: not in its repr, not in an error, not in a log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """`settings` are those that `hadoop_settings` understands, by Hadoop's names (`fs.s3a.access.key`)."""

    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


FROM_ENVIRONMENT = StoreAccess()
