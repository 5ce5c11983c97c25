"""Texts that are JSON, nearly JSON, and none, for comparisons with Spark. Every one comes from a seed."""

import random

SCALARS = [
    "0", "-0", "1", "-7", "127", "200", "2147483648", "99999999999999999999", "1.0", "1.5", "-0.0", "1e2", "1E+3",
    "0.1", "1e400", "2.0E-3", "2.82879384806159008E17", "1.10", "123456789.125", "true", "false", "null", "NaN",
    "Infinity", "-INF", "+INF", "-Infinity", '"NaN"', '"Infinity"', '""', '"x"', '" y "', '"1"', '"1,000.5"', '"true"',
    '"2024-01-02"', '"2024-01-02T03:04:05Z"', '"2024-02-30"', '"2024-01-02 03:04:05.123456"', '"123"', "'q'",
    "'q\"r'", '"\\u00e9\\ud83d\\ude00\\n"', '"é😀"', '"\\ud800"', '"a\\/b\\\\"', '"\\x"', '"tab\there"', "01", "1.",
    "-",     ".5", "+1", "tru", "nul", "abc", "1x", "'open", '"open', "{}", "[]",
]  # fmt: skip
NAMES = ["a", "b", "c", "d", "e", "t", "m", "x", "A", "value"]
EDGES = [
    "", " ", "\n", "null", "1", '"s"', "true", "[", "{", "]", "}", "{}", "[]", " {} ", "[{}]", "[1, 2]", "[null]",
    '{"a":1}}', '{"a":1} x', '{"a":1}{"a":2}', '{"a":1,}', '{"a" 1}', "{'a':1}", '{a:1}', '{"a":1 "b":2}',
    '[{"a":1},{"a":"x"}]', '[{"a":1},null]', '[1,{"a":1}]', '{"a":\n1}', '{"a":"x\ny"}', '\ufeff{"a":1}', '{"a":1}\x00',
    '{"a":[1,[2,[3]]]}', '{"b":{"a":{"a":1}}}', "//c\n{}", "nullx", "{\"a\":1,\"a\":2}", '{"a":null,"a":2}',
]  # fmt: skip


def texts(seed: int, count: int) -> list[str | None]:
    random_ = random.Random(seed)
    made = [None if random_.random() < 0.01 else _text(random_) for _ in range(count - len(EDGES))]
    return [*EDGES, *made]


def _text(random_: random.Random) -> str:
    text = _object(random_, 0) if random_.random() < 0.85 else _array(random_, 0)
    chance = random_.random()
    at = random_.randrange(len(text))
    if chance < 0.08:
        return text[:at] + text[at + 1 :]
    if chance < 0.14:
        return text[:at]
    if chance < 0.2:
        return text[:at] + random_.choice('{}[]",:x1\n\x01\\é ') + text[at:]
    return text + random_.choice([" x", "}", "\n"]) if chance < 0.24 else text


def _value(random_: random.Random, depth: int) -> str:
    chance = random_.random()
    if depth < 3 and chance < 0.2:
        return _object(random_, depth + 1)
    if depth < 3 and chance < 0.4:
        return _array(random_, depth + 1)
    return random_.choice(SCALARS if random_.random() < 0.5 else SCALARS[:40])


def _object(random_: random.Random, depth: int) -> str:
    names = [random_.choice(NAMES) for _ in range(random_.randint(0, 4))]
    comma = random_.choice([",", ", ", " ,\n"])
    return "{" + comma.join(f'"{name}":{_value(random_, depth)}' for name in names) + "}"


def _array(random_: random.Random, depth: int) -> str:
    return "[" + ",".join(_value(random_, depth) for _ in range(random_.randint(0, 3))) + "]"
