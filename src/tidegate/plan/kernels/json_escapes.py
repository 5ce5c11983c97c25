"""What a text needs to stand between the quotes of JSON, for a whole column, as Jackson writes it."""

import pyarrow as pa
import pyarrow.compute as pc

_MUST_ESCAPE = '["\\\\\\x00-\\x1f]'
_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def json_escaped(texts: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(texts, _MUST_ESCAPE), min_count=0).as_py():
        return texts
    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    for letter in map(chr, range(32)):
        if pc.any(pc.match_substring(texts, letter), min_count=0).as_py():
            texts = pc.replace_substring(texts, letter, _SHORT_ESCAPES.get(letter, f"\\u{ord(letter):04X}"))
    return texts
