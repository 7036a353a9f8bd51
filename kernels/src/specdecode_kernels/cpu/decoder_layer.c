/* Decoder layers in one call: their ops one after the other, each as it is called alone. */
#include <stdlib.h>

#include "attend.h"
#include "linear.h"
#include "low_rank.h"

#pragma GCC visibility push(protected) /* another library may have a function of the same name */
void rms_norm(const entry *x, long stride, const void *weight, long is_wide, float eps, entry *out,
              long rows, long dim);
void add_rms_norm(const entry *x, long stride, const entry *update, long update_stride,
                  const void *weight, long is_wide, float eps, entry *summed, entry *normed, long rows,
                  long dim);
void linear(const struct weight *weight, const entry *bias, const entry *x, long stride, entry *out,
            long rows);
void apply_rope(entry *q, long q_stride, long q_heads, entry *k, long k_stride, long k_heads,
                const float *cos, const float *sin, long rows, long dim);
void silu_and_mul(const entry *gate, long gate_stride, const entry *up, long up_stride, entry *out,
                  long rows, long dim);
void gelu_tanh_and_mul(const entry *gate, long gate_stride, const entry *up, long up_stride, entry *out,
                       long rows, long dim);
void store_kv(entry *k_pool, entry *v_pool, const int64_t *rows, const entry *k, long k_stride,
              const entry *v, long v_stride, long count, long k_width, long v_width);
void attend(const struct metadata *metadata, const struct tree_kv *tree_kv, const entry *q, long q_stride,
            const entry *k_pool, const entry *v_pool, entry *out, long q_heads, long kv_heads, long k_dim,
            long v_dim, const struct params *params);
#pragma GCC visibility pop

/* `_NormInC` of decoder_layer.py; a NULL weight: there is no norm. */
struct norm {
    const void *weight;
    int64_t is_wide;
    float eps;
};

/* `_MapInC`; bias [outputs] or NULL, low-rank maps by slot or NULL. */
struct map {
    const struct weight *weight;
    const entry *bias;
    const struct low_rank *low_rank;
};

/* `_LayerInC`: what stays the same from call to call. */
struct layer {
    struct norm input, q, k, mlp;
    struct map qkv, output, gate_up, down;
    int64_t q_heads, kv_heads, head_dim, is_gelu;
    const struct params *params;
};

/* `_KvInC`: where a layer's keys and values lie. */
struct fused_kv {
    entry *k_pool, *v_pool, *k_scratch, *v_scratch;  /* a scratch: [batch, scratch_rows] */
};

/* `_RowsInC`: what differs from forward to forward. Rows go to the pool, or to the scratch of each
request from row `first` on; with a mask they also see what is outside the pool: the scratch up to the
newest row, or one another as the nodes of trees. */
struct rows {
    const float *cos, *sin;        /* [count, head_dim / 2] */
    const int64_t *slots;          /* [count], rows of the pools; NULL: rows go to the scratch */
    const int64_t *node_rows;      /* [batch, outside], the row of each node; NULL: in their order */
    const struct metadata *metadata;
    const uint8_t *mask;           /* [batch, queries, outside], or NULL */
    int64_t mask_batch_stride, mask_query_stride;
    int64_t outside;               /* rows that a request sees outside the pool, at most */
    int64_t count, scratch_rows, first;
    const struct low_rank_rows *low_rank; /* of rows with low-rank maps; NULL: no row has one */
};

/* Keys and values of a layer's rows, of `width` entries, `stride` entries apart. */
struct keys {
    entry *k, *v;
    long stride, width;
};

static void map_rows(struct map by, const entry *x, long stride, entry *out, const struct rows *rows) {
    linear(by.weight, by.bias, x, stride, out, rows->count);
    if (by.low_rank && rows->low_rank)
        add_low_rank(by.low_rank, by.weight->outputs, by.weight->inputs, rows->low_rank, x, stride, out);
}

