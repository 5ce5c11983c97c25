"""The expressions that test_every_expression asks Spark and the kernels about, by family."""

FLAT: dict[str, list[str]] = {
    "arithmetic": [
        "l + m", "l - m", "l * m", "i + j", "i - j", "i * j", "h + h", "y * y", "d + e", "d * e", "f - f", "d / e",
        "l / m", "i div j", "l div m", "l % m", "i % j", "d % e", "pmod(l, m)", "pmod(i, j)", "pmod(d, e)", "-l",
        "-i", "-y", "-d", "abs(l)", "abs(i)", "abs(d)", "l & m", "i | j", "l ^ m", "~i", "greatest(l, m)",
        "least(i, j, 3)", "greatest(d, e)", "least(f, 1.5F)", "greatest(s, t)", "try_add(l, m)", "try_divide(l, m)",
        "try_subtract(i, j)", "try_multiply(l, m)", "shiftleft(i, 3)", "shiftright(l, 5)", "shiftrightunsigned(l, 5)",
        "bit_count(l)", "i + cast(h as int)", "l + i", "d + l", "positive(d)", "try_mod(l, m)",
    ],
    "mathematics": [
        "round(d, 2)", "bround(d, 1)", "round(l, -2)", "ceil(d)", "floor(d)", "ceil(dec)", "floor(dec)", "sqrt(d)",
        "signum(d)", "rint(d)", "exp(d)", "ln(d)", "pow(d, 2)", "sin(d)", "cbrt(d)", "log10(d)", "hypot(d, e)",
        "conv(s, 10, 16)", "factorial(i)", "degrees(d)", "radians(d)", "isnan(d)", "nanvl(d, e)",
        "width_bucket(d, 0, 10, 5)",
    ],
    "comparison": [
        "l = m", "d = e", "f = f", "s = t", "b = c", "ts = ts2", "dt = dt2", "n = n2", "dec = dec2", "bin = bin",
        "l <=> m", "d <=> e", "s <=> t", "b <=> c", "l < m", "l <= m", "l > m", "l >= m", "d < e", "d <= e", "d > e",
        "d >= e", "s < t", "b < c", "dec < dec2", "ts < ts2", "dt >= dt2", "n > n2", "ts > dt", "ts = n", "dt < n",
        "i = l", "h < d", "l between m and 7", "ts between dt and n", "bin < bin", "i <> j",
    ],
    "null logic": [
        "b and c", "b or c", "not b", "b and l > 0", "l is null", "s is not null", "coalesce(l, m, 0)",
        "coalesce(s, t)", "coalesce(ts, ts2)", "nvl(d, -1.0D)", "nullif(l, m)", "ifnull(b, c)", "nvl2(l, m, i)",
        "l in (1, 7, 12)", "l in (1, null, 12)", "s in ('1', 'abc')", "d in (0.0D, double('nan'), 1.5D)",
        "l in (m, i, 5)", "dt in (date'1970-01-01', date'2024-03-10')", "not (b and c)", "b is true", "zeroifnull(l)",
        "nullifzero(l)",
    ],
    "conditionals": [
        "if(l > 0, m, i)", "if(b, d, e)", "if(m <> 0, l div m, 0)", "case when b then l when c then m else 0 end",
        "case when l > 5 then 'big' when l < 0 then 'small' end",
        "case when m = 0 then 0 when m > 0 then l div m else i end", "m <> 0 and l div m > 1", "m = 0 or l % m = 1",
        "coalesce(l, 10 div m)", "if(b, ts, ts2)", "if(c, dt, dt2)", "case l when 1 then s when 2 then t end",
    ],
    "casts": [
        "cast(l as int)", "cast(l as short)", "cast(l as byte)", "cast(i as long)", "cast(i as byte)",
        "cast(l as double)", "cast(l as float)", "cast(d as float)", "cast(d as long)", "cast(d as int)",
        "cast(d as byte)", "cast(f as int)", "cast(b as int)", "cast(b as string)", "cast(l as boolean)",
        "cast(d as boolean)", "cast(l as string)", "cast(s as int)", "cast(s as long)", "cast(s as boolean)",
        "cast(s as double)", "cast(s as decimal(10,2))", "cast(d as string)", "cast(f as string)",
        "cast(dec as string)", "cast(dec as double)", "cast(dec as int)", "cast(l as decimal(20,0))",
        "cast(l as decimal(10,2))", "cast(d as decimal(10,2))", "cast(dec as decimal(12,4))",
        "cast(dec2 as decimal(10,2))", "cast(s as binary)", "cast(bin as string)", "try_cast(s as int)",
        "try_cast(l as byte)", "try_cast(s as double)",
    ],
    "time casts": [
        "cast(ts as date)", "cast(dt as timestamp)", "cast(ts as timestamp_ntz)", "cast(n as timestamp)",
        "cast(n as date)", "cast(dt as timestamp_ntz)", "cast(ts as long)", "cast(i as timestamp)",
        "cast(l as timestamp)", "cast(ts as string)", "cast(dt as string)", "cast(n as string)", "cast(w as date)",
        "cast(w as timestamp)", "cast(w as timestamp_ntz)", "cast(ts as double)", "cast(d as timestamp)",
        "try_cast(w as date)",
    ],
    "strings": [
        "s || t", "concat(s, '-', t)", "length(t)", "t like 'a%'", "t like '%b%'", "t like 'a_c'",
        "startswith(t, 'a')", "endswith(t, 'c')", "contains(t, 'ß')", "contains(s, t)", "upper(t)", "lower(t)",
        "trim(s)", "ltrim(s)", "rtrim(s)", "trim('a' from t)", "substring(t, 2, 3)", "substring(t, -2)",
        "substring(t, i, j)", "left(t, 2)", "right(t, 2)", "substring_index(w, '-', 2)", "instr(t, 'b')",
        "locate('a', t)", "repeat(t, 2)", "replace(t, 'a', 'xx')", "reverse(t)", "lpad(t, 5, '*')", "rpad(t, 5, '*')",
        "concat_ws(',', s, t)", "translate(t, 'ab', 'xy')", "initcap(t)", "ascii(t)", "chr(i)", "octet_length(t)",
        "bit_length(t)", "base64(bin)", "unbase64('YWJj')", "hex(l)", "hex(bin)", "hex(t)", "format_number(d, 2)",
        "levenshtein(s, t)", "soundex(t)", "split(w, '-')", "char_length(t)", "position('b' in t)",
        "overlay(t placing 'xx' from 2)", "bin(l)", "encode(t, 'utf-8')", "decode(bin, 'utf-8')", "ilike(t, 'A%')",
        "luhn_check(s)", "space(3)", "elt(2, s, t)", "find_in_set(s, '1,2,abc')", "split_part(w, '-', 1)",
    ],
    "regex": [
        "t rlike 'a+'", "t rlike '^[a-c]*$'", "regexp_extract(w, '([0-9]+)-([0-9]+)', 2)",
        "regexp_replace(t, '[0-9]', 'x')", "regexp_count(t, 'a')", "regexp_like(w, '^[0-9]{4}-')", "t rlike '(?i)A'",
        "regexp_instr(t, 'b')", "regexp_substr(w, '[0-9]+')", "t like 'a\\\\_%'",
    ],
    "decimals": [
        "dec + dec", "dec - dec2", "dec * dec", "dec / dec2", "dec % 7", "-dec", "abs(dec)", "dec > 1.5", "dec = 0",
        "round(dec, 1)", "dec + l", "dec2 * 1.5", "greatest(dec, 1.00)", "dec in (1.50, 2.25)", "coalesce(dec, 0.00)",
        "pmod(dec, 3)", "dec div 2", "try_add(dec2, dec2)",
    ],
    "dates": [
        "year(dt)", "month(dt)", "day(dt)", "quarter(dt)", "dayofweek(dt)", "weekday(dt)", "dayofyear(dt)",
        "weekofyear(dt)", "extract(yearofweek from dt)", "extract(dow_iso from dt)", "dayname(dt)", "monthname(dt)",
        "date_add(dt, i)", "date_sub(dt, h)", "dt + 1", "dt - 7", "datediff(dt, dt2)", "add_months(dt, i)",
        "add_months(dt, 1)", "last_day(dt)", "next_day(dt, 'Mon')", "next_day(dt, 'SUNDAY')", "next_day(dt, s)",
        "trunc(dt, 'week')", "trunc(dt, 'MM')", "trunc(dt, 'quarter')", "trunc(dt, 'YEAR')", "trunc(dt, s)",
        "make_date(i, j, h)", "make_date(2024, j, h)", "unix_date(dt)", "date_from_unix_date(i)", "dt - dt2",
        "dt - dt2 > interval 3 day", "dt + interval 2 month", "dt - interval 1 year", "dt + interval 3 day",
        "dt + interval 2 hour", "dt + make_interval(0, 1, 0, 2)", "extract(day from dt - dt2)", "year(ts)",
        "month(n)", "dateadd(DAY, 2, dt)", "datediff(DAY, ts, ts2)",
    ],
    "timestamps": [
        "hour(ts)", "minute(ts)", "second(ts)", "extract(second from ts)", "hour(n)", "minute(n)",
        "extract(second from n)", "date_trunc('YEAR', ts)", "date_trunc('quarter', ts)", "date_trunc('MM', ts)",
        "date_trunc('WEEK', ts)", "date_trunc('DAY', ts)", "date_trunc('HOUR', ts)", "date_trunc('minute', ts)",
        "date_trunc('SECOND', ts)", "date_trunc('MILLISECOND', ts)", "date_trunc('MICROSECOND', ts)",
        "date_trunc('DAY', n)", "months_between(ts, ts2)", "months_between(ts, ts2, false)",
        "months_between(dt, dt2)", "make_timestamp(2024, j, h, y, i, 1.5)", "make_timestamp(2024, 3, 10, 2, 30, dec)",
        "make_timestamp_ntz(i, 2, 29, h, y, 60.0)", "timestamp_seconds(l)", "timestamp_seconds(i)",
        "timestamp_seconds(d)", "timestamp_seconds(dec)", "timestamp_millis(l)", "timestamp_micros(l)",
        "unix_seconds(ts)", "unix_millis(ts)", "unix_micros(ts)", "unix_timestamp(ts)", "unix_timestamp(dt)",
        "unix_timestamp(n)", "to_utc_timestamp(ts, 'Europe/Berlin')", "from_utc_timestamp(ts, 'America/New_York')",
        "to_utc_timestamp(ts, '+05:30')", "from_utc_timestamp(ts, s)",
        "convert_timezone('Europe/Berlin', 'Asia/Tokyo', n)", "dayofyear(ts)", "to_date(ts)", "date_part('HOUR', ts)",
        "to_timestamp(dt)", "extract(week from ts)",
    ],
    "intervals": [
        "ts + interval 1 day", "ts - interval 1 day", "ts + interval 25 hour", "ts + interval 1 day 2 hour",
        "n + interval 1 day", "n - interval 90 second", "ts + interval 1 month", "ts - interval 1 year",
        "n + interval 13 month", "ts - ts2", "n - n2", "ts - n", "ts + make_interval(0, 1, 0, 1, 2)",
        "timestampadd(HOUR, i, ts)", "timestampadd(DAY, i, ts)", "timestampadd(MONTH, h, ts)",
        "timestampadd(YEAR, y, n)", "timestampadd(MICROSECOND, l, ts)", "timestampadd(WEEK, y, ts)",
        "timestampadd(QUARTER, y, ts)", "timestampdiff(MICROSECOND, ts, ts2)", "timestampdiff(SECOND, ts, ts2)",
        "timestampdiff(HOUR, ts, ts2)", "timestampdiff(DAY, ts, ts2)", "timestampdiff(WEEK, ts, ts2)",
        "timestampdiff(MONTH, ts, ts2)", "timestampdiff(QUARTER, ts, ts2)", "timestampdiff(YEAR, n, n2)",
        "extract(hour from ts - ts2)", "extract(minute from ts - ts2)", "extract(second from ts - ts2)",
        "(ts - ts2) < interval 1 day", "(ts - ts2) + interval 1 day", "-(ts - ts2)", "(ts - ts2) * 2",
        "(ts - ts2) / 3", "interval 1 day * i", "ts + (ts2 - ts)", "make_dt_interval(y, h)",
    ],
    "time formats": [
        "date_format(ts, 'yyyy-MM-dd HH:mm:ss')", "date_format(ts, 'y/M/d H:m:s')", "date_format(n, 'dd MMM yyyy')",
        "date_format(ts, 'E, yyyy')", "date_format(ts, \"yyyy-MM-dd'T'HH:mm:ss.SSS\")", "date_format(ts, 'SSSSSS')",
        "date_format(dt, 'yyyyMMdd')", "date_format(ts, 'a')", "date_format(ts, 'VV')", "date_format(ts, s)",
        "from_unixtime(l)", "from_unixtime(i, 'yyyy-MM')", "unix_timestamp(w)", "unix_timestamp(w, 'yyyy-MM-dd')",
        "to_timestamp(w, 'yyyy-MM-dd HH:mm:ss')", "to_timestamp(w, 'yyyy-MM-dd')", "to_date(w, 'yyyy-MM-dd')",
        "to_date(w, 'd/M/yyyy')", "to_unix_timestamp(w, 'yyyy-M-d')", "try_to_timestamp(w, 'yyyy-MM-dd')",
        "to_timestamp(w, \"yyyy-MM-dd'T'HH:mm\")", "to_timestamp(w, 'yyyyMMdd')", "to_timestamp_ntz(w, 'yyyy-MM-dd')",
    ],
    "hashes": [
        "md5(s)", "sha(t)", "sha1(bin)", "sha2(t, 256)", "sha2(t, 512)", "sha2(t, 0)", "sha2(t, 224)", "sha2(t, 1)",
        "crc32(t)", "crc32(bin)", "hash(l)", "hash(i, h, y)", "hash(b)", "hash(d, f)", "hash(s)", "hash(bin)",
        "hash(w, t, l)", "hash(ts, dt, n)", "hash(dec)", "hash(dec2)", "hash(ts - ts2)", "xxhash64(l)",
        "xxhash64(i, h, y)", "xxhash64(b)", "xxhash64(d, f)", "xxhash64(s)", "xxhash64(bin)", "xxhash64(w, t, l)",
        "xxhash64(ts, dt, n)", "xxhash64(dec)", "xxhash64(long_text)", "hash(long_text)", "hash(l, null)",
        "xxhash64(cast(null as string), t)",
    ],
    "never the same twice": [
        "uuid()", "rand()", "randn(3)", "monotonically_increasing_id()",
    ],
}  # fmt: skip

