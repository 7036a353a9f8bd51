/* Linear maps of packed weights; see linear.c. */
#pragma once
#include "formats.h"

#define HIDDEN __attribute__((visibility("hidden")))

#ifdef BFLOAT16
#define OF_ENTRIES OF_BFLOAT16
#else
#define OF_ENTRIES OF_FLOAT32
#endif

/* A packed weight [outputs, inputs]; bias [outputs] may be NULL. */
struct weight {
    const char *blocks;
    const entry *bias;
    long outputs, inputs;
    int format;
};

/* Where the rows of a result lie: `stride` entries apart. */
struct result {
    entry *rows;
    long stride;
};

INLINE long blocks_of(long outputs) { return (outputs + BLOCK - 1) / BLOCK; }

INLINE long packed_bytes(struct weight of) {
    return blocks_of(of.outputs) * block_bytes(of.format, padded(of.inputs));
}

/* Writes rows of x [inputs], `stride` entries apart, as floats in the order in which tiles read them:
[rows, padded inputs] numbers. Row i is that at order[i], or i where order is NULL. */
HIDDEN void pack_rows(const entry *x, long stride, const long *order, long rows, long inputs, float *to);

/* Maps packed rows by `count` blocks of a weight from `first` on. */
HIDDEN void map_blocks(struct weight by, long first, long count, const float *x, long rows,
                       struct result out);

/* Blocks that a thread maps together. */
HIDDEN long blocks_together(long rows);

/* Memory of this thread for `count` floats, until the next call; it is kept, and grows. */
HIDDEN float *scratch(long count);