/* Norms heads in kv, which lie side by side in rows `stride` entries apart. */
static void norm_heads(struct norm by, entry *x, long stride, long heads, long dim, long rows) {
    for (long row = 0; by.weight && row < rows; row++, x += stride)
        rms_norm(x, dim, by.weight, by.is_wide, by.eps, x, heads, dim);
}

/* Writes rows to the scratch and returns what each request has there. */
static struct tree_kv keep_in_scratch(const struct rows *rows, struct fused_kv kv, struct keys own) {
    long each = rows->count / rows->metadata->batch, ahead = rows->scratch_rows * own.width;
    entry *k = kv.k_scratch + rows->first * own.width, *v = kv.v_scratch + rows->first * own.width;
    size_t bytes = (size_t)own.width * sizeof(entry);
    for (long row = 0; row < rows->count; row++) {
        long to = row / each * ahead + row % each * own.width;
        memcpy(k + to, own.k + row * own.stride, bytes);
        memcpy(v + to, own.v + row * own.stride, bytes);
    }
    return (struct tree_kv){.k = kv.k_scratch, .v = kv.v_scratch, .k_batch_stride = ahead,
                            .k_row_stride = own.width, .v_batch_stride = ahead, .v_row_stride = own.width};
}

/* Returns the rows as the nodes of trees; where not all nodes have a row, copied to `nodes`. */
static struct tree_kv as_nodes(const struct rows *rows, struct keys own, entry *nodes) {
    long stride = own.stride, all = rows->metadata->batch * rows->outside;
    if (rows->node_rows) {
        stride = 2 * own.width;
        for (long node = 0; node < all; node++) {
            const entry *k = own.k + rows->node_rows[node] * own.stride;
            const entry *v = own.v + rows->node_rows[node] * own.stride;
            memcpy(nodes + node * stride, k, (size_t)own.width * sizeof(entry));
            memcpy(nodes + node * stride + own.width, v, (size_t)own.width * sizeof(entry));
        }
        own.k = nodes, own.v = nodes + own.width;
    }
    long ahead = rows->outside * stride;
    return (struct tree_kv){.k = own.k, .v = own.v, .k_batch_stride = ahead, .k_row_stride = stride,
                            .v_batch_stride = ahead, .v_row_stride = stride};
}

/* Keeps the keys and values of rows; returns those that they see outside the pool. */
static struct tree_kv keep(const struct rows *rows, struct fused_kv kv, struct keys own, entry *nodes) {
    struct tree_kv seen = {0};
    if (rows->slots)
        store_kv(kv.k_pool, kv.v_pool, rows->slots, own.k, own.stride, own.v, own.stride, rows->count,
                 own.width, own.width);
    else seen = keep_in_scratch(rows, kv, own);
    if (!rows->mask) return seen;
    if (rows->slots) seen = as_nodes(rows, own, nodes);
    seen.mask = rows->mask, seen.count = rows->outside;
    seen.mask_batch_stride = rows->mask_batch_stride, seen.mask_query_stride = rows->mask_query_stride;
    return seen;
}

/* Keeps keys and values and attends; qkv [rows, width] is written over, out is [rows, q width]. */
static void attend_rows(const struct layer *layer, const struct rows *rows, struct fused_kv kv, entry *qkv,
                        entry *out, entry *nodes) {
    long dim = layer->head_dim, q_width = layer->q_heads * dim, kv_width = layer->kv_heads * dim;
    long width = q_width + 2 * kv_width, count = rows->count;
    entry *k = qkv + q_width, *v = k + kv_width;
    norm_heads(layer->q, qkv, width, layer->q_heads, dim, count);
    norm_heads(layer->k, k, width, layer->kv_heads, dim, count);
    apply_rope(qkv, width, layer->q_heads, k, width, layer->kv_heads, rows->cos, rows->sin, count, dim);
    struct tree_kv seen = keep(rows, kv, (struct keys){k, v, width, kv_width}, nodes);
    attend(rows->metadata, rows->mask ? &seen : NULL, qkv, width, kv.k_pool, kv.v_pool, out,
           layer->q_heads, layer->kv_heads, dim, dim, layer->params);
}

