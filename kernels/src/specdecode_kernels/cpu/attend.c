/* Attention over paged keys and values: two passes over what a query row sees, in its order.

Query rows of one key head are taken four at a time (a lone one by itself), so that a key that was
read serves all of them. Scores are kept; their maximum does not depend on an order, and sums of
weights and of weighted values go key by key. What a row does not see weighs exactly nothing. So a
row's bits depend on the keys that it sees and on their order: not on other rows, nor on whether a key
lies in the pool or in tree KV. A sliding window keeps the last keys of a row, a chunk those from a
multiple of its size on; pages before the windows or chunks of all rows of a request are not read. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "attend.h"

#define TOGETHER 4   /* query rows */
#define AT_ONCE 4    /* vectors of a head whose sums stay in registers */
#define AHEAD 8      /* keys: how far to ask for them before they are needed */

struct heads {
    long q, kv, k_dim, v_dim;
};

/* What one thread works with; room for all keys of the longest request and tree KV. */
struct desk {
    float *scores;               /* [keys, rows together] */
    const entry **keys, **values;
    long first, end;             /* keys of the pool that it holds; those of tree KV follow */
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
                  long dim, float scale, float *scores) {
    long whole = dim / LANES * LANES;
    for (long key = 0; key < count; key += LANES / rows) {
        floats sum[LANES] = {};
        for (int i = 0; i < LANES / rows; i++) ask_for(keys[key + AHEAD + i], dim);
        for (long at = 0; at < whole; at += LANES) add_scores(rows, sum, q, keys + key, at, LANES);
        if (whole < dim) add_scores(rows, sum, q, keys + key, whole, dim - whole);
        floats scaled = sums_of_16(sum) * scale;
        memcpy(scores + key * rows, &scaled, sizeof scaled);
    }
}

/* Bounds `count` scores by cap * tanh(score / cap); writes up to 15 numbers too many. One copy of the
code, so that a score has the same bits wherever it stands. */
static __attribute__((noinline)) void soften(float *scores, long count, float cap) {
    for (long i = 0; i < count; i += LANES) {
        floats *some = (floats *)(scores + i);
        *some = hyperbolic_tangent(*some / cap) * cap;
    }
}

/* Turns scores [count, rows] and one sink per row, -INFINITY for none, into weights relative to each
row's greatest; lanes after the scores are 0. */
INLINE void weigh(const int rows, float *scores, long count, float *sinks) {
    for (long i = count * rows; i % LANES; i++) scores[i] = -INFINITY;
    floats most = spread(-INFINITY), base;
    for (long i = 0; i < count * rows; i += LANES) most = larger(*(floats *)(scores + i), most);
    for (int lane = 0; lane < LANES; lane++) {
        float top = most[lane % rows];
        for (int other = lane % rows; other < LANES; other += rows)
            top = most[other] > top ? most[other] : top;
        top = sinks[lane % rows] > top ? sinks[lane % rows] : top;
        base[lane] = top == -INFINITY ? 0.0f : top;
    }
    floats sink;
    for (int lane = 0; lane < LANES; lane++) sink[lane] = sinks[lane % rows];
    sink = exponent(sink - base);
    for (int row = 0; row < rows; row++) sinks[row] = sink[row];
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
            int is_seen = 0;
            for (int row = 0; row < rows; row++) is_seen |= weights[row] != 0;
            if (!is_seen) continue;
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
    int has_gaps;          /* whether there may be keys in the pool that no row sees */
};

/* Sums weighted values of `width` vectors of a head from `at` on. */
INLINE void mix_part(const int rows, const int width, struct seen seen, const float *shares,
                     entry *const *out, long at, long left) {
    floats sum[TOGETHER][AT_ONCE] = {};
    const float *tree_weights = seen.weights + seen.pooled * rows;
    add_values(rows, width, sum, seen.weights, seen.values, seen.pooled, at, left, seen.has_gaps);
    add_values(rows, width, sum, tree_weights, seen.tree_values, seen.in_tree, at, left, 1);
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < width; i++)
            store_some(out[row] + at + i * LANES, sum[row][i] * shares[row], left - i * LANES);
}

INLINE void mix(const int rows, struct seen seen, const float *sinks, entry *const *out, long dim) {
    float shares[TOGETHER] = {0};
    for (long key = 0; key < seen.pooled + seen.in_tree; key++)
        for (int row = 0; row < rows; row++) shares[row] += seen.weights[key * rows + row];
    for (int row = 0; row < rows; row++) {
        shares[row] += sinks[row];
        shares[row] = shares[row] > 0 ? 1.0f / shares[row] : 0.0f;
    }
    long at = 0;
    for (; at + AT_ONCE * LANES <= dim; at += AT_ONCE * LANES)
        mix_part(rows, AT_ONCE, seen, shares, out, at, AT_ONCE * LANES);
    for (; at < dim; at += LANES) mix_part(rows, 1, seen, shares, out, at, dim - at);
}

