/* A decoder layer in one call: its ops one after the other, each as it is called alone. */
#include "linear.h"

struct metadata; /* of attend.c, as the next two */
struct params;
struct tree_kv;

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

/* `_MapInC`; bias [outputs] or NULL. */
struct map {
    const struct weight *weight;
    const entry *bias;
};

/* `_LayerInC`: what stays the same from call to call. */
struct layer {
    struct norm input, q, k, mlp;
    struct map qkv, output, gate_up, down;
    int64_t q_heads, kv_heads, head_dim, is_gelu;
    const struct params *params;
};

/* `_RowsInC`: what differs from layer to layer and from forward to forward. */
struct rows {
    const float *cos, *sin;        /* [count, head_dim / 2] */
    const int64_t *slots;          /* [count], rows of the pools */
    entry *k_pool, *v_pool;
    const struct metadata *metadata;
    int64_t count;
};

static void map_rows(struct map by, const entry *x, long stride, entry *out, long rows) {
    linear(by.weight, by.bias, x, stride, out, rows);
}

/* Norms heads in place, which lie side by side in rows `stride` entries apart. */
static void norm_heads(struct norm by, entry *x, long stride, long heads, long dim, long rows) {
    for (long row = 0; by.weight && row < rows; row++, x += stride)
        rms_norm(x, dim, by.weight, by.is_wide, by.eps, x, heads, dim);
}

/* Writes keys and values and attends; qkv [rows, width] is written over, out is [rows, q width]. */
static void attend_rows(const struct layer *layer, const struct rows *rows, entry *qkv, entry *out) {
    long dim = layer->head_dim, q_width = layer->q_heads * dim, kv_width = layer->kv_heads * dim;
    long width = q_width + 2 * kv_width, count = rows->count;
    entry *k = qkv + q_width, *v = k + kv_width;
    norm_heads(layer->q, qkv, width, layer->q_heads, dim, count);
    norm_heads(layer->k, k, width, layer->kv_heads, dim, count);
    apply_rope(qkv, width, layer->q_heads, k, width, layer->kv_heads, rows->cos, rows->sin, count, dim);
    store_kv(rows->k_pool, rows->v_pool, rows->slots, k, width, v, width, count, kv_width, kv_width);
    attend(rows->metadata, NULL, qkv, width, rows->k_pool, rows->v_pool, out, layer->q_heads,
           layer->kv_heads, dim, dim, layer->params);
}

/* The residual stream x [rows, hidden] to out; `work` has room for `work_columns` of decoder_layer.py
entries per row. */
void decoder_layer(const struct layer *layer, const struct rows *rows, const entry *x, entry *out,
                   entry *work) {
    long count = rows->count, hidden = layer->qkv.weight->inputs, inner = layer->down.weight->inputs;
    long q_width = layer->output.weight->inputs, width = layer->qkv.weight->outputs;
    entry *normed = work, *summed = normed + count * hidden, *update = summed + count * hidden;
    entry *wide = update + count * hidden;
    entry *narrow = wide + count * (width > 2 * inner ? width : 2 * inner);
    rms_norm(x, hidden, layer->input.weight, layer->input.is_wide, layer->input.eps, normed, count, hidden);
    map_rows(layer->qkv, normed, hidden, wide, count);
    attend_rows(layer, rows, wide, narrow);
    map_rows(layer->output, narrow, q_width, update, count);
    add_rms_norm(x, hidden, update, hidden, layer->mlp.weight, layer->mlp.is_wide, layer->mlp.eps, summed,
                 normed, count, hidden);
    map_rows(layer->gate_up, normed, hidden, wide, count);
    if (layer->is_gelu) gelu_tanh_and_mul(wide, 2 * inner, wide + inner, 2 * inner, narrow, count, inner);
    else silu_and_mul(wide, 2 * inner, wide + inner, 2 * inner, narrow, count, inner);
    map_rows(layer->down, narrow, inner, update, count);
    for (long at = 0; at < count * hidden; at += LANES) {
        long left = count * hidden - at;
        store_some(out + at, load_some(summed + at, left) + load_some(update + at, left), left);
    }
}
