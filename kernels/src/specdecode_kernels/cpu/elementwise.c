/* The ops that treat every row alone: residual and norm, rotation, gates, softcap. */
#include "vectors.h"

#define EACH(at, dim) for (long at = 0; at < (dim); at += LANES)

static float mean_square(const entry *row, long dim) {
    floats sum = {};
    EACH(at, dim) {
        floats x = load_some(row + at, dim - at);
        sum += x * x;
    }
    return sum_of(sum) / (float)dim;
}

/* `count` numbers of a weight: floats if it is wide, else entries. */
INLINE floats load_weight(const void *weight, long is_wide, long at, long count) {
    if (is_wide) return load_floats((const float *)weight + at, count);
    return load_some((const entry *)weight + at, count);
}

/* x [rows, dim] to root mean square 1, times `weight`; rows `stride` entries apart. */
void rms_norm(const entry *x, long stride, const void *weight, long is_wide, float eps, entry *out,
              long rows, long dim) {
    for (long row = 0; row < rows; row++, x += stride, out += dim) {
        floats scale = spread(1.0f / __builtin_sqrtf(mean_square(x, dim) + eps));
        EACH(at, dim) {
            floats factor = load_weight(weight, is_wide, at, dim - at);
            store_some(out + at, load_some(x + at, dim - at) * scale * factor, dim - at);
        }
    }
}

/* summed = x + update, rounded; normed = its norm. */
void add_rms_norm(const entry *x, long stride, const entry *update, long update_stride,
                  const void *weight, long is_wide, float eps, entry *summed, entry *normed, long rows,
                  long dim) {
    for (long row = 0; row < rows; row++)
        EACH(at, dim) {
            floats sum = load_some(x + row * stride + at, dim - at) +
                         load_some(update + row * update_stride + at, dim - at);
            store_some(summed + row * dim + at, sum, dim - at);
        }
    rms_norm(summed, dim, weight, is_wide, eps, normed, rows, dim);
}

/* Turns the pairs (first half, second half) of `heads` heads that lie side by side, in place. */
static void rotate(entry *x, long heads, long dim, const float *cos, const float *sin) {
    long half = dim / 2;
    for (long head = 0; head < heads; head++, x += dim)
        EACH(at, half) {
            long count = half - at < LANES ? half - at : LANES;
            floats c = load_floats(cos + at, count), s = load_floats(sin + at, count);
            floats first = load_some(x + at, count), second = load_some(x + half + at, count);
            store_some(x + at, fused(-second, s, first * c), count);
            store_some(x + half + at, fused(first, s, second * c), count);
        }
}

/* q and k [rows, heads, dim], rows `stride` entries apart; cos and sin [rows, dim / 2]. */
void apply_rope(entry *q, long q_stride, long q_heads, entry *k, long k_stride, long k_heads,
                const float *cos, const float *sin, long rows, long dim) {
    for (long row = 0; row < rows; row++, cos += dim / 2, sin += dim / 2) {
        rotate(q + row * q_stride, q_heads, dim, cos, sin);
        rotate(k + row * k_stride, k_heads, dim, cos, sin);
    }
}

/* silu(gate) * up, both [rows, dim] with rows `stride` entries apart, to out [rows, dim]. */
void silu_and_mul(const entry *gate, long gate_stride, const entry *up, long up_stride, entry *out,
                  long rows, long dim) {
    for (long row = 0; row < rows; row++, gate += gate_stride, up += up_stride, out += dim)
        EACH(at, dim) {
            floats x = load_some(gate + at, dim - at);
            floats gated = x / (1.0f + exponent(-x)) * load_some(up + at, dim - at);
            store_some(out + at, gated, dim - at);
        }
}

/* gelu(gate) * up by the approximation with tanh, as `silu_and_mul`. Half of 1 + tanh(y) is the
sigmoid of 2y, so no tanh is needed; 2y = 2 sqrt(2 / pi) (x + 0.044715 x^3). */
void gelu_tanh_and_mul(const entry *gate, long gate_stride, const entry *up, long up_stride, entry *out,
                       long rows, long dim) {
    const float slope = 1.5957691216057308f;
    for (long row = 0; row < rows; row++, gate += gate_stride, up += up_stride, out += dim)
        EACH(at, dim) {
            floats x = load_some(gate + at, dim - at);
            floats inner = (x + x * x * x * 0.044715f) * slope;
            floats gated = x / (1.0f + exponent(-inner)) * load_some(up + at, dim - at);
            store_some(out + at, gated, dim - at);
        }
}

/* cap * tanh(x / cap) of `count` logits, which are floats whatever entries are. */
void softcap(const float *x, float cap, float *out, long count) {
    EACH(at, count) {
        long left = count - at < LANES ? count - at : LANES;
        floats capped = hyperbolic_tangent(load_floats(x + at, left) / cap) * cap;
        memcpy(out + at, &capped, (size_t)left * sizeof(float));
    }
}
