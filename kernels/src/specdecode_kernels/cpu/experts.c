/* A mixture of experts: rows are sorted by expert, so that each expert's weights are read once and map
all of its rows. A thread maps whole experts; where there are few, threads share them. The map is that
of linear.c and the sum over a row's experts is in their order, so a row's bits depend on the row alone,
whatever the number of rows and of threads. */
#include <omp.h>

#include "linear.h"

#define LEAST_PARALLEL 65536 /* weights of gates and ups */
#define SLABS_OF_THREAD 8    /* from how many slabs for each thread on threads do not share them */
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

/* What all slabs share. */
struct mixture {
    struct weight gate_up, down;
    const entry *gate_up_bias, *down_bias; /* or NULL */
    const entry *x;
    long stride; /* of x */
    struct sizes sizes;
    struct gate gate;
    struct sorted sorted;
    entry *inner, *outputs; /* [pairs, 2 * inner] and [pairs, hidden], sorted */
};

INLINE const entry *bias_of(const entry *all, struct weight by, long expert) {
    return all ? all + expert * by.outputs : NULL;
}

/* Activates rows of gate and up, side by side, in place: over the gate. */
static void activate(entry *rows, long count, long inner, long kind, struct gate of) {
    for (long row = 0; row < count; row++) {
        entry *gate = rows + row * 2 * inner;
        EACH(at, inner) {
            floats up = load_some(gate + inner + at, inner - at);
            store_some(gate + at, activated(kind, of, load_some(gate + at, inner - at), up), inner - at);
        }
    }
}

/* Maps packed rows by all blocks of a weight, one after the other. */
static void map_all(struct weight by, const entry *bias, const float *x, long rows, struct result out,
                    const char *after) {
    long blocks = blocks_of(by.outputs);
    for (long block = 0; block < blocks; block++)
        map_blocks(by, bias, block, 1, x, rows, out, block + 1 < blocks ? block_at(by, block + 1) : after);
}

/* Maps a slab by its expert. What lies between both maps stays in the caches of this thread. */
static void map_slab(const struct mixture *of, struct slab slab, const char *after) {
    struct weight gate_up = weight_of(of->gate_up, slab.expert), down = weight_of(of->down, slab.expert);
    long rows = slab.rows, width = of->sizes.hidden, inner = of->sizes.inner;
    long wide = padded_inputs(gate_up), narrow = padded_inputs(down);
    long packed_inputs = wide > narrow ? wide : narrow;
    float *packed = scratch(rows * (packed_inputs + 2 * inner));
    struct result gates = {(entry *)(packed + rows * packed_inputs), 2 * inner};
    struct result outputs = {of->outputs + slab.first * width, width};
    pack_rows(of->x, of->stride, of->sorted.sources + slab.first, rows, gate_up, packed);
    map_all(gate_up, bias_of(of->gate_up_bias, gate_up, slab.expert), packed, rows, gates, down.blocks);
    activate(gates.rows, rows, inner, of->sizes.kind, of->gate);
    pack_rows(gates.rows, gates.stride, NULL, rows, down, packed);
    map_all(down, bias_of(of->down_bias, down, slab.expert), packed, rows, outputs, after);
}

INLINE long claim(long *taken) { return __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED); }

/* Each thread maps whole slabs. It claims the next one before it maps one, so that it can fetch the next
one's weights. */
static void map_slabs(const struct mixture *of, long threads) {
    const struct slab *slabs = of->sorted.slabs;
    long taken = 0;
#pragma omp parallel num_threads(threads)
    for (long now = claim(&taken), next; now < of->sorted.found; now = next) {
        next = claim(&taken);
        long following = next < of->sorted.found ? next : now;
        map_slab(of, slabs[now], weight_of(of->gate_up, slabs[following].expert).blocks);
    }
}

/* Packs a slab in memory of this thread; sources as in `map_sorted`. */
static float *pack_slab(const struct slab *of, struct weight by, const entry *x, long stride,
                        const long *sources) {
    float *packed = scratch(of->rows * padded_inputs(by));
    const entry *from = sources ? x : x + of->first * stride;
    pack_rows(from, stride, sources ? sources + of->first : NULL, of->rows, by, packed);
    return packed;
}

/* Maps rows of x, `stride` entries apart, each by its expert's weight. Sources are those of sorted rows
where x is not sorted itself, else NULL. A thread packs a slab right before it maps it, while nothing
has displaced it from the caches; threads that share a slab pack it each. */
static void map_sorted(struct weight by, const entry *bias, const entry *x, long stride,
                       const long *sources, struct sorted of, struct result out) {
    long blocks = blocks_of(by.outputs);
#pragma omp parallel
    {
        const struct slab *packed = NULL;
        const float *rows = NULL;
#pragma omp for schedule(dynamic, 4)
        for (long task = 0; task < of.found * blocks; task++) {
            const struct slab *slab = of.slabs + task / blocks;
            if (slab != packed) rows = pack_slab(packed = slab, by, x, stride, sources);
            struct weight weight = weight_of(by, slab->expert);
            long block = task % blocks;
            map_blocks(weight, bias_of(bias, by, slab->expert), block, 1, rows, slab->rows,
                       (struct result){out.rows + slab->first * out.stride, out.stride},
                       block_at(weight, block + 1));
        }
    }
}

/* Threads map slabs together, block by block. */
static void share_slabs(const struct mixture *of) {
    long pairs = of->sizes.rows * of->sizes.top_k, stride = 2 * of->sizes.inner;
    map_sorted(of->gate_up, of->gate_up_bias, of->x, of->stride, of->sorted.sources, of->sorted,
               (struct result){of->inner, stride});
#pragma omp parallel for schedule(static) if (pairs * of->sizes.inner > 16384)
    for (long pair = 0; pair < pairs; pair++)
        activate(of->inner + pair * stride, 1, of->sizes.inner, of->sizes.kind, of->gate);
    map_sorted(of->down, of->down_bias, of->inner, stride, NULL, of->sorted,
               (struct result){of->outputs, of->sizes.hidden});
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
    long pairs = sizes->rows * sizes->top_k;
    if (!pairs) return;
    struct mixture of = {*gate_up, *down, gate_up_bias, down_bias, x, stride, *sizes, *gate,
                         sort_pairs(ids, *sizes, order), workspace, workspace + pairs * 2 * sizes->inner};
    long work = of.sorted.found * 2 * sizes->inner * sizes->hidden;
    long threads = work > LEAST_PARALLEL ? omp_get_max_threads() : 1;
    if (threads == 1 || of.sorted.found >= SLABS_OF_THREAD * threads) map_slabs(&of, threads);
    else share_slabs(&of);
    combine(of.outputs, of.sorted.places, factors, out, *sizes);
}
