/* Linear maps of packed weights; see linear.c. */
#pragma once
#include "formats.h"

#define HIDDEN __attribute__((visibility("hidden")))

#ifdef BFLOAT16
#define OF_ENTRIES OF_BFLOAT16
#else
#define OF_ENTRIES OF_FLOAT32
#endif

/* `WeightInC` of packing.py: a packed weight [outputs, inputs]. */
struct weight {
    struct layout layout;
    const char *blocks;
    int64_t outputs, inputs;
    const int32_t *order; /* of the inputs, in which their weights are stored; NULL: as those of rows */
};

/* Where the rows of a result lie: `stride` entries apart. */
struct result {
    entry *rows;
    long stride;
};

INLINE long blocks_of(long outputs) { return (outputs + BLOCK - 1) / BLOCK; }

INLINE long padded_inputs(struct weight of) { return padded(of.layout, of.inputs); }

INLINE long packed_bytes(struct weight of) {
    return blocks_of(of.outputs) * block_bytes(of.layout, padded_inputs(of));
}

INLINE char *block_at(struct weight of, long block) {
    return (char *)of.blocks + block * block_bytes(of.layout, padded_inputs(of));
}

#define SLAB 240 /* rows that are packed and mapped together, at most */

/* Writes a slab of rows of x [inputs], `stride` entries apart, in the order in which tiles of a weight read
them: floats, or pairs of bfloat16 whose upper half is the first, at most [rows, padded_inputs] numbers.
Row i is that at sources[i], or i where sources is NULL. */
HIDDEN void pack_rows(const entry *x, long stride, const long *sources, long rows, struct weight by, float *to);

/* Maps a packed slab by `count` blocks of a weight from `first` on; bias [outputs] may be NULL. `after`
are the weights that this thread reads next. */
HIDDEN void map_blocks(struct weight by, const entry *bias, long first, long count, const float *x,
                       long rows, struct result out, const char *after);

/* Multiplies sums [rows, BLOCK] of a block by scales of outputs, adds the bias, and writes them. */
HIDDEN void finish_block(struct weight by, const entry *bias, long block, const float *sums, long rows,
                         struct result out);

/* Memory of this thread for `count` floats, until the next call; it is kept, and grows. */
HIDDEN float *scratch(long count);