/* Some query rows of one request and one key head. */
struct group {
    const entry *q[TOGETHER];
    entry *out[TOGETHER];
    long first[TOGETHER], kv_lens[TOGETHER];  /* which keys of the pool a row sees */
    long skipped[TOGETHER];                   /* of the keys in tree KV that the mask shows a row */
    const uint8_t *mask[TOGETHER];
    float sinks[TOGETHER];
};

/* Hides what a row does not see of `pooled` keys from `base` on, and of tree KV after them. */
INLINE void hide(const int rows, int row, const struct group *group, float *scores, long base, long pooled,
                 long in_tree) {
    for (long key = base; key < group->first[row]; key++)
        scores[(key - base) * rows + row] = -INFINITY;
    for (long key = group->kv_lens[row]; key < base + pooled; key++)
        scores[(key - base) * rows + row] = -INFINITY;
    for (long key = 0, skipped = 0; key < in_tree; key++)
        if (!group->mask[row][key] || skipped++ < group->skipped[row])
            scores[(pooled + key) * rows + row] = -INFINITY;
}

INLINE void attend_group(const int rows, struct group *group, struct desk desk, long in_tree,
                         struct heads heads, const struct params *params) {
    long base = group->first[0], end = 0;
    for (int row = 0; row < rows; row++) {
        base = group->first[row] < base ? group->first[row] : base;
        end = group->kv_lens[row] > end ? group->kv_lens[row] : end;
    }
    long pooled = end - base, before = base - desk.first, after = desk.end - desk.first;
    score(rows, group->q, desk.keys + before, pooled, heads.k_dim, params->scale, desk.scores);
    score(rows, group->q, desk.keys + after, in_tree, heads.k_dim, params->scale,
          desk.scores + pooled * rows);
    if (params->softcap > 0) soften(desk.scores, (pooled + in_tree) * rows, params->softcap);
    for (int row = 0; row < rows; row++) hide(rows, row, group, desk.scores, base, pooled, in_tree);
    weigh(rows, desk.scores, pooled + in_tree, group->sinks);
    struct seen seen = {desk.scores, desk.values + before, desk.values + after, pooled, in_tree,
                        params->window > 0 || params->chunk > 0};
    mix(rows, seen, group->sinks, group->out, heads.v_dim);
}

/* One call of `attend`; q's rows lie `q_stride` entries apart. */
struct call {
    const struct metadata *metadata;
    struct tree_kv tree_kv;
    struct heads heads;
    const struct params *params;
    const entry *q, *k_pool, *v_pool;
    entry *out;
    long q_stride;
};

static const uint8_t *mask_of(struct tree_kv tree_kv, long request, long query) {
    return tree_kv.mask + request * tree_kv.mask_batch_stride + query * tree_kv.mask_query_stride;
}

/* How many of the keys that a query row sees come before its window or chunk. */
static long unattended(const struct call *call, long request, long query) {
    const struct metadata *metadata = call->metadata;
    long window = call->params->window, chunk = call->params->chunk;
    if (!window && !chunk) return 0;
    long seen = metadata->kv_lens[metadata->starts[request] + query];
    const uint8_t *mask = mask_of(call->tree_kv, request, query);
    for (long key = 0; key < call->tree_kv.count; key++) seen += mask[key] != 0;
    if (chunk) return seen ? (seen - 1) / chunk * chunk : 0;
    return seen > window ? seen - window : 0;
}

/* Takes up to four rows of a request and a key head from `at` on; the last one fills them up. */
static struct group take_group(const struct call *call, long request, long kv_head, long at, long folded) {
    struct heads heads = call->heads;
    struct group group;
    for (long i = 0; i < TOGETHER; i++) {
        long fold = at + i < folded ? at + i : folded - 1, shared = heads.q / heads.kv;
        long query = fold / shared, head = kv_head * shared + fold % shared;
        long row = call->metadata->starts[request] + query, length = call->metadata->kv_lens[row];
        long before = unattended(call, request, query);
        group.q[i] = call->q + row * call->q_stride + head * heads.k_dim;
        group.out[i] = call->out + (row * heads.q + head) * heads.v_dim;
        group.kv_lens[i] = length;
        group.first[i] = before < length ? before : length;
        group.skipped[i] = before - group.first[i];
        group.mask[i] = mask_of(call->tree_kv, request, query);
        group.sinks[i] = call->params->sinks ? call->params->sinks[head] : -INFINITY;
    }
    return group;
}

/* Which keys of the pool the query rows of a request see: the first one and the end. */
static void find_range(const struct call *call, long request, long *first, long *end) {
    const int64_t *starts = call->metadata->starts;
    *first = INT64_MAX, *end = 0;
    for (long row = starts[request]; row < starts[request + 1]; row++) {
        long length = call->metadata->kv_lens[row];
        long before = unattended(call, request, row - starts[request]);
        before = before < length ? before : length;
        *first = before < *first ? before : *first;
        *end = length > *end ? length : *end;
    }
    *first = *first < *end ? *first : *end;
}

