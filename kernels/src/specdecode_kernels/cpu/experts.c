/* A mixture of experts: rows are sorted by expert, so that each expert's weights are read once and map
all of its rows. The map is that of linear.c and the sum over a row's experts is in their order, so a
row's bits depend on the row alone, whatever the number of rows and of threads. */
#include "linear.h"

#define EACH(at, dim) for (long at = 0; at < (dim); at += LANES)

enum { SILU, GELU, GELU_TANH, SWIGLUOAI };

struct sizes {
    long rows, top_k, experts, hidden, inner, kind; /* kind of the gate, as above */
};

struct gate {
    float alpha, limit; /* of SWIGLUOAI */
};

/* The error function by Abramowitz and Stegun, 7.1.26; off by at most 1.5e-7. */
INLINE floats error_function(floats x) {
    floats size = larger(x, -x), t = 1.0f / (1.0f + 0.3275911f * size);
    floats sum = t * 1.061405429f - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    floats found = 1.0f - sum * t * exponent(-size * size);
    return pick(x < (floats){}, -found, found);
}

INLINE floats activated(long kind, struct gate of, floats gate, floats up) {
    if (kind == SILU) return gate / (1.0f + exponent(-gate)) * up;
    if (kind == GELU) return gate * 0.5f * (1.0f + error_function(gate * 0.70710678118654752f)) * up;
    if (kind == GELU_TANH) {
        floats cubic = gate + gate * gate * gate * 0.044715f;
        return gate * 0.5f * (1.0f + hyperbolic_tangent(cubic * 0.79788456080286536f)) * up;
    }
    floats limit = spread(of.limit), bounded = pick(gate > limit, limit, gate);
    up = pick(up > limit, limit, pick(up < -limit, -limit, up));
    return bounded / (1.0f + exponent(-bounded * of.alpha)) * (up + 1.0f);
}

/* Sorted rows of one expert. */
struct slab {
    int64_t expert, first, rows;
};

/* Rows sorted by expert. */
struct sorted {
    long *starts;       /* [experts + 1]: where each expert's rows begin */
    long *places;       /* [pairs]: where each pair of a row and an expert goes */
    long *sources;      /* [pairs]: the row that a place comes from */
    struct slab *slabs; /* [found], at most one for each pair */
    long found;
};

/* Lists the slabs of all experts that have rows. */
static long cut_slabs(const long *starts, long experts, struct slab *slabs) {
    long found = 0;
    for (long expert = 0; expert < experts; expert++)
        for (long first = starts[expert], end = starts[expert + 1]; first < end; first += SLAB)
            slabs[found++] = (struct slab){expert, first, end - first < SLAB ? end - first : SLAB};
    return found;
}

static struct sorted sort_pairs(const int32_t *ids, struct sizes of, long *order) {
    long pairs = of.rows * of.top_k;
    struct sorted by = {order, order + of.experts + 1, order + of.experts + 1 + pairs,
                        (struct slab *)(order + of.experts + 1 + 2 * pairs), 0};
    memset(by.starts, 0, (size_t)(of.experts + 1) * sizeof *by.starts);
    for (long pair = 0; pair < pairs; pair++) by.starts[ids[pair] + 1]++;
    for (long expert = 0; expert < of.experts; expert++) by.starts[expert + 1] += by.starts[expert];
    for (long pair = 0; pair < pairs; pair++) {
        by.places[pair] = by.starts[ids[pair]]++;
        by.sources[by.places[pair]] = pair / of.top_k;
    }
    for (long expert = of.experts; expert > 0; expert--) by.starts[expert] = by.starts[expert - 1];
    by.starts[0] = 0;
    by.found = cut_slabs(by.starts, of.experts, by.slabs);
    return by;
}

/* The weight of one of several experts that lie one after the other. */
INLINE struct weight weight_of(struct weight all, long expert) {
    all.blocks += expert * packed_bytes(all);
    return all;
}