NESTED: dict[str, list[str]] = {
    "arrays": [
        "size(arr)", "arr[0]", "element_at(arr, 1)", "get(arr, 2)", "array_contains(arr, 3L)",
        "array_position(arr, 3L)", "array_min(arr)", "array_max(arr)", "sort_array(arr)", "sort_array(words, false)",
        "array_distinct(arr)", "array_union(arr, arr)", "array_intersect(arr, array(1L, 2L))",
        "array_except(arr, array(1L))", "slice(arr, 1, 2)", "concat(arr, arr)", "flatten(array(arr, arr))",
        "reverse(arr)", "array_join(words, ',')", "array_repeat(l, 2)", "sequence(1, 3)",
        "arrays_overlap(arr, array(1L))", "arrays_zip(arr, words)", "array(l, 1L)", "arr is null",
        "transform(arr, x -> x + 1)", "filter(arr, x -> x > 1)", "exists(arr, x -> x = 1)", "forall(arr, x -> x > 0)",
        "aggregate(arr, 0L, (a, x) -> a + x)", "transform(words, x -> concat(x, '!'))", "array_remove(arr, 1L)",
        "array_append(arr, 5L)", "array_compact(arr)", "cardinality(arr)", "try_element_at(arr, 9)", "hash(arr)",
        "array_size(words)", "array_insert(arr, 1, 9L)", "shuffle(arr)", "cast(arr as array<int>)",
    ],
    "structs": [
        "st.a", "st.b", "struct(l, t)", "named_struct('x', l, 'y', t)", "st is null", "if(l > 0, st, null)",
        "st = st", "coalesce(st, named_struct('a', 1L, 'b', 'x'))", "hash(st)", "named_struct('s', st)", "st.a + l",
        "cast(st as struct<a:int,b:string>)",
    ],
    "maps": [
        "mp['a']", "map_keys(mp)", "map_values(mp)", "map_entries(mp)", "size(mp)", "map('a', l)",
        "element_at(mp, 'b')", "map_contains_key(mp, 'a')", "map_from_arrays(array('a'), array(l))",
        "map_concat(mp, map('z', 1L))", "map_filter(mp, (k, v) -> v > 1)", "transform_values(mp, (k, v) -> v + 1)",
        "mp is null", "str_to_map(t)",
    ],
    "json": [
        "get_json_object(js, '$.a')", "get_json_object(js, '$.b[0]')", "from_json(js, 'a INT')",
        "from_json(js, 'a STRING, b ARRAY<INT>')", "to_json(st)", "to_json(arr)", "json_array_length(js)",
        "to_json(mp)", "json_object_keys(js)", "schema_of_json('{}')",
    ],
}  # fmt: skip

# They drop the rows that have no time, so that each needs a query of its own.
WINDOWS: list[str] = [
    "window_time(window(ts, '10 minutes'))", "window_time(window(n, '1 day', '1 day', '3 hours'))",
    "window(ts, '10 minutes').start", "window(ts, '10 minutes')", "window(ts, '10 minutes', '5 minutes')",
    "window(n, '1 hour').end",
]  # fmt: skip

# The optimiser would fix them at the time of planning.
FIXED_WHEN_PLANNED: list[str] = [
    "current_timestamp() > ts", "localtimestamp() > n", "now()", "current_date() = dt",
]  # fmt: skip
