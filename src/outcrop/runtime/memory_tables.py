"""The tables of :mod:`outcrop.runtime.memory_plan`: every part that a budget is divided into, and who has which.

A constant is a part; those that several activities have are written once. :data:`ACTIVITIES` lists the tables.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from outcrop.runtime.memory_plan import Activity, Of, Part
from outcrop.runtime.pages import PAGE_BYTES

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_NONE, _ALL = Fraction(0), Fraction(1)

DEVICE_BATCHES = 2  # mini-batches on a GPU at a time: one trains, one arrives
BATCH_BUFFERS, MOST_BATCH_BUFFERS = 2, 4  # mini-batches in memory at a time: of every mode, of mode packed
ONLINE_BATCH_BUFFERS = (
    3  # in mode online, where it costs little: one is drawn, one is read, one is computed with
)


def _part(
    name: str, purpose: str, numerator: int, denominator: int = 1, of: Of = Of.FREE, **options: Any
) -> Part:
    return Part(name, purpose, Fraction(numerator, denominator), of, **options)


# What several activities have.
IO_BUFFERS = _part(
    "I/O buffers", "Reads and writes that are not aligned go through them.", 1, 16, Of.LIMIT, most=4 * _MIB
)
READ_SCRATCH = _part(
    "read scratch",
    "Pages that rows are read by, one row at a time.",
    1,
    32,
    Of.LIMIT,
    least=64 * _KIB,
    most=16 * _MIB,
)
ROW_CHECK = _part(
    "rows being compared",
    "Rows that come back from a GPU to be compared with their checksums (--paranoid).",
    1,
    64,
    Of.LIMIT,
    least=PAGE_BYTES,
    most=_MIB,
)
WRITE_BUFFER = _part(
    "write buffer",
    "Collects what is written to one array.",
    1,
    64,
    Of.LIMIT,
    least=16 * _KIB,
    most=_MIB,
    unit=PAGE_BYTES,
)
SMALL_TABLES = Part("small tables", "Small tables of loading, whatever the graph.", _NONE, least=_MIB)
BATCH_INDEX = Part(
    "structure of batches", "Graphs of the batches in the buffers, and where records are.", _NONE
)
BATCHES = Part(
    "batch buffers",
    "Mini-batches that are read or trained with, and the values of rows that are decoded.",
    _NONE,
)
FEATURES = Part("features", "All rows, in memory.", _NONE)
ROW_CACHE = Part("row cache", "The rows that are wanted most.", _ALL)

# Sampling.
SAMPLER = _part("batches being drawn", "Scratch memory of the mini-batches that are drawn.", 1, 2)
WAITING = _part("batches that wait", "Where lists are on disk, more batches are drawn together.", 1, 2)
MORE_WAITING = _part(
    "more batches that wait",
    "The same where batches are prepared and 8 MiB or more are free: nobody waits for the first of them.",
    1,
    2,
)
MORE_WAITING_FROM = 8 << 20
TOPOLOGY = _part("topology", "Neighbor lists: all in memory, or what reading them by pages takes.", 1, 2)
PAGE_SCRATCH = _part(
    "pages being read",
    "Where lists are on disk and pages are kept: reading more at a time is worth more than keeping pages.",
    1,
    2,
    Of.PART,
    most=16 * _MIB,
    within=TOPOLOGY.name,
)
LIST_SCRATCH = replace(
    PAGE_SCRATCH,
    purpose="Where lists are on disk and hot lists are cached: these are worth more than reading more at a time.",
    fraction=Fraction(1, 8),
)
LIST_STARTS = _part(
    "starts of lists",
    "Where lists begin, if half of what is left has room.",
    1,
    2,
    Of.REST,
    within=TOPOLOGY.name,
)
SPLIT_IDS = Part("ids of the splits", "Nodes that batches begin with.", _NONE)

# Planning.
PLAN_COUNTERS = _part("counters", "How many batches want each node.", 1, 3, least=64 * _KIB)
LAYOUT_SEARCH = Part("search of a layout", "What batches share on disk, where it is limited.", _ALL)
LAYOUT_IDS = _part(
    "ids of batches",
    "Nodes of batches that are kept, to be looked at again.",
    1,
    4,
    Of.PART,
    least=256 * _KIB,
    within=LAYOUT_SEARCH.name,
)
LAYOUT_TABLE = replace(
    LAYOUT_IDS, name="table of a segment", purpose="Counts within a segment, nodes by ranges."
)
SEARCH_TABLE = replace(
    LAYOUT_IDS, name="table of the search", purpose="Which nodes are wanted how often, sketched."
)

# Packing.
PASS = Part("a pass over the features", "Everything that packing holds.", _ALL)
PACK_CHUNK = _part(
    "features being read",
    "Two chunks: one is read while the other is scattered.",
    1,
    5,
    Of.PART,
    most=256 * _MIB,
    copies=2,
    within=PASS.name,
)
PACK_IDS = _part(
    "ids of the rows being read",
    "Ids of 8 bytes of a chunk's rows, in up to four buffers.",
    1,
    32,
    Of.PART,
    copies=4,
    within=PASS.name,
)
PACK_OUT = _part(
    "rows being written", "In up to four buffers.", 1, 16, Of.PART, most=32 * _MIB, copies=4, within=PASS.name
)
PACK_TABLES = _part(
    "tables of batches",
    "Where each batch's rows of each chunk go, and those that wait to be written together.",
    1,
    2,
    Of.REST,
    within=PASS.name,
)
PACK_GROUP = _part(
    "records being put in order",
    "What is read of a log of packing, what is made of it, and what is read next.",
    1,
    5,
    most=64 * _MIB,
    copies=3,
)
DISK_CACHE_GROUP = _part(
    "batches of the disk cache", "Batches whose rows in the disk cache are looked up together.", 1, 4
)
DISK_CACHE_BLOCK = _part(
    "block of the disk cache", "Rows that are put in order at a time.", 1, 16, Of.LIMIT, most=16 * _MIB
)

# Loading.
PACKED_BATCHES = _part(
    "batch buffers", "Two mini-batches, or up to four within half of the limit.", 1, 2, Of.LIMIT
)
DISK_CACHE_SCRATCH = replace(
    READ_SCRATCH, name="disk cache scratch", purpose="Pages that rows of the disk cache are read by."
)
BESIDE_GROWING = Fraction(1, 4)  # of a sampler beside buffers that grow to the size of batches
GROWING_SAMPLER = replace(SAMPLER, fraction=BESIDE_GROWING)
GROWING_WAITING = replace(WAITING, fraction=BESIDE_GROWING)
GROWING_TOPOLOGY = replace(TOPOLOGY, fraction=BESIDE_GROWING)
GROWING_CACHE = _part(
    "row cache",
    "Rows under a policy, where buffers still grow; of rows that are decoded less, as their values take more.",
    1,
    2,
)
CACHE_MARGIN = Part("margin", "Small tables that are made after a cache.", _NONE, least=64 * _KIB)
NEXT_USES = _part("next uses", "When rows are wanted again, while it is worked out: a window of nodes.", 1, 4)
PARTITIONS = _part("resident partitions", "Rows and lists of the partitions that are in memory.", 1, 2)
PARTITION_SAMPLER = _part(
    "batches of partitions", "Scratch memory of the mini-batches that are drawn among partitions.", 3, 4
)
GROWING_PARTITION_SAMPLER = replace(PARTITION_SAMPLER, fraction=BESIDE_GROWING)
ONLINE_SAMPLER = replace(SAMPLER, fraction=Fraction(2, 5))
ONLINE_WAITING = replace(WAITING, fraction=Fraction(2, 5))
ONLINE_TOPOLOGY = replace(TOPOLOGY, fraction=Fraction(2, 5))
ONLINE_SAMPLER_LAST = replace(SAMPLER, fraction=Fraction(4, 5))
ONLINE_WAITING_LAST = replace(WAITING, fraction=Fraction(4, 5))
ONLINE_TOPOLOGY_LAST = replace(TOPOLOGY, fraction=Fraction(4, 5))
ACCESS_COUNTERS = _part(
    "counters", "How often rows and lists are wanted; given back before caches are filled.", 1, 4
)
THIRD_BUFFER = _part("batch buffers", "Two mini-batches, or three within half of what is free.", 1, 2)
CACHE_INDEX = Part("index of the cache", "Which rows and lists are cached.", _NONE)
ONLINE_CACHE = Part("caches", "The rows and neighbor lists that are wanted most.", _ALL)
DEVICE_CACHE_IDS = _part(
    "ids of rows on the GPU",
    "Of rows that a GPU caches, while they are read.",
    1,
    2,
    Of.PART,
    within=ONLINE_CACHE.name,
)
DEVICE_CACHE_CHUNK = _part(
    "rows on their way to the GPU", "Rows that a GPU caches pass through host memory, a part at a time.", 1, 2
)
# Importing.
READ_BLOCK = _part(
    "block being read", "What is read of a source at a time.", 1, 32, least=64 * _KIB, most=4 * _MIB
)
SORT_RESERVE = Part("beside sorting", "Writing, and a block, while edges are sorted.", _NONE, least=_MIB)
EDGE_SORT = _part("sorting edges", "Edges are sorted in pieces of this size, and merged.", 1, 2, most=_GIB)
FEATURE_RANGE = _part(
    "features put in order", "Rows of a range of nodes, as they come and by node id.", 1, 8, copies=2
)
EDGE_ROWS = _part(
    "rows of edges put in order",
    "Rows of edges of a range, or write buffers of as many ranges as there are; more, where that is too little.",
    1,
    2,
)
STRIPE_CHUNK = _part("chunk of a stripe", "Rows that are divided among disks at a time.", 1, 4, most=4 * _MIB)
VERIFY_BUFFER = _part(
    "pages being compared",
    "Pages whose checksums are compared.",
    1,
    2,
    least=PAGE_BYTES,
    most=4 * _MIB,
    unit=PAGE_BYTES,
)

# Pools of batches beside training. What evaluation has is the least of EVALUATIONS that is enough.
POOL_PREPARE = _part("preparing", "The process that prepares the next pool.", 1, 4, Of.LIMIT)
EVALUATIONS = tuple(
    _part(
        "evaluation",
        "Validation and test: the least of 1/8, 1/6, 1/4 and 1/3 that does.",
        1,
        divisor,
        Of.LIMIT,
    )
    for divisor in (8, 6, 4, 3)
)
POOL_SPARE = _part("spare", "Stays free.", 1, 32, Of.LIMIT)
POOL_TRAIN = Part("training", "Loading the batches that are trained with.", _ALL)
# Of the disk that pools and spools may take.
EVALUATION_DISK = _part("evaluation's disk", "The batches of validation and test, on disk.", 1, 2, Of.LIMIT)
SPOOL_DISK = _part("a spool's disk", "What mode online writes in the order of use.", 1, 2, Of.LIMIT)
POOL_DISK = _part("a pool's disk", "A pool, on disk, while another is prepared.", 1, 2)

# Inference, layer by layer. Parts and spans are of what the fixed parts leave.
INFER_IO_BUFFERS = replace(IO_BUFFERS, least=64 * _KIB)
INFER_WRITE_BUFFER = replace(WRITE_BUFFER, unit=1)
SCALE_SCRATCH = replace(READ_SCRATCH, name="scale scratch", purpose="Pages that degrees are read by.")
SMALL_TABLES_OF_A_LAYER = Part("small tables", "Small tables of a layer.", _NONE, least=256 * _KIB)
LAYER = Part("a layer", "What a layer computes with.", _ALL)
LAYER_PARTS = _part("parts", "Input rows that are summed up at a time.", 1, 4, Of.PART, within=LAYER.name)
LAYER_SPANS = _part("spans", "Outputs and edges of consecutive targets.", 1, 2, Of.PART, within=LAYER.name)
LAYER_CACHE = replace(ROW_CACHE, of=Of.REST, within=LAYER.name)
COLUMN_BLOCKS = _part(
    "blocks", "Blocks of rows that are read, summed up and written.", 1, 4, Of.PART, within=LAYER.name
)
COLUMN_EDGES = _part("edges", "Edges that are summed up at a time.", 1, 16, Of.PART, within=LAYER.name)
LIST_CHUNK = _part(
    "chunks of lists",
    "Neighbor lists that are read at a time.",
    1,
    64,
    Of.PART,
    least=4 * _KIB,
    most=_MIB,
    unit=4 * _KIB,
    copies=4,
    within=LAYER.name,
)
SOURCE_COLUMNS = _part("columns", "Columns of what all sources give.", 1, of=Of.REST, within=LAYER.name)
EDGE_COUNTS = _part("edges being counted", "Edges that are counted at a time.", 1, 4, Of.LIMIT)
USES = _part("uses of nodes", "How many edges lead from each node, where there is room.", 1, 4, Of.LIMIT)
HOT_USES = _part("uses while the hottest are found", "How often each row is wanted.", 1, 2, Of.LIMIT)
EXPORT_CHUNK = _part(
    "chunk being exported", "Rows that are written at a time.", 1, 8, Of.LIMIT, most=4 * _MIB
)

# Embeddings.
BUCKET_BLOCK = replace(READ_BLOCK, purpose="Edges that are read at a time.", most=8 * _MIB)
BUCKET_SORT = _part("sorting buckets", "Edges are sorted into buckets in pieces of this size.", 1, 2)
HELD_EDGES = _part("edges", "All training edges, if they fit here.", 1, 8)
WHOLE_TABLE = _part("partitions", "All partitions, if they fit here; else as many as an order has.", 9, 10)
RANK_SCORES = _part("edges being ranked", "Scores of edges that are evaluated at a time.", 1, 4)
EMBEDDING_CHUNK = _part(
    "vectors being exported", "Vectors that are written at a time.", 1, 2, most=256 * _MIB
)
SLICE = Part("a slice", "The slice of the table that is read.", _NONE)
SLAB_STAGING = _part(
    "slabs on their way", "Slabs pass through it where rings move them.", 1, 2, most=8 * _MIB
)

# On a GPU, of its own limit; topology staging is of the host's.
RING_BUFFERS = _part(
    "batches read by rings", "Batch buffers on the GPU, and what is trained with beside them.", 1, 2
)
DEVICE_DRAWN = _part("hops being drawn", "Room for the most that a hop can have, drawn without asking.", 1, 2)
DEVICE_SCORES = _part("scores", "Scores of a batch of edges, kept for the gradients.", 1, 8)
TOPOLOGY_STAGING = _part(
    "topology staging", "Pinned memory that lists are copied through.", 1, 8, least=64 * _KIB, most=16 * _MIB
)

_DRAWN = (SPLIT_IDS, GROWING_SAMPLER, GROWING_WAITING, GROWING_TOPOLOGY, PAGE_SCRATCH, LIST_STARTS)

ACTIVITIES: dict[str, Activity] = {
    activity.name: activity
    for activity in (
        Activity("importing edges", (WRITE_BUFFER, SORT_RESERVE, EDGE_SORT, READ_BLOCK)),
        Activity("importing features", (WRITE_BUFFER, READ_BLOCK, FEATURE_RANGE)),
        Activity("importing rows of edges", (EDGE_ROWS, READ_BLOCK)),
        Activity("striping", (STRIPE_CHUNK,)),
        Activity("verifying", (VERIFY_BUFFER,)),
        Activity("comparing the rows of batches on a GPU", (ROW_CHECK,)),
        Activity(
            "sampling",
            (SPLIT_IDS, SAMPLER, WAITING, MORE_WAITING, TOPOLOGY, PAGE_SCRATCH, LIST_STARTS, WRITE_BUFFER),
        ),
        Activity(
            "planning", (WRITE_BUFFER, PLAN_COUNTERS, LAYOUT_SEARCH, LAYOUT_IDS, LAYOUT_TABLE, SEARCH_TABLE)
        ),
        Activity("packing", (PASS, PACK_CHUNK, PACK_IDS, PACK_OUT, PACK_TABLES)),
        Activity("packing, to put records in order", (PACK_GROUP,)),
        Activity("packing the disk cache", (DISK_CACHE_BLOCK, DISK_CACHE_GROUP)),
        Activity(
            "loading packed",
            (
                IO_BUFFERS,
                READ_SCRATCH,
                DISK_CACHE_SCRATCH,
                SMALL_TABLES,
                BATCH_INDEX,
                PACKED_BATCHES,
                ROW_CACHE,
            ),
        ),
        Activity("loading memory", (IO_BUFFERS, BATCHES, FEATURES)),
        Activity("loading memory, drawn", (IO_BUFFERS, FEATURES, *_DRAWN, BATCHES)),
        Activity("loading memmap", (IO_BUFFERS, BATCHES)),
        Activity("loading memmap, drawn", (IO_BUFFERS, *_DRAWN, BATCHES)),
        Activity("loading ondisk", (IO_BUFFERS, BATCHES, READ_SCRATCH)),
        Activity("loading ondisk, drawn", (IO_BUFFERS, READ_SCRATCH, *_DRAWN, BATCHES)),
        Activity("loading dynamic", (IO_BUFFERS, BATCHES, READ_SCRATCH, CACHE_MARGIN, ROW_CACHE)),
        Activity(
            "loading dynamic, drawn",
            (IO_BUFFERS, READ_SCRATCH, *_DRAWN, CACHE_MARGIN, GROWING_CACHE, BATCHES),
        ),
        Activity("loading belady", (IO_BUFFERS, BATCHES, READ_SCRATCH, NEXT_USES, CACHE_MARGIN, ROW_CACHE)),
        Activity(
            "loading partition",
            (
                IO_BUFFERS,
                BATCHES,
                READ_SCRATCH,
                *(SPLIT_IDS, SAMPLER, WAITING, TOPOLOGY, PAGE_SCRATCH, LIST_STARTS),
                PARTITIONS,
                PARTITION_SAMPLER,
            ),
        ),
        Activity(
            "loading partition, drawn",
            (IO_BUFFERS, READ_SCRATCH, *_DRAWN, PARTITIONS, GROWING_PARTITION_SAMPLER, BATCHES),
        ),
        Activity(
            "loading online, drawn",
            (
                IO_BUFFERS,
                READ_SCRATCH,
                SPLIT_IDS,
                ONLINE_SAMPLER,
                ONLINE_WAITING,
                ONLINE_TOPOLOGY,
                LIST_SCRATCH,
                LIST_STARTS,
                THIRD_BUFFER,
                CACHE_INDEX,
                ONLINE_CACHE,
                DEVICE_CACHE_IDS,
            ),
        ),
        Activity(
            "loading online",
            (
                IO_BUFFERS,
                READ_SCRATCH,
                THIRD_BUFFER,
                SPLIT_IDS,
                ONLINE_SAMPLER_LAST,
                ONLINE_WAITING_LAST,
                ONLINE_TOPOLOGY_LAST,
                LIST_SCRATCH,
                LIST_STARTS,
                CACHE_INDEX,
                ONLINE_CACHE,
                DEVICE_CACHE_IDS,
            ),
        ),
        Activity("mode online, counting what is wanted", (ACCESS_COUNTERS,)),
        Activity("pools beside training", (POOL_PREPARE, EVALUATIONS[0], POOL_SPARE, POOL_TRAIN)),
        Activity("the disk of pools", (EVALUATION_DISK, POOL_DISK)),
        Activity("the disk of a spool", (EVALUATION_DISK, SPOOL_DISK)),
        Activity(
            "inference, layer by layer",
            (
                INFER_IO_BUFFERS,
                READ_SCRATCH,
                SCALE_SCRATCH,
                INFER_WRITE_BUFFER,
                SMALL_TABLES_OF_A_LAYER,
                LAYER,
                LAYER_PARTS,
                LAYER_SPANS,
                LAYER_CACHE,
            ),
        ),
        Activity(
            "inference, by columns",
            (
                INFER_IO_BUFFERS,
                replace(INFER_WRITE_BUFFER, copies=2),
                SMALL_TABLES_OF_A_LAYER,
                LAYER,
                COLUMN_BLOCKS,
                COLUMN_EDGES,
                LIST_CHUNK,
                SOURCE_COLUMNS,
            ),
        ),
        Activity("inference, counting edges", (EDGE_COUNTS, USES, WRITE_BUFFER)),
        Activity("inference, finding the hottest rows", (HOT_USES,)),
        Activity("inference, sampled", (IO_BUFFERS, READ_SCRATCH, *_DRAWN, BATCHES)),
        Activity("exporting predictions", (EXPORT_CHUNK, READ_SCRATCH)),
        Activity("preparing embeddings", (WRITE_BUFFER, BUCKET_BLOCK, BUCKET_SORT)),
        Activity("training embeddings", (HELD_EDGES, WHOLE_TABLE)),
        Activity("evaluating embeddings", (RANK_SCORES,)),
        Activity("exporting embeddings", (SLICE, EMBEDDING_CHUNK)),
        Activity("moving embeddings by rings", (SLAB_STAGING,)),
        Activity("copying lists to a GPU", (TOPOLOGY_STAGING,)),
        Activity("filling a GPU's cache", (DEVICE_CACHE_CHUNK,)),
        Activity("a GPU's memory: mode online by rings", (RING_BUFFERS,)),
        Activity("a GPU's memory: drawing", (DEVICE_DRAWN,)),
        Activity("a GPU's memory: embeddings", (DEVICE_SCORES,)),
    )
}
