/* Attention over paged keys and values: two passes over what a query row sees, in its order.

Query rows of one key head are taken four at a time (a lone one by itself), so that a key that was
read serves all of them. Scores are kept; their maximum does not depend on an order, and sums of
weights and of weighted values go key by key. What a row does not see weighs exactly nothing. So a
row's bits depend on the keys that it sees and on their order: not on other rows, nor on whether a key
lies in the pool or in tree KV. */
#include <math.h>
#include <stdlib.h>

#include "vectors.h"

#define TOGETHER 4   /* query rows */
#define AT_ONCE 4    /* vectors of a head whose sums stay in registers */
#define AHEAD 8      /* keys: how far to ask for them before they are needed */

/* Who sees what, the same for every layer of a pass. */
struct metadata {
    const int64_t *pages;    /* [batch, page_columns] */
    const int64_t *starts;   /* [batch + 1], query rows */
    const int64_t *kv_lens;  /* [rows] */
    int64_t batch, page_columns, page_size, most;  /* most: rows that any query row sees */
};

struct heads {
    long q, kv, dim;
    float scale;
};

/* Rows outside the pool; none if `count` is 0. Strides in entries. */
struct tree_kv {
    const entry *k, *v;      /* [batch, count, kv heads, dim] */
    const uint8_t *mask;     /* [batch, queries, count] */
    int64_t count, batch_stride, row_stride, mask_batch_stride, mask_query_stride;
};

/* What one thread works with; room for all keys of the longest request and tree KV. */
struct desk {
    float *scores;               /* [keys, rows together] */
    const entry **keys, **values;
};

/* Asks for a row of `dim` entries. */
INLINE void ask_for(const entry *row, long dim) {
    for (long at = 0; at < dim; at += 64 / (long)sizeof(entry)) __builtin_prefetch(row + at, 0, 3);
}

INLINE void add_scores(const int rows, floats *sum, const entry *const *q, const entry *const *keys,
                       long at, long count) {
    for (int row = 0; row < rows; row++) {
        floats query = load_some(q[row] + at, count);
        for (int key = 0; key < LANES / rows; key++)
            sum[key * rows + row] += query * load_some(keys[key] + at, count);
    }
}

/* Scores every row with `count` keys; writes up to 16 numbers too many. */
INLINE void score(const int rows, const entry *const *q, const entry *const *keys, long count,
                  struct heads heads, float *scores) {
    long whole = heads.dim / LANES * LANES;
    for (long key = 0; key < count; key += LANES / rows) {
        floats sum[LANES] = {};
        for (int i = 0; i < LANES / rows; i++) ask_for(keys[key + AHEAD + i], heads.dim);
        for (long at = 0; at < whole; at += LANES) add_scores(rows, sum, q, keys + key, at, LANES);
        if (whole < heads.dim) add_scores(rows, sum, q, keys + key, whole, heads.dim - whole);
        floats scaled = sums_of_16(sum) * heads.scale;
        memcpy(scores + key * rows, &scaled, sizeof scaled);
    }
}

/* Turns scores [count, rows] into weights relative to each row's greatest; lanes behind them are 0. */
INLINE void weigh(const int rows, float *scores, long count) {
    for (long i = count * rows; i % LANES; i++) scores[i] = -INFINITY;
    floats most = spread(-INFINITY), base;
    for (long i = 0; i < count * rows; i += LANES) most = larger(*(floats *)(scores + i), most);
    for (int lane = 0; lane < LANES; lane++) {
        float top = most[lane % rows];
        for (int other = lane % rows; other < LANES; other += rows)
            top = most[other] > top ? most[other] : top;
        base[lane] = top == -INFINITY ? 0.0f : top;
    }
    for (long i = 0; i < count * rows; i += LANES) {
        floats *some = (floats *)(scores + i);
        *some = exponent(*some - base);
    }
}

/* Adds `count` values of one part of a head; those that no row weighs may hold anything. */
INLINE void add_values(const int rows, const int width, floats sum[][AT_ONCE], const float *weights,
                       const entry *const *values, long count, long at, long left, int may_skip) {
    for (long key = 0; key < count; key++, weights += rows) {
        if (may_skip) {
            float heaviest = 0;
            for (int row = 0; row < rows; row++)
                heaviest = weights[row] > heaviest ? weights[row] : heaviest;
            if (heaviest == 0) continue;
        }
        for (int i = 0; i < width; i++) __builtin_prefetch(values[key + AHEAD] + at + i * LANES, 0, 3);
        for (int i = 0; i < width; i++) {
            floats value = load_some(values[key] + at + i * LANES, left - i * LANES);
            for (int row = 0; row < rows; row++) sum[row][i] += weights[row] * value;
        }
    }
}

