/* What attention reads; see attend.c. */
#pragma once
#include "vectors.h"

/* Who sees what, the same for every layer of a pass. */
struct metadata {
    const int64_t *pages;    /* [batch, page_columns] */
    const int64_t *starts;   /* [batch + 1], query rows */
    const int64_t *kv_lens;  /* [rows] */
    int64_t batch, page_columns, page_size, most;  /* most: rows that any query row sees */
};

/* `struct _Params` of attention.py: how scores become weights. */
struct params {
    int64_t window;      /* keys that a row sees at most; 0: all */
    int64_t chunk;       /* keys of a chunk, of which a row sees its own; 0: all */
    const float *sinks;  /* [q heads], a logit without a value; or NULL */
    float scale, softcap;  /* softcap 0: none */
};

/* Rows outside the pool; none if `count` is 0. Strides in entries. */
struct tree_kv {
    const entry *k, *v;      /* [batch, count, kv heads, dim] */
    const uint8_t *mask;     /* [batch, queries, count] */
    int64_t count, k_batch_stride, k_row_stride, v_batch_stride, v_row_stride;
    int64_t mask_batch_stride, mask_query_stride;
};
