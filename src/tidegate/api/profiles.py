"""Options that belong together, by name: `tg.writeStream(df).options(**tg.profiles.production)`.

Holds values only; what each option means stands in the table of options.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


def _production() -> Mapping[str, str]:
    return MappingProxyType(
        {
            "checkpoint.interval": "2m",
            "checkpoint.mode": "exactly_once",
            "checkpoint.maxConcurrent": "1",
            "checkpoint.retained": "1h",
        }
    )


@dataclass(frozen=True, slots=True)
class Profiles:
    """`production`: a checkpoint every two minutes, exactly once, one at a time, each kept for an hour."""

    production: Mapping[str, str] = field(default_factory=_production)


profiles = Profiles()