/* What a layer needs for its rows, besides what it gives. */
struct work {
    entry *normed, *summed, *update;  /* [rows, hidden] */
    entry *wide, *narrow, *nodes;     /* see `room_of` */
};

/* Entries that a layer needs for rows, hidden ones left out: what maps give to be attended or gated,
what goes into the maps after that, and nodes that are copied. */
static void room_of(const struct layer *layer, const struct rows *rows, size_t room[3]) {
    long inner = layer->down.weight->inputs, q_width = layer->output.weight->inputs;
    long width = layer->qkv.weight->outputs;
    long nodes = rows->node_rows ? rows->metadata->batch * rows->outside : 0;
    room[0] = (size_t)(rows->count * (width > 2 * inner ? width : 2 * inner));
    room[1] = (size_t)(rows->count * (q_width > inner ? q_width : inner));
    room[2] = (size_t)(nodes * 2 * layer->kv_heads * layer->head_dim);
}

/* The residual stream x [rows, hidden] to out, which may be x. Attention reads `read` [rows, inputs];
if it is NULL, x after the layer's norm. */
static void map_layer(const struct layer *layer, struct fused_kv kv, const struct rows *rows, const entry *x,
                      const entry *read, entry *out, struct work work) {
    long count = rows->count, hidden = layer->output.weight->outputs, inner = layer->down.weight->inputs;
    entry *gate = work.wide, *up = gate + inner;
    if (!read && layer->input.weight)
        rms_norm(x, hidden, layer->input.weight, layer->input.is_wide, layer->input.eps, work.normed, count,
                 hidden);
    if (!read) read = layer->input.weight ? work.normed : x;
    map_rows(layer->qkv, read, layer->qkv.weight->inputs, work.wide, rows);
    attend_rows(layer, rows, kv, work.wide, work.narrow, work.nodes);
    map_rows(layer->output, work.narrow, layer->output.weight->inputs, work.update, rows);
    add_rms_norm(x, hidden, work.update, hidden, layer->mlp.weight, layer->mlp.is_wide, layer->mlp.eps,
                 work.summed, work.normed, count, hidden);
    map_rows(layer->gate_up, work.normed, hidden, work.wide, rows);
    if (layer->is_gelu) gelu_tanh_and_mul(gate, 2 * inner, up, 2 * inner, work.narrow, count, inner);
    else silu_and_mul(gate, 2 * inner, up, 2 * inner, work.narrow, count, inner);
    map_rows(layer->down, work.narrow, inner, work.update, rows);
    for (long at = 0; at < count * hidden; at += LANES) {
        long left = count * hidden - at;
        store_some(out + at, load_some(work.summed + at, left) + load_some(work.update + at, left), left);
    }
}

/* Maps x by `number` layers, one after the other; `read` is that of the first, see `map_layer`. */
void decoder_layers(const struct layer *const *layers, const struct fused_kv *kvs, long number,
                    const struct rows *rows, const entry *x, const entry *read, entry *out) {
    if (!rows->count) return;
    size_t stream = (size_t)(rows->count * layers[0]->output.weight->outputs), most[3] = {0}, room[3];
    for (long at = 0; at < number; at++) {
        room_of(layers[at], rows, room);
        for (int part = 0; part < 3; part++) most[part] = room[part] > most[part] ? room[part] : most[part];
    }
    size_t bytes = (3 * stream + most[0] + most[1] + most[2]) * sizeof(entry);
    entry *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) abort();
    entry *wide = memory + 3 * stream, *narrow = wide + most[0];
    struct work work = {memory, memory + stream, memory + 2 * stream, wide, narrow, narrow + most[1]};
    for (long at = 0; at < number; at++, x = out, read = NULL)
        map_layer(layers[at], kvs[at], rows, x, read, out, work);
    free(memory);
}