struct seen {
    const float *weights;
    const entry *const *values, *const *tree_values;
    long pooled, in_tree;  /* keys in the pool and in tree KV */
};

/* Sums weighted values of `width` vectors of a head from `at` on. */
INLINE void mix_part(const int rows, const int width, struct seen seen, const float *shares,
                     entry *const *out, long at, long left) {
    floats sum[TOGETHER][AT_ONCE] = {};
    const float *tree_weights = seen.weights + seen.pooled * rows;
    add_values(rows, width, sum, seen.weights, seen.values, seen.pooled, at, left, 0);
    add_values(rows, width, sum, tree_weights, seen.tree_values, seen.in_tree, at, left, 1);
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < width; i++)
            store_some(out[row] + at + i * LANES, sum[row][i] * shares[row], left - i * LANES);
}

INLINE void mix(const int rows, struct seen seen, entry *const *out, long dim) {
    float shares[TOGETHER] = {0};
    for (long key = 0; key < seen.pooled + seen.in_tree; key++)
        for (int row = 0; row < rows; row++) shares[row] += seen.weights[key * rows + row];
    for (int row = 0; row < rows; row++) shares[row] = shares[row] > 0 ? 1.0f / shares[row] : 0.0f;
    long at = 0;
    for (; at + AT_ONCE * LANES <= dim; at += AT_ONCE * LANES)
        mix_part(rows, AT_ONCE, seen, shares, out, at, AT_ONCE * LANES);
    for (; at < dim; at += LANES) mix_part(rows, 1, seen, shares, out, at, dim - at);
}

/* Some query rows of one request and one key head. */
struct group {
    const entry *q[TOGETHER];
    entry *out[TOGETHER];
    long kv_lens[TOGETHER];
    const uint8_t *mask[TOGETHER];
};

INLINE void attend_group(const int rows, const struct group *group, struct desk desk, long longest,
                         long in_tree, struct heads heads) {
    long pooled = 0;
    for (int row = 0; row < rows; row++)
        pooled = group->kv_lens[row] > pooled ? group->kv_lens[row] : pooled;
    score(rows, group->q, desk.keys, pooled, heads, desk.scores);
    score(rows, group->q, desk.keys + longest, in_tree, heads, desk.scores + pooled * rows);
    for (int row = 0; row < rows; row++) {
        for (long key = group->kv_lens[row]; key < pooled; key++)
            desk.scores[key * rows + row] = -INFINITY;
        for (long key = 0; key < in_tree; key++)
            if (!group->mask[row][key]) desk.scores[(pooled + key) * rows + row] = -INFINITY;
    }
    weigh(rows, desk.scores, pooled + in_tree);
    mix(rows, (struct seen){desk.scores, desk.values, desk.values + longest, pooled, in_tree}, group->out,
        heads.dim);
}

/* Notes where the keys and values of one head of a request lie: in the pool, then in tree KV. */
static void find_keys(struct desk desk, const struct metadata *metadata, struct tree_kv tree_kv, long request,
                      long longest, const entry *k_pool, const entry *v_pool, long stride, long offset) {
    const int64_t *page = metadata->pages + request * metadata->page_columns;
    for (long key = 0; key < longest; page++)
        for (long row = *page * metadata->page_size, i = 0; i < metadata->page_size && key < longest; i++) {
            desk.keys[key] = k_pool + (row + i) * stride + offset;
            desk.values[key++] = v_pool + (row + i) * stride + offset;
        }
    long tree_at = request * tree_kv.batch_stride + offset;
    for (long key = 0; key < tree_kv.count; key++) {
        desk.keys[longest + key] = tree_kv.k + tree_at + key * tree_kv.row_stride;
        desk.values[longest + key] = tree_kv.v + tree_at + key * tree_kv.row_stride;
    }
    /* What is asked for ahead, or scored for want of as many keys as fit: the last one again. */
    long count = longest + tree_kv.count;
    for (long key = count; key < count + LANES + AHEAD; key++) {
        desk.keys[key] = count ? desk.keys[count - 1] : k_pool;
        desk.values[key] = count ? desk.values[count - 1] : v_pool;
    }
}

