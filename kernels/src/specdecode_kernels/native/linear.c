/* A linear map whose weight is laid out in the order in which it is read.

Outputs are cut into blocks of 64; within a block, the 64 weights of one input lie side by side (in
bfloat16 those of two inputs, by pairs). So a product with one row reads memory once, from front to
back. Every output is one sum over the inputs in their order, whatever the number of rows, of
threads, and however the inputs are cut: a row's bits depend on the row alone. */
#include "vectors.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define BLOCK 64    /* outputs side by side */
#define AHEAD 4096  /* bytes: how far to ask for weights before they are needed */
#define SLAB 96     /* rows that share a block while it is in the cache */
#define CUT 1024    /* inputs after which the next rows take their turn */

#ifdef __AVX512F__
#define WIDTH 4     /* vectors of a block, and rows, whose sums stay in registers */
#define MOST_ROWS 6
#else
#define WIDTH 1
#define MOST_ROWS 4
#endif

#ifdef BFLOAT16
#define STEP 2      /* inputs whose weights lie side by side */

typedef words weights;

INLINE floats add_product(floats sum, weights w, uint32_t pair) {
#ifdef __AVX512BF16__
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32((int)pair));
#else
    sum += (floats)(w << 16) * widen((entry)pair);
    return sum + (floats)(w & 0xffff0000) * widen((entry)(pair >> 16));
#endif
}

/* Two inputs of a row; past an odd end, a zero. */
INLINE uint32_t inputs_at(const entry *row, long at, long inputs) {
    uint32_t pair = 0;
    if (at + 1 < inputs) memcpy(&pair, row + at, sizeof pair);
    else pair = row[at];
    return pair;
}

#else
#define STEP 1

typedef floats weights;

INLINE floats add_product(floats sum, weights w, float input) { return sum + w * input; }

INLINE float inputs_at(const entry *row, long at, long inputs) {
    (void)inputs;
    return row[at];
}

#endif

/* Goes on with the sums of some rows from input `first` to `last`. */
INLINE void add_products(const int rows, const entry *block, const entry *x, long stride, float *sums,
                         long first, long last, long inputs) {
    for (int part = 0; part < BLOCK / LANES; part += WIDTH) {
        floats sum[MOST_ROWS][WIDTH];
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < WIDTH; i++)
                sum[row][i] = ((const floats *)(sums + row * BLOCK))[part + i];
        for (long at = first; at < last; at += STEP) {
            const weights *w = (const weights *)(block + at * BLOCK) + part;
            for (int i = 0; i < WIDTH; i++) __builtin_prefetch((const char *)(w + i) + AHEAD, 0, 3);
            for (int row = 0; row < rows; row++)
                for (int i = 0; i < WIDTH; i++)
                    sum[row][i] = add_product(sum[row][i], w[i], inputs_at(x + row * stride, at, inputs));
        }
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < WIDTH; i++)
                ((floats *)(sums + row * BLOCK))[part + i] = sum[row][i];
    }
}

#define CASE(rows) \
    case rows: add_products(rows, block, x, stride, sums, first, last, inputs); break;

static void add_rows(int rows, const entry *block, const entry *x, long stride, float *sums, long first,
                     long last, long inputs) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4)
#if MOST_ROWS > 4
        CASE(5) CASE(6)
#endif
    }
}

/* Adds the bias, rounds, and writes as many outputs as there are. */
static void finish(const float *sums, const entry *bias, entry *out, long outputs) {
    for (long at = 0; at < outputs; at += LANES) {
        floats sum = *(const floats *)(sums + at);
        if (bias) sum += load_some(bias + at, outputs - at);
        store_some(out + at, sum, outputs - at);
    }
}

static void map_block(const entry *block, const entry *x, long stride, const entry *bias, entry *out,
                      long rows, long outputs, long inputs, long width) {
    __attribute__((aligned(64))) float sums[SLAB * BLOCK];
    for (long top = 0; top < rows; top += SLAB) {
        long height = rows - top < SLAB ? rows - top : SLAB;
        memset(sums, 0, (size_t)height * BLOCK * sizeof(float));
        for (long first = 0; first < inputs; first += CUT) {
            long last = inputs - first < CUT ? inputs : first + CUT;
            for (long row = 0; row < height;) {
                long left = height - row, turns = (left + MOST_ROWS - 1) / MOST_ROWS;
                long some = (left + turns - 1) / turns;
                add_rows((int)some, block, x + (top + row) * stride, stride, sums + row * BLOCK, first,
                         last, inputs);
                row += some;
            }
        }
        for (long row = 0; row < height; row++)
            finish(sums + row * BLOCK, bias, out + (top + row) * outputs, width);
    }
}

/* Lays a weight [outputs, inputs] out in blocks; what fills them up is zero. */
void pack(const entry *weight, entry *packed, long outputs, long inputs) {
    long padded = (inputs + STEP - 1) / STEP * STEP;
#pragma omp parallel for schedule(static)
    for (long first = 0; first < outputs; first += BLOCK)
        for (long at = 0; at < padded; at++)
            for (long i = 0; i < BLOCK; i++) {
                int is_there = first + i < outputs && at < inputs;
                packed[first * padded + at / STEP * STEP * BLOCK + i * STEP + at % STEP] =
                    is_there ? weight[(first + i) * inputs + at] : 0;
            }
}

/* x [rows, inputs], rows `stride` entries apart, to out [rows, outputs]; bias may be NULL. */
void linear(const entry *packed, const entry *x, long stride, const entry *bias, entry *out, long rows,
            long outputs, long inputs) {
    long padded = (inputs + STEP - 1) / STEP * STEP;
#pragma omp parallel for schedule(static) if (outputs * inputs > 65536)
    for (long at = 0; at < outputs; at += BLOCK) {
        long width = outputs - at < BLOCK ? outputs - at : BLOCK;
        map_block(packed + at * padded, x, stride, bias ? bias + at : NULL, out + at, rows, outputs,
                  inputs, width);
    }
}