/* Packs a slab in memory of this thread; sources as in `map_sorted`. */
static float *pack_slab(const struct slab *of, struct weight by, const entry *x, long stride,
                        const long *sources) {
    long wide = padded_inputs(by);
    float *packed = scratch(of->rows * wide);
    const entry *from = sources ? x : x + of->first * stride;
    pack_rows(from, stride, sources ? sources + of->first : NULL, of->rows, by.inputs, wide, packed);
    return packed;
}

/* Maps rows of x, `stride` entries apart, each by its expert's weight. Sources are those of sorted rows
where x is not sorted itself, else NULL. A thread packs a slab right before it maps it, while nothing
has displaced it from the caches; threads that share a slab pack it each. */
static void map_sorted(struct weight by, const entry *bias, const entry *x, long stride,
                       const long *sources, struct sorted of, struct result out) {
    long blocks = blocks_of(by.outputs);
#pragma omp parallel if (of.found * by.outputs * by.inputs > 65536)
    {
        const struct slab *packed = NULL;
        const float *rows = NULL;
#pragma omp for schedule(dynamic, 4)
        for (long task = 0; task < of.found * blocks; task++) {
            const struct slab *slab = of.slabs + task / blocks;
            if (slab != packed) rows = pack_slab(packed = slab, by, x, stride, sources);
            struct result here = {out.rows + slab->first * out.stride, out.stride};
            map_blocks(weight_of(by, slab->expert), bias ? bias + slab->expert * by.outputs : NULL,
                       task % blocks, 1, rows, slab->rows, here);
        }
    }
}

/* Activates rows of gate and up, side by side, in place: over the gate. */
static void activate(entry *rows, long pairs, long inner, long kind, struct gate of) {
#pragma omp parallel for schedule(static) if (pairs * inner > 16384)
    for (long pair = 0; pair < pairs; pair++) {
        entry *gate = rows + pair * 2 * inner;
        EACH(at, inner) {
            floats up = load_some(gate + inner + at, inner - at);
            store_some(gate + at, activated(kind, of, load_some(gate + at, inner - at), up), inner - at);
        }
    }
}

/* The sum of each row's outputs times their factors, to out [rows, hidden]. */
static void combine(const entry *outputs, const long *places, const float *factors, entry *out,
                    struct sizes of) {
#pragma omp parallel for schedule(static) if (of.rows * of.hidden > 16384)
    for (long row = 0; row < of.rows; row++)
        EACH(at, of.hidden) {
            floats sum = {};
            for (long pair = row * of.top_k; pair < (row + 1) * of.top_k; pair++)
                sum += load_some(outputs + places[pair] * of.hidden + at, of.hidden - at) * factors[pair];
            store_some(out + row * of.hidden + at, sum, of.hidden - at);
        }
}

/* x [rows, hidden], rows `stride` entries apart, to out [rows, hidden], by the experts ids [rows, top_k]
with factors [rows, top_k]. Weights are those of the first expert; biases may be NULL. workspace holds
pairs * (hidden + 2 * inner) entries, order experts + 1 + 5 * pairs numbers, where pairs = rows *
top_k. */
void experts(const struct weight *gate_up, const entry *gate_up_bias, const struct weight *down,
             const entry *down_bias, const entry *x, long stride, const int32_t *ids, const float *factors,
             entry *out, entry *workspace, long *order, const struct sizes *sizes, const struct gate *gate) {
    struct sizes of = *sizes;
    long pairs = of.rows * of.top_k;
    if (!pairs) return;
    struct sorted by = sort_pairs(ids, of, order);
    entry *inner = workspace, *outputs = workspace + pairs * 2 * of.inner;
    map_sorted(*gate_up, gate_up_bias, x, stride, by.sources, by, (struct result){inner, 2 * of.inner});
    activate(inner, pairs, of.inner, of.kind, *gate);
    map_sorted(*down, down_bias, inner, 2 * of.inner, NULL, by, (struct result){outputs, of.hidden});
    combine(outputs, by.places, factors, out, of);
}
