/* Low-rank maps of sorted rows; see low_rank.c. */
#pragma once
#include "formats.h"

/* `LowRankInC` of low_rank.py: the factors of one map. Without vectors there is none. */
struct low_rank {
    int64_t vectors;            /* of LANES ranks each */
    const float *a;             /* [vectors, inputs, LANES] */
    const float *b;             /* [ranks of all blocks, BLOCK] */
    const int64_t (*blocks)[3]; /* [blocks]: the first rank, how many, where they begin in b */
};

/* `LowRankRowsInC`: rows of a forward, sorted by slot. */
struct low_rank_rows {
    const int64_t *rows;
    const int64_t (*groups)[3]; /* [count]: the slot, where its rows begin in `rows`, how many */
    int64_t count;
};

#pragma GCC visibility push(protected) /* another library may have a function of the same name */
void add_low_rank(const struct low_rank *by_slot, long outputs, long inputs,
                  const struct low_rank_rows *sorted, const entry *x, long stride, entry *out);
#pragma GCC visibility pop
