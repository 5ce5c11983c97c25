"""Options of a source or sink, named in any case as in Spark. Every problem is found here, before anything starts."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path

from tidegate.model.errors import OptionError
from tidegate.storage.store import local_path


class Options:
    """The options given to one connector, which says whom it belongs to in every message (`parquet sink`)."""

    def __init__(self, given: Mapping[str, str], *, owner: str, known: Collection[str]) -> None:
        self._owner = owner
        self._values = {name.lower(): str(value) for name, value in given.items()}
        for name in given:
            if name.lower() not in {option.lower() for option in known}:
                raise OptionError(
                    f"The {owner} has no option {name!r}{nearest(name, known)}: it knows {', '.join(sorted(known))}."
                )

    def text(self, name: str, *, default: str) -> str:
        return self._values.get(name.lower(), default)

    def required(self, name: str, *, example: str) -> str:
        value = self._values.get(name.lower(), "")
        if not value:
            raise OptionError(f"The {self._owner} needs the option {name!r}: write for example {example}.")
        return value

    def positive(self, name: str, *, default: int) -> int:
        value = self.optional_positive(name)
        return default if value is None else value

    def optional_positive(self, name: str) -> int | None:
        text = self._values.get(name.lower())
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) == 0:
            raise OptionError(f"Option {name!r} of the {self._owner} is {text!r}: write a whole number above 0.")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name, default=str(default)).strip().lower()
        if text not in ("true", "false"):
            raise OptionError(f"Option {name!r} of the {self._owner} is {text!r}: write true or false.")
        return text == "true"

    def only(self, name: str, accepted: Collection[str]) -> None:
        """For what Spark can do and Tidegate leaves at Spark's default."""
        text = self._values.get(name.lower())
        if text is not None and text.strip().lower() not in accepted:
            raise OptionError(
                f"Option {name!r} of the {self._owner} is {text!r}, but only {' or '.join(sorted(accepted))} is "
                f"supported: leave it out."
            )

    def path(self) -> Path:
        location = self.required("path", example="""option("path", "/data/folder")""")
        path = local_path(location)
        if path is None:
            raise OptionError(
                f"The path {location!r} of the {self._owner} is remote, and only local paths and file: are supported."
            )
        return path


def nearest(name: str, known: Collection[str]) -> str:
    """` (did you mean 'path'?)`, or nothing if no known name is close."""
    by_lower = {option.lower(): option for option in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[found[0]]!r}?)" if found else ""
