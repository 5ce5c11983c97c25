"""How RocksDB is set up: bounded memory, no log of its own, small write buffers. Knows nothing of keys and values."""

from dataclasses import dataclass, field

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    UniversalCompactOptions,
    WriteBufferManager,
    WriteOptions,
)

# The part of the memory that what is not written out yet may take; the rest is for what was read.
_WRITE_SHARE = 0.25
# A snapshot waits until this much per state, at the most, is written out: small, so that it does not wait long.
_WRITE_BUFFER_BYTES = 4 << 20
# What a state with a few entries takes; the default is an eighth of the buffer, for each of many states.
_ARENA_BLOCK_BYTES = 64 << 10
# Keeps the reading of an absent key from touching its file, at 1.25 bytes for each key.
_BLOOM_BITS_PER_KEY = 10
# Of a part of an index or a filter.
_METADATA_BLOCK_BYTES = 4 << 10
# One for what is written out, one for merging: the slots of a machine have few cores between them.
_BACKGROUND_JOBS = 2
# Files of about a size are merged, so many at a time: what changed is written again two or three times, and not with
# all that its keys lie between, as levels do. Checkpoints store what was written. Too many runs make reading slow.
_MOST_RUNS = 12
_LEAST_MERGED_RUNS = 6
_INFO_LOG_BYTES = 1 << 20
# Each snapshot stores it: beyond this it is written anew, without the files that are gone.
_MANIFEST_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class RocksMemory:
    """What all instances of a slot share; its bound holds for all of them together."""

    memory_bytes: int
    cache: Cache = field(init=False)
    buffers: WriteBufferManager = field(init=False)

    def __post_init__(self) -> None:
        cache = Cache(self.memory_bytes)
        # Counted into the cache; and never stalling, because a stalled put would hold the interpreter's lock.
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(self.memory_bytes * _WRITE_SHARE), False, cache
        )
        object.__setattr__(self, "cache", cache)
        object.__setattr__(self, "buffers", buffers)

    def options(self) -> Options:
        """Of an instance, and of each column family in it."""
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
        # Merged files become as large as the state, and so would the one filter and the one index of each: read whole,
        # from the disk, for every key that is looked up once they do not fit into the cache. In parts, a few KiB are.
        blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
        blocks.set_partition_filters(True)
        blocks.set_metadata_block_size(_METADATA_BLOCK_BYTES)
        blocks.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_manager(self.buffers)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_arena_block_size(_ARENA_BLOCK_BYTES)
        merging = UniversalCompactOptions()
        merging.min_merge_width = _LEAST_MERGED_RUNS
        options.set_compaction_style(DBCompactionStyle.universal())
        options.set_universal_compaction_options(merging)
        options.set_level_zero_file_num_compaction_trigger(_MOST_RUNS)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_background_jobs(_BACKGROUND_JOBS)
        options.set_max_manifest_file_size(_MANIFEST_BYTES)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(_INFO_LOG_BYTES)
        options.set_stats_dump_period_sec(0)
        return options


def without_log() -> WriteOptions:
    """What is lost with the process is restored from a checkpoint, never from RocksDB's own log."""
    options = WriteOptions()
    # A property, which the package's type hints take for a method.
    setattr(options, "disable_wal", True)  # noqa: B010
    return options
