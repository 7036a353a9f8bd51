/* The gated delta rule, token by token: a convolution, gates, and a matrix S of each head that every
token changes. A short convolution has the first of them alone.

A k head of a request is one task, with its v heads. S is cut into blocks of columns that stay in the
first cache while all tokens pass; no column needs another one. A token reads a block twice: for S^T k
and S^T q, then to change it; y = a S^T q + (q . k) b (v - a S^T k) needs no third time, and no change
where no token follows. Each column sums over k_dim in its order, each product by one fused
multiply-add, so a token's bits depend on the tokens before it alone: not on other requests, on how
rows are cut, on the width of vectors, nor on whether a token was drafted first.

Nodes of a tree are visited depth first. The last child of a node changes its parent's matrix in place,
the others write theirs to memory of the thread. */
#include "gated_delta.h"

#include <stdlib.h>

#include "linear.h"

#define TOGETHER 32          /* tokens of a chunk whose q, k and v are computed before S is read */
#define LEAST_PARALLEL 16384 /* entries of matrices */
/* From how many kept tokens on columns are copied to lie side by side: apart, those of 128 share half of
the sets of the first cache. */
#define MANY 4
#ifdef __AVX512F__
#define COLUMNS 64
#else
#define COLUMNS 32
#endif
#define VECTORS (COLUMNS / WIDTH)
#define EACH(at, dim) for (long at = 0; at < (dim); at += LANES)
#define EACH_VECTOR(i) for (int i = 0; i < VECTORS; i++)

INLINE long up_to(long count, long unit) { return (count + unit - 1) / unit * unit; }