/* Notes where the keys and values of one head of a request lie: in the pool, then in tree KV. */
static void find_keys(const struct call *call, struct desk desk, long request, long kv_head) {
    const struct metadata *metadata = call->metadata;
    const struct heads heads = call->heads;
    const struct tree_kv tree = call->tree_kv;
    const int64_t *pages = metadata->pages + request * metadata->page_columns;
    long k_row = heads.kv * heads.k_dim, v_row = call->v_pool == call->k_pool ? k_row : heads.kv * heads.v_dim;
    long k_at = kv_head * heads.k_dim, v_at = kv_head * heads.v_dim, count = 0;
    for (long key = desk.first; key < desk.end;) {
        long in_page = key % metadata->page_size;
        long row = pages[key / metadata->page_size] * metadata->page_size + in_page;
        for (; in_page < metadata->page_size && key < desk.end; in_page++, key++, row++) {
            desk.keys[count] = call->k_pool + row * k_row + k_at;
            desk.values[count++] = call->v_pool + row * v_row + v_at;
        }
    }
    for (long key = 0; key < tree.count; key++) {
        desk.keys[count] = tree.k + request * tree.k_batch_stride + key * tree.k_row_stride + k_at;
        desk.values[count++] = tree.v + request * tree.v_batch_stride + key * tree.v_row_stride + v_at;
    }
    /* What is asked for ahead, or scored for want of as many keys as fit: the last one again. */
    for (long key = count; key < count + LANES + AHEAD; key++) {
        desk.keys[key] = count ? desk.keys[count - 1] : call->k_pool;
        desk.values[key] = count ? desk.values[count - 1] : call->v_pool;
    }
}

/* One of `parts` of the query rows of a request and a key head: every so many groups. */
static void attend_request(const struct call *call, struct desk desk, long request, long kv_head, long part,
                           long parts) {
    struct heads heads = call->heads;
    const int64_t *starts = call->metadata->starts;
    long folded = (starts[request + 1] - starts[request]) * (heads.q / heads.kv);
    if (part * TOGETHER >= folded) return;
    find_range(call, request, &desk.first, &desk.end);
    find_keys(call, desk, request, kv_head);
    for (long at = part * TOGETHER; at < folded; at += parts * TOGETHER) {
        struct group group = take_group(call, request, kv_head, at, folded);
        if (folded == 1) attend_group(1, &group, desk, call->tree_kv.count, heads, call->params);
        else attend_group(TOGETHER, &group, desk, call->tree_kv.count, heads, call->params);
    }
}

static void attend_all(const struct call *call) {
    const struct metadata *metadata = call->metadata;
    size_t keys = (size_t)(metadata->most + call->tree_kv.count) + 2 * LANES + AHEAD;
    size_t room = keys * (TOGETHER * sizeof(float) + 2 * sizeof(entry *));
    long heads = call->heads.kv, tasks = metadata->batch * heads, threads = omp_get_max_threads();
    long parts = tasks < threads && tasks ? (threads + tasks - 1) / tasks : 1; /* of few key heads */
    tasks *= parts;
#pragma omp parallel if (tasks > 1 && tasks * (long)keys > 4096)
    {
        char *memory = aligned_alloc(64, (room + 63) / 64 * 64);
        if (!memory) abort();
        struct desk desk = {.scores = (float *)memory};
        desk.keys = (const entry **)(memory + keys * TOGETHER * sizeof(float));
        desk.values = desk.keys + keys;
#pragma omp for schedule(dynamic)
        for (long task = 0; task < tasks; task++)
            attend_request(call, desk, task / parts / heads, task / parts % heads, task % parts, parts);
        free(memory);
    }
}

/* From q [rows, q heads, k dim] to out [rows, q heads, v dim]; pools [pool rows, kv heads, dim];
tree_kv or NULL. Where both pools are one there is one kv head, whose values are the first entries of its
keys, or k dim is v dim. */
void attend(const struct metadata *metadata, const struct tree_kv *tree_kv, const entry *q, long q_stride,
            const entry *k_pool, const entry *v_pool, entry *out, long q_heads, long kv_heads, long k_dim,
            long v_dim, const struct params *params) {
    struct call call = {metadata, {0}, {q_heads, kv_heads, k_dim, v_dim}, params, q, k_pool, v_pool, out,
                        q_stride};
    if (tree_kv) call.tree_kv = *tree_kv;
    attend_all(&call);
}

/* Copies rows of k and v, `stride` entries apart, to the pools' rows of `width` entries. */
void store_kv(entry *k_pool, entry *v_pool, const int64_t *rows, const entry *k, long k_stride,
              const entry *v, long v_stride, long count, long k_width, long v_width) {
    for (long i = 0; i < count; i++) {
        memcpy(k_pool + rows[i] * k_width, k + i * k_stride, (size_t)k_width * sizeof(entry));
        memcpy(v_pool + rows[i] * v_width, v + i * v_stride, (size_t)v_width * sizeof(entry));
    }
}