/* One call of `attend`; q's rows lie `q_stride` entries apart. */
struct call {
    const struct metadata *metadata;
    struct tree_kv tree_kv;
    struct heads heads;
    const entry *q, *k_pool, *v_pool;
    entry *out;
    long q_stride;
};

/* Takes up to four rows of a request and a key head from `at` on; the last one fills them up. */
static struct group take_group(const struct call *call, long request, long kv_head, long at, long folded) {
    struct heads heads = call->heads;
    struct group group;
    for (long i = 0; i < TOGETHER; i++) {
        long fold = at + i < folded ? at + i : folded - 1, shared = heads.q / heads.kv;
        long query = fold / shared, head = kv_head * shared + fold % shared;
        long row = call->metadata->starts[request] + query;
        group.q[i] = call->q + row * call->q_stride + head * heads.dim;
        group.out[i] = call->out + (row * heads.q + head) * heads.dim;
        group.kv_lens[i] = call->metadata->kv_lens[row];
        group.mask[i] = call->tree_kv.mask + request * call->tree_kv.mask_batch_stride +
                        query * call->tree_kv.mask_query_stride;
    }
    return group;
}

static void attend_request(const struct call *call, struct desk desk, long request, long kv_head) {
    struct heads heads = call->heads;
    const int64_t *starts = call->metadata->starts;
    long folded = (starts[request + 1] - starts[request]) * (heads.q / heads.kv), longest = 0;
    for (long row = starts[request]; row < starts[request + 1]; row++)
        longest = call->metadata->kv_lens[row] > longest ? call->metadata->kv_lens[row] : longest;
    find_keys(desk, call->metadata, call->tree_kv, request, longest, call->k_pool, call->v_pool,
              heads.kv * heads.dim, kv_head * heads.dim);
    for (long at = 0; at < folded; at += TOGETHER) {
        struct group group = take_group(call, request, kv_head, at, folded);
        if (folded == 1) attend_group(1, &group, desk, longest, call->tree_kv.count, heads);
        else attend_group(TOGETHER, &group, desk, longest, call->tree_kv.count, heads);
    }
}

static void attend_all(const struct call *call) {
    const struct metadata *metadata = call->metadata;
    size_t keys = (size_t)(metadata->most + call->tree_kv.count) + 2 * LANES + AHEAD;
    size_t room = keys * (TOGETHER * sizeof(float) + 2 * sizeof(entry *));
    long heads = call->heads.kv, tasks = metadata->batch * heads;
#pragma omp parallel if (tasks > 1 && tasks * (long)keys > 4096)
    {
        char *memory = aligned_alloc(64, (room + 63) / 64 * 64);
        if (!memory) abort();
        struct desk desk = {.scores = (float *)memory};
        desk.keys = (const entry **)(memory + keys * TOGETHER * sizeof(float));
        desk.values = desk.keys + keys;
#pragma omp for schedule(dynamic)
        for (long task = 0; task < tasks; task++)
            attend_request(call, desk, task / heads, task % heads);
        free(memory);
    }
}

/* From q [rows, q heads, dim] to out of that shape; pools [pool rows, kv heads, dim]; tree_kv or NULL. */
void attend(const struct metadata *metadata, const struct tree_kv *tree_kv, const entry *q, long q_stride,
            const entry *k_pool, const entry *v_pool, entry *out, long q_heads, long kv_heads, long dim,
            float scale) {
    struct call call = {metadata, {0}, {q_heads, kv_heads, dim, scale}, q, k_pool, v_pool, out, q_stride};
    if (tree_kv) call.tree_kv = *tree_kv;
    attend_all(&call);
}

/* Copies rows of k and v, `stride` entries apart, to the pools' rows. */
void store_kv(entry *k_pool, entry *v_pool, const int64_t *rows, const entry *k, long k_stride,
              const entry *v, long v_stride, long count, long width) {
    for (long i = 0; i < count; i++) {
        memcpy(k_pool + rows[i] * width, k + i * k_stride, (size_t)width * sizeof(entry));
        memcpy(v_pool + rows[i] * width, v + i * v_stride, (size_t)width * sizeof(entry));
    }
}