INLINE vector fused_wide(vector a, vector b, vector c) {
#if defined(__AVX512F__)
    return (vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    for (int lane = 0; lane < WIDTH; lane++) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
#endif
}

/* log(1 + e^x) = max(x, 0) + log(1 + z) of z = e^-|x|, by the series of log(1 + z) = 2 artanh(z / (2 + z)),
whose argument is at most 1/3. */
INLINE floats softplus(floats x) {
    floats z = exponent(-larger(x, -x)), ratio = z / (2.0f + z), square = ratio * ratio;
    floats sum = square * (1.0f / 15) + 1.0f / 13;
    sum = sum * square + 1.0f / 11;
    sum = sum * square + 1.0f / 9;
    sum = sum * square + 1.0f / 7;
    sum = sum * square + 1.0f / 5;
    sum = sum * square + 1.0f / 3;
    sum = sum * square + 1.0f;
    return larger(x, (floats){}) + (ratio + ratio) * sum;
}

enum { NOWHERE = -2, KEPT = -1 }; /* besides the buffers of a thread, from 0 on */

/* One token, in the order of computation. */
struct step {
    int32_t row, parent; /* among the rows of the request; parent -1: the state before them */
    int32_t from, to;    /* where the matrix is read, and written */
};

/* The rows of one request in one layer. */
struct request {
    const entry *u, *gates;
    long stride, gates_stride;
    const int64_t *path;      /* row i is at path[i + 1] - 1; NULL: at i */
    const int32_t *parents;   /* of a tree's rows; NULL: a chain */
    const struct step *steps; /* of a tree; NULL: a chain */
    long count, kept, buffers;
    entry *inputs;            /* [conv_width - 1, channels] */
    float *matrices;          /* [v_heads, k_dim, v_dim] */
    entry *drafted, *drafted_gates;
    entry *out;               /* [count, v_heads, v_dim], or NULL */
};

/* One layer. */
struct layer {
    const struct delta_params *of;
    long channels, shared; /* shared: v heads of a k head */
    const float *conv, *decay, *dt_bias, *conv_bias;
};

static struct layer layer_of(const struct delta_params *of, long layer) {
    long channels = 2 * of->k_heads * of->k_dim + of->v_heads * of->v_dim;
    return (struct layer){of, channels, of->v_heads / of->k_heads,
                          of->conv + layer * of->conv_width * channels, of->decay + layer * of->v_heads,
                          of->dt_bias + layer * of->v_heads,
                          of->conv_bias ? of->conv_bias + layer * channels : NULL};
}

/* Gates of one head; those of all heads lie one gate after the other. */
INLINE long gates_of(const struct delta_params *of) { return of->rule == CONVOLUTION ? 0 : 2; }

INLINE long place_of(const struct request *in, long row) { return in->path ? in->path[row + 1] - 1 : row; }

INLINE struct step step_at(const struct request *in, long at) {
    if (in->steps) return in->steps[at];
    int is_kept = at < in->kept, follows_kept = at <= in->kept;
    int is_last = at + 1 == in->count;
    return (struct step){(int32_t)at, (int32_t)at - 1, follows_kept ? KEPT : 0,
                         is_kept ? KEPT : is_last ? NOWHERE : 0};
}

/* The inputs of the convolution up to a row, the oldest first; row -1: those of the state. */
static void find_inputs(const struct request *in, long row, long width, long channels, const entry **found) {
    for (long at = width - 1; at >= 0; at--) {
        if (row < 0) found[at] = in->inputs + (width - 1 + row--) * channels;
        else {
            found[at] = in->u + place_of(in, row) * in->stride;
            row = in->parents ? in->parents[row] : row - 1;
        }
    }
}

/* Convolves channels from `channel` on, `left` of which exist. */
INLINE floats convolved(const struct layer *by, const entry *const *inputs, long channel, long left) {
    floats sum = {};
    for (long input = 0; input < by->of->conv_width; input++)
        sum += load_some(inputs[input] + channel, left) *
               load_floats(by->conv + input * by->channels + channel, left);
    return by->conv_bias ? sum + load_floats(by->conv_bias + channel, left) : sum;
}

/* Convolves `dim` channels from `first` on, and applies silu; zeros up to a whole vector. */
static void convolve(const struct layer *by, const entry *const *inputs, long first, long dim, float *out) {
    EACH(at, dim) {
        floats sum = convolved(by, inputs, first + at, dim - at);
        floats x = sum / (1.0f + exponent(-sum));
        memcpy(out + at, &x, sizeof x);
    }
}

static float dot(const float *a, const float *b, long dim) {
    floats sum = {};
    EACH(at, dim) sum += load_floats(a + at, LANES) * load_floats(b + at, LANES);
    return sum_of(sum);
}

static void scale(float *x, float by, long dim) {
    EACH(at, dim) {
        floats scaled = load_floats(x + at, LANES) * by;
        memcpy(x + at, &scaled, sizeof scaled);
    }
}

INLINE float norm_of(const float *x, long dim) { return 1.0f / __builtin_sqrtf(dot(x, x, dim) + 1e-6f); }

/* What a thread computes of some tokens before it reads matrices. */
struct desk {
    float *q, *k, *v;     /* [tokens, k_room] twice, [tokens, v_room] */
    float *products;      /* [tokens]: q . k */
    float *kept, *shares; /* [tokens, gate_room]: a and b of the v heads */
    float *block;         /* [k_dim, COLUMNS]: columns that are no whole block */
    float *buffers;       /* [buffers, k_dim, COLUMNS] */
    long k_room, v_room, gate_room;
};

static struct desk desk_for(const struct layer *by, long tokens, long buffers) {
    struct desk on = {.k_room = up_to(by->of->k_dim, LANES),
                      .v_room = up_to(by->of->v_dim, COLUMNS),
                      .gate_room = up_to(by->shared, LANES)};
    long block = by->of->k_dim * COLUMNS;
    float *memory = scratch(tokens * (2 * on.k_room + on.v_room + 2 * on.gate_room) + up_to(tokens, LANES) +
                            (1 + buffers) * block);
    on.q = memory;
    on.k = on.q + tokens * on.k_room;
    on.v = on.k + tokens * on.k_room;
    on.kept = on.v + tokens * on.v_room;
    on.shares = on.kept + tokens * on.gate_room;
    on.block = on.shares + tokens * on.gate_room;
    on.buffers = on.block + block;
    on.products = on.buffers + buffers * block;
    return on;
}

/* Computes q, k and the gates of a k head's tokens from step `first` on. */
static void prepare(const struct layer *by, const struct request *in, struct desk on, long head, long first,
                    long count) {
    const struct delta_params *of = by->of;
    const entry *inputs[of->conv_width];
    long dim = of->k_dim, v_head = head * by->shared;
    for (long at = 0; at < count; at++) {
        float *q = on.q + at * on.k_room, *k = on.k + at * on.k_room;
        long row = step_at(in, first + at).row;
        find_inputs(in, row, of->conv_width, by->channels, inputs);
        convolve(by, inputs, head * dim, dim, q);
        convolve(by, inputs, (of->k_heads + head) * dim, dim, k);
        scale(q, norm_of(q, dim) * (1.0f / __builtin_sqrtf((float)dim)), dim);
        scale(k, norm_of(k, dim), dim);
        on.products[at] = dot(q, k, dim);
        const entry *betas = in->gates + place_of(in, row) * in->gates_stride + v_head;
        EACH(lane, by->shared) {
            long left = by->shared - lane;
            floats gate = load_some(betas + of->v_heads + lane, left);
            floats rate = softplus(gate + load_floats(by->dt_bias + v_head + lane, left));
            floats kept = exponent(-load_floats(by->decay + v_head + lane, left) * rate);
            floats share = 1.0f / (1.0f + exponent(-load_some(betas + lane, left)));
            memcpy(on.kept + at * on.gate_room + lane, &kept, sizeof kept);
            memcpy(on.shares + at * on.gate_room + lane, &share, sizeof share);
        }
    }
}

/* Computes v of one v head, zeros up to whole blocks of columns. */
static void prepare_values(const struct layer *by, const struct request *in, struct desk on, long head,
                           long first, long count) {
    const struct delta_params *of = by->of;
    const entry *inputs[of->conv_width];
    long channel = 2 * of->k_heads * of->k_dim + head * of->v_dim, written = up_to(of->v_dim, LANES);
    for (long at = 0; at < count; at++) {
        float *v = on.v + at * on.v_room;
        find_inputs(in, step_at(in, first + at).row, of->conv_width, by->channels, inputs);
        convolve(by, inputs, channel, of->v_dim, v);
        memset(v + written, 0, (size_t)(on.v_room - written) * sizeof(float));
    }
}

/* COLUMNS columns of a matrix, whose rows lie `stride` floats apart. */
struct columns {
    float *rows;
    long stride;
};

/* What one token does to columns. */
struct token {
    const float *q, *k, *v;
    float product, kept, share; /* q . k, a and b */
    long dim;                   /* of q and k */
};

/* Sums S^T k, and S^T q where y is wanted. */
INLINE void look_up(const int has_y, const struct token *by, struct columns s, vector *found, vector *y) {
    for (long row = 0; row < by->dim; row++, s.rows += s.stride)
        EACH_VECTOR(i) {
            vector entries;
            memcpy(&entries, s.rows + i * WIDTH, sizeof entries);
            found[i] += entries * by->k[row];
            if (has_y) y[i] += entries * by->q[row];
        }
}

/* Writes a S + k change^T. */
INLINE void change_by(const struct token *by, const vector *change, struct columns from, struct columns to) {
    for (long row = 0; row < by->dim; row++, from.rows += from.stride, to.rows += to.stride) {
        vector k = by->k[row] - (vector){};
        EACH_VECTOR(i) {
            vector entries;
            memcpy(&entries, from.rows + i * WIDTH, sizeof entries);
            entries = fused_wide(k, change[i], entries * by->kept);
            memcpy(to.rows + i * WIDTH, &entries, sizeof entries);
        }
    }
}

/* Passes one token; y [COLUMNS] is not wanted where it is NULL, nor S where it has nowhere to go. */
INLINE void pass(const int has_y, const struct token *by, struct columns from, const struct columns *to,
                 float *out) {
    vector found[VECTORS] = {}, y[VECTORS] = {}, change[VECTORS];
    look_up(has_y, by, from, found, y);
    EACH_VECTOR(i) {
        vector v;
        memcpy(&v, by->v + i * WIDTH, sizeof v);
        change[i] = (v - found[i] * by->kept) * by->share;
        y[i] = fused_wide(change[i], by->product - (vector){}, y[i] * by->kept);
        if (has_y) memcpy(out + i * WIDTH, &y[i], sizeof y[i]);
    }
    if (to) change_by(by, change, from, *to);
}

/* Copies `count` columns, and zeros after them. */
static void copy_in(struct columns to, const float *from, long stride, long rows, long count) {
    for (long row = 0; row < rows; row++) {
        memcpy(to.rows + row * to.stride, from + row * stride, (size_t)count * sizeof(float));
        memset(to.rows + row * to.stride + count, 0, (size_t)(COLUMNS - count) * sizeof(float));
    }
}

static void copy_out(float *to, long stride, struct columns from, long rows, long count) {
    for (long row = 0; row < rows; row++)
        memcpy(to + row * stride, from.rows + row * from.stride, (size_t)count * sizeof(float));
}

/* Passes prepared tokens through the columns of a v head from `column` on. */
static void pass_all(const struct layer *by, const struct request *in, struct desk on, long head, long column,
                     long first, long count) {
    const struct delta_params *of = by->of;
    long dim = of->k_dim, width = of->v_dim, left = width - column;
    float *matrix = in->matrices + head * dim * width + column;
    struct columns kept = {matrix, width}, block = {on.block, COLUMNS};
    int is_copied = left < COLUMNS || in->kept - first >= MANY;
    if (is_copied) copy_in(kept = block, matrix, width, dim, left < COLUMNS ? left : COLUMNS);
    for (long at = 0; at < count; at++) {
        struct step step = step_at(in, first + at);
        struct columns from = step.from == KEPT ? kept : (struct columns){on.buffers, COLUMNS}, to = from;
        if (step.from > 0) from.rows += step.from * dim * COLUMNS;
        if (step.to >= 0) to = (struct columns){on.buffers + step.to * dim * COLUMNS, COLUMNS};
        long gate = at * on.gate_room + head % by->shared;
        struct token token = {on.q + at * on.k_room, on.k + at * on.k_room, on.v + at * on.v_room + column,
                              on.products[at], on.kept[gate], on.shares[gate], dim};
        const struct columns *next = step.to == NOWHERE ? NULL : &to;
        if (!in->out) {
            pass(0, &token, from, next, NULL);
            continue;
        }
        __attribute__((aligned(64))) float y[COLUMNS];
        pass(1, &token, from, next, y);
        entry *out = in->out + (step.row * of->v_heads + head) * width + column;
        for (long lane = 0; lane < COLUMNS && lane < left; lane += LANES)
            store_some(out + lane, load_floats(y + lane, LANES), left - lane);
    }
    if (is_copied) copy_out(matrix, width, block, dim, left < COLUMNS ? left : COLUMNS);
}

/* Keeps the inputs of `dim` channels after the kept rows, and stores those of the drafted rows. */
static void keep_inputs(const struct layer *by, const struct request *in, long channel, long dim) {
    const entry *found[by->of->conv_width];
    find_inputs(in, in->kept - 1, by->of->conv_width, by->channels, found);
    for (long at = 1; at < by->of->conv_width; at++)
        memmove(in->inputs + (at - 1) * by->channels + channel, found[at] + channel,
                (size_t)dim * sizeof(entry));
    for (long row = in->kept; row < in->count; row++)
        memcpy(in->drafted + (row - in->kept) * by->channels + channel, in->u + row * in->stride + channel,
               (size_t)dim * sizeof(entry));
}

static void store_gates(const struct layer *by, const struct request *in, long head) {
    long heads = by->of->v_heads, all = gates_of(by->of) * heads, size = by->shared * (long)sizeof(entry);
    for (long row = in->kept; row < in->count; row++)
        for (long at = head * by->shared; at < all; at += heads)
            memcpy(in->drafted_gates + (row - in->kept) * all + at, in->gates + row * in->gates_stride + at,
                   (size_t)size);
}

/* All rows of a request through a convolution; there is no order in which they must be computed. */
static void pass_convolution(const struct layer *by, const struct request *in) {
    const entry *inputs[by->of->conv_width];
    for (long row = 0; in->out && row < in->count; row++) {
        find_inputs(in, row, by->of->conv_width, by->channels, inputs);
        EACH(at, by->channels) {
            long left = by->channels - at;
            store_some(in->out + row * by->channels + at, convolved(by, inputs, at, left), left);
        }
    }
    keep_inputs(by, in, 0, by->channels);
}

/* All rows of a request through one k head. */
static void pass_head(const struct layer *by, const struct request *in, long head) {
    const struct delta_params *of = by->of;
    if (of->rule == CONVOLUTION) {
        pass_convolution(by, in);
        return;
    }
    long most = in->kept < in->count || in->count < TOGETHER ? in->count : TOGETHER;
    struct desk on = desk_for(by, most, in->buffers);
    for (long first = 0; first < in->count; first += most) {
        long count = in->count - first < most ? in->count - first : most;
        prepare(by, in, on, head, first, count);
        for (long v_head = head * by->shared; v_head < (head + 1) * by->shared; v_head++) {
            prepare_values(by, in, on, v_head, first, count);
            for (long column = 0; column < of->v_dim; column += COLUMNS)
                pass_all(by, in, on, v_head, column, first, count);
        }
    }
    long width = by->shared * of->v_dim;
    keep_inputs(by, in, head * of->k_dim, of->k_dim);
    keep_inputs(by, in, (of->k_heads + head) * of->k_dim, of->k_dim);
    keep_inputs(by, in, 2 * of->k_heads * of->k_dim + head * width, width);
    store_gates(by, in, head);
}

/* A request's state in one layer. */
static void find_state(struct request *in, const struct layer *by, const struct delta_state *state, long layer,
                       long slot) {
    const struct delta_params *of = by->of;
    long at = layer * state->slots + slot;
    in->inputs = state->inputs + at * (of->conv_width - 1) * by->channels;
    in->matrices = state->matrices + at * of->v_heads * of->k_dim * of->v_dim;
    at = (layer * state->drafted_slots + slot) * state->nodes;
    in->drafted = state->drafted + at * by->channels;
    in->drafted_gates = state->gates + at * gates_of(of) * of->v_heads;
}

/* Orders the nodes of a tree depth first; `numbers` [4, count] and steps [count] are memory for it. */
static void plan_tree(struct request *in, const uint8_t *marks, long stride, int32_t *numbers,
                      struct step *steps) {
    int32_t count = (int32_t)in->count, *parents = numbers, *child = numbers + count;
    int32_t *next = child + count, *level = next + count;
    for (int32_t node = 0; node < count; node++) {
        child[node] = next[node] = parents[node] = -1;
        for (int32_t at = 0; at < node; at++)
            if (marks[node * stride + at]) parents[node] = at;
        if (node && parents[node] < 0) parents[node] = 0;
    }
    for (int32_t node = count - 1; node > 0; node--) {
        next[node] = child[parents[node]];
        child[parents[node]] = node;
    }
    in->parents = parents, in->steps = steps, in->buffers = 0;
    for (int32_t node = 0, at = 0; at < count; at++) {
        int32_t parent = parents[node], is_last = next[node] < 0;
        level[node] = !node ? KEPT : !parent ? 0 : level[parent] + !is_last;
        if (level[node] >= in->buffers) in->buffers = level[node] + 1;
        steps[at] = (struct step){node, parent, node ? level[parent] : KEPT,
                                  node && child[node] < 0 ? NOWHERE : level[node]};
        if (child[node] >= 0) node = child[node];
        else {
            while (node > 0 && next[node] < 0) node = parents[node];
            node = node ? next[node] : 0;
        }
    }
}

/* Numbers of 32 bits that each row needs in `workspace`: those of a tree, and steps. */
#define ROW_NUMBERS (4 + (long)(sizeof(struct step) / sizeof(int32_t)))

static struct request take_request(const struct layer *by, const struct delta_state *state,
                                   const struct delta_rows *rows, long layer, const struct delta_inputs *from,
                                   entry *out, long request, int32_t *workspace) {
    long first = rows->starts[request], count = rows->starts[request + 1] - first;
    struct request in = {.u = from->u + first * from->stride,
                         .gates = from->gates + first * from->gates_stride,
                         .stride = from->stride,
                         .gates_stride = from->gates_stride,
                         .count = count,
                         .kept = request < rows->chunks ? count : 1,
                         .buffers = request < rows->chunks ? 0 : 1,
                         .out = out + first * by->of->v_heads * by->of->v_dim};
    if (!count) return in;
    find_state(&in, by, state, layer, rows->slots[first]);
    if (rows->ancestry) {
        int32_t *numbers = workspace + first * ROW_NUMBERS;
        plan_tree(&in, rows->ancestry + request * rows->batch_stride, rows->node_stride, numbers,
                  (struct step *)(numbers + 4 * count));
    }
    return in;
}

/* One layer of a forward, to out [rows, v_heads, v_dim]; workspace holds ROW_NUMBERS of each row, requests
memory for one `struct request` of each. */
void gated_delta(const struct delta_params *params, const struct delta_state *state,
                 const struct delta_rows *rows, long layer, const struct delta_inputs *from, entry *out,
                 int32_t *workspace) {
    struct layer by = layer_of(params, layer);
    struct request *requests = malloc((size_t)rows->batch * sizeof *requests + 1);
    if (!requests) abort();
    for (long at = 0; at < rows->batch; at++)
        requests[at] = take_request(&by, state, rows, layer, from, out, at, workspace);
    long heads = params->k_heads, tasks = rows->batch * heads;
    long work = rows->starts[rows->batch] * params->v_heads * (params->k_dim + 1) * params->v_dim;
#pragma omp parallel for schedule(dynamic) if (tasks > 1 && work > LEAST_PARALLEL)
    for (long task = 0; task < tasks; task++)
        if (requests[task / heads].count) pass_head(&by, requests + task / heads, task % heads);
    free(requests);
}

/* Passes the accepted nodes of one request through one k head of one layer. */
static void keep_head(const struct delta_params *params, const struct delta_state *state, long layer, long slot,
                      const int64_t *path, long accepted, long head) {
    struct layer by = layer_of(params, layer);
    struct request in = {.stride = by.channels,
                         .gates_stride = gates_of(params) * params->v_heads,
                         .path = path,
                         .count = accepted,
                         .kept = accepted};
    find_state(&in, &by, state, layer, slot);
    in.u = in.drafted, in.gates = in.drafted_gates;
    pass_head(&by, &in, head);
}

/* Folds accepted [batch] nodes of each request, those of path [batch, path_stride] after the root, into
the states of slots [batch] in all layers; path may be NULL. */
void keep_drafted(const struct delta_params *params, const struct delta_state *state, const int64_t *slots,
                  const int64_t *path, long path_stride, const int64_t *accepted, long batch) {
    long heads = params->k_heads, tasks = params->layers * batch * heads;
#pragma omp parallel for schedule(dynamic) if (tasks > 1)
    for (long task = 0; task < tasks; task++) {
        long request = task / heads % batch, layer = task / heads / batch;
        if (accepted[request])
            keep_head(params, state, layer, slots[request], path ? path + request * path_stride : NULL,
                      accepted[request], task % heads);
    }
}
