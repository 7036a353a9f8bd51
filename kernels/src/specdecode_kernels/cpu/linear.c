/* A linear map whose weight is laid out in the order in which it is read.

Outputs are cut into blocks of 64; within a block, the 64 weights of one input lie side by side (in
bfloat16 those of two inputs, by pairs). So a product with one row reads memory once, from front to
back. Every output is one sum over the inputs in their order, whatever the number of rows, of
threads, and however the inputs are cut: a row's bits depend on the row alone. */
#include "linear.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define SLAB 96     /* rows that share a block while it is in the cache */
#define CUT 512     /* most steps over the inputs before the next rows take their turn */
#ifndef SLAB_CUT    /* library.py chooses it for some processors */
#define SLAB_CUT CUT /* the same where all rows are one slab */
#endif
#define AHEAD 4096  /* bytes: how far to ask for weights that only one turn needs */
#define LINE 64     /* bytes that memory hands out at once */

#ifdef __AVX512F__
#define WIDTH 4     /* vectors of a block, and rows, whose sums stay in registers */
#define MOST_ROWS 6
#else
#define WIDTH 1
#define MOST_ROWS 4
#endif

#define PARTS (BLOCK / LANES / WIDTH)

#ifdef BFLOAT16
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

typedef floats weights;

INLINE floats add_product(floats sum, weights w, float input) { return sum + w * input; }

INLINE float inputs_at(const entry *row, long at, long inputs) {
    (void)inputs;
    return row[at];
}

#endif

/* Goes on with the sums of some rows from input `first` to `last`. A lone turn asks for weights
shortly before it needs them; others for their share of the `next` ones, `pace` bytes at each step. */
INLINE void add_products(const int rows, const int is_alone, const entry *block, const entry *x,
                         long stride, float *sums, long first, long last, long inputs,
                         const char *next, long pace) {
    for (int part = 0; part < BLOCK / LANES; part += WIDTH) {
        floats sum[MOST_ROWS][WIDTH];
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < WIDTH; i++)
                sum[row][i] = ((const floats *)(sums + row * BLOCK))[part + i];
        for (long at = first; at < last; at += STEP) {
            const weights *w = (const weights *)(block + at * BLOCK) + part;
            if (is_alone) {
                for (int i = 0; i < WIDTH; i++) __builtin_prefetch((const char *)(w + i) + AHEAD, 0, 3);
            } else {
                for (long i = 0; i < pace; i += LINE) __builtin_prefetch(next + i, 0, 2);
                next += pace;
            }
            for (int row = 0; row < rows; row++)
                for (int i = 0; i < WIDTH; i++)
                    sum[row][i] = add_product(sum[row][i], w[i], inputs_at(x + row * stride, at, inputs));
        }
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < WIDTH; i++)
                ((floats *)(sums + row * BLOCK))[part + i] = sum[row][i];
    }
}

#define CASE(rows, is_alone)                                                                        \
    case rows:                                                                                     \
        add_products(rows, is_alone, block, x, stride, sums, first, last, inputs, next, pace);     \
        break;

#if MOST_ROWS > 4
#define CASES(is_alone) \
    CASE(1, is_alone) CASE(2, is_alone) CASE(3, is_alone) CASE(4, is_alone) CASE(5, is_alone) CASE(6, is_alone)
#else
#define CASES(is_alone) CASE(1, is_alone) CASE(2, is_alone) CASE(3, is_alone) CASE(4, is_alone)
#endif

static void add_rows(int rows, const entry *block, const entry *x, long stride, float *sums, long first,
                     long last, long inputs, const char *next, long pace) {
    if (next) switch (rows) { CASES(0) }
    else switch (rows) { CASES(1) }
}

/* Adds the bias, rounds, and writes as many outputs as there are. */
static void finish(const float *sums, const entry *bias, entry *out, long outputs) {
    for (long at = 0; at < outputs; at += LANES) {
        floats sum = *(const floats *)(sums + at);
        if (bias) sum += load_some(bias + at, outputs - at);
        store_some(out + at, sum, outputs - at);
    }
}

/* Goes on with the sums of up to SLAB rows. While they take their turns with these weights, each turn
asks for its share of the next ones, so that memory does not wait for arithmetic. */
static void add_slab(const entry *block, const entry *x, long stride, float *sums, long rows, long first,
                     long last, long inputs) {
    long turns = (rows + MOST_ROWS - 1) / MOST_ROWS, bytes = BLOCK * STEP * (long)sizeof(entry);
    long steps = (last - first + STEP - 1) / STEP, shares = turns * PARTS;
    long pace = (bytes / shares + LINE - 1) / LINE * LINE;
    const char *next = turns == 1 ? NULL : (const char *)(block + first * BLOCK) + steps * bytes;
    for (long row = 0; row < rows; turns--) {
        long some = (rows - row + turns - 1) / turns;
        add_rows((int)some, block, x + row * stride, stride, sums + row * BLOCK, first, last, inputs,
                 next, pace);
        if (next) next += steps * pace * PARTS;
        row += some;
    }
}

void map_block(const entry *block, const entry *x, long stride, const entry *bias, entry *out, long rows,
               long outputs, long inputs, long width) {
    __attribute__((aligned(64))) float sums[SLAB * BLOCK];
    long most = rows > SLAB ? CUT : SLAB_CUT;
    long steps = (inputs + STEP - 1) / STEP, cuts = (steps + most - 1) / most;
    long cut = (steps + cuts - 1) / cuts * STEP;
    for (long top = 0; top < rows; top += SLAB) {
        long height = rows - top < SLAB ? rows - top : SLAB;
        memset(sums, 0, (size_t)height * BLOCK * sizeof(float));
        for (long first = 0; first < inputs; first += cut) {
            long last = inputs - first < cut ? inputs : first + cut;
            add_slab(block, x + top * stride, stride, sums, height, first, last, inputs);
        }
        for (long row = 0; row < height; row++)
            finish(sums + row * BLOCK, bias, out + (top + row) * outputs, width);
    }
}

/* Lays a weight [outputs, inputs] out in blocks; what fills them up is zero. */
void pack(const entry *weight, entry *packed, long outputs, long inputs) {
    long padded = padded_inputs(inputs);
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
    long padded = padded_inputs(inputs);
#pragma omp parallel for schedule(static) if (outputs * inputs > 65536)
    for (long at = 0; at < outputs; at += BLOCK) {
        long width = outputs - at < BLOCK ? outputs - at : BLOCK;
        map_block(packed + at * padded, x, stride, bias ? bias + at : NULL, out + at, rows, outputs,
                  inputs, width);
    }
}
