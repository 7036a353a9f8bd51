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

/* The weights of one projection of all experts, packed; bias may be NULL. */
struct projection {
    const entry *packed, *bias;
    long outputs, inputs;
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

/* Where each expert's rows begin after sorting, `starts` [experts + 1], and where each pair of a row and
an expert goes, `places` [pairs]. Returns how many experts have rows; `busy` [experts] names them. */
static long sort_pairs(const int32_t *ids, long pairs, long experts, long *starts, long *places,
                       long *busy) {
    long found = 0;
    memset(starts, 0, (size_t)(experts + 1) * sizeof *starts);
    for (long pair = 0; pair < pairs; pair++) starts[ids[pair] + 1]++;
    for (long expert = 0; expert < experts; expert++) {
        if (starts[expert + 1]) busy[found++] = expert;
        starts[expert + 1] += starts[expert];
    }
    for (long pair = 0; pair < pairs; pair++) places[pair] = starts[ids[pair]]++;
    for (long expert = experts; expert > 0; expert--) starts[expert] = starts[expert - 1];
    starts[0] = 0;
    return found;
}

/* Maps the sorted rows x, `stride` entries apart, each by its expert's weights. */
static void map_sorted(struct projection by, const entry *x, long stride, entry *out, const long *starts,
                       const long *busy, long found) {
    long padded = padded_inputs(by.inputs), blocks = (by.outputs + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(dynamic, 4) if (found * by.outputs * by.inputs > 65536)
    for (long task = 0; task < found * blocks; task++) {
        long expert = busy[task / blocks], at = task % blocks * BLOCK, first = starts[expert];
        const entry *block = by.packed + (expert * blocks * BLOCK + at) * padded;
        const entry *bias = by.bias ? by.bias + expert * by.outputs + at : NULL;
        map_block(block, x + first * stride, stride, bias, out + first * by.outputs + at,
                  starts[expert + 1] - first, by.outputs, by.inputs,
                  by.outputs - at < BLOCK ? by.outputs - at : BLOCK);
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
with factors [rows, top_k]. Biases may be NULL. scratch holds pairs * (hidden + 2 * inner) entries, order
2 * experts + 1 + pairs numbers, where pairs = rows * top_k. */
void experts(const entry *gate_up, const entry *gate_up_bias, const entry *down, const entry *down_bias,
             const entry *x, long stride, const int32_t *ids, const float *factors, entry *out,
             entry *scratch, long *order, const struct sizes *sizes, const struct gate *gate) {
    struct sizes of = *sizes;
    long pairs = of.rows * of.top_k;
    long *starts = order, *busy = starts + of.experts + 1, *places = busy + of.experts;
    entry *sorted = scratch, *inner = scratch + pairs * of.hidden;
    long found = sort_pairs(ids, pairs, of.experts, starts, places, busy);
#pragma omp parallel for schedule(static) if (pairs * of.hidden > 65536)
    for (long pair = 0; pair < pairs; pair++)
        memcpy(sorted + places[pair] * of.hidden, x + pair / of.top_k * stride,
               (size_t)of.hidden * sizeof(entry));
    struct projection to_inner = {gate_up, gate_up_bias, 2 * of.inner, of.hidden};
    map_sorted(to_inner, sorted, of.hidden, inner, starts, busy, found);
    activate(inner, pairs, of.inner, of.kind, *gate);
    struct projection to_hidden = {down, down_bias, of.hidden, of.inner};
    map_sorted(to_hidden, inner, 2 * of.inner, sorted, starts, busy, found);
    combine(sorted, places, factors, out, of);
}
