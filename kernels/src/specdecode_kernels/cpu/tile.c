/* Register blocks of a matrix product, one for each number of rows and format of weights.

Sums have one of two orders, which a weight's layout names.

*inputs*, of what is below: every sum adds its products in the order of the inputs, each by one fused
multiply-add of float32. So a sum has the same bits in every tile, with vectors of any width, and however inputs are cut. With
groups each group has a sum of its own, of products with unscaled numbers; its scale is a factor of that
sum, which is then added to those of the groups before. A zero point is subtracted from each integer,
exactly: subtracted from a sum, large ones would leave its rounding errors.

*blocks32*, of blocks32.c, for rows of bfloat16: the order in which `TDPBF16PS` of Intel's AMX adds.

- Packed inputs (with an order of inputs: in that order) are cut into blocks of 32, each group by itself.
  The last block is filled with rows of +0; weights there are those of a stored 0, less the zero point.
- In each block one chain of fused multiply-adds of float32 adds the products of inputs 0, 2, 4 to 30 and
  another those of inputs 1, 3, 5 to 31, both in this order and from +0. The two sums are added, and what
  they give is added to the sum so far, from +0 on.
- Factors are numbers of bfloat16: an integer less its zero point, a float of 8 bits divided by 2^8, twice
  a float of 4 bits; in NVFP4 that times its scale divided by 2^8, which is exact. Factors, chains and
  sums below 2^-126 are zero with their sign, which x86 decides after rounding.
- A group sums its blocks from +0. One fused multiply-add, which does not flush, multiplies that by the
  scale and adds it to the groups before. NVFP4 has blocks alone, as weights without groups; its factor,
  and the scale of an output, multiply the finished sum, without flushing.

Not-a-numbers are such in both, with any bits. */
#include "tile.h"

#define TILE_FORMATS (SHIFTED_INT4 + 1)
#define EACH_ROW(row, rows) for (int row = 0; row < (rows); row++)
#define EACH_PART(part, parts) for (int part = 0; part < (parts); part++)

enum { PLAIN, GROUPED, WIDENED, KINDS }; /* what a tile reads; widened are the numbers of groups */

INLINE void fetch_line(const char *line, long level) {
    if (level == 1) __builtin_prefetch(line, 0, 3);
    else if (level == 2) __builtin_prefetch(line, 0, 2);
    else __builtin_prefetch(line, 0, 0);
}

/* Fetches what lies `distance` after `bytes` that are read now. */
INLINE void fetch_further(const struct prefetch *ahead, const char *now, long bytes) {
    if (ahead->distance)
        for (long at = 0; at < bytes; at += LINE) fetch_line(now + ahead->distance + at, ahead->level);
}

/* Fetches other memory at every few inputs of a chunk. On an AMD EPYC, 8 rows take a tenth less time when
the lines of a chunk are fetched at once; on an Intel Xeon a tenth more. */
INLINE void fetch_next(struct prefetch *ahead, long input) {
    if (ahead->distance || input & (ahead->every - 1)) return;
    for (long line = 0; line < ahead->lines; line++, ahead->next += LINE)
        if (ahead->level == 2) __builtin_prefetch(ahead->next, 0, 2);
        else __builtin_prefetch(ahead->next, 0, 3);
}

/* Adds the products of a pair of inputs: the first one's, then the second one's. */
INLINE vector add_pair(vector sum, bits weights, float pair) {
#if HAS_PAIRS
    int both;
    memcpy(&both, &pair, sizeof both);
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(both));
#else
    (void)weights, (void)pair;
    return sum;
#endif
}

/* Adds the products of one input of a step. */
INLINE void add_input(const int format, const int rows, const int parts, const bits *words,
                      const vector *zeros, int at, const float *x, vector sums[][PARTS]) {
    vector w[PARTS];
    EACH_PART(part, parts) {
        w[part] = weights_of(format, words[part], at);
        if (is_shifted(format)) w[part] -= zeros[part];
    }
    EACH_ROW(row, rows) EACH_PART(part, parts) sums[row][part] += w[part] * x[row];
}

/* Adds the products of CHUNK inputs to the sums in registers; those with zero points have `zeros`. Shifts by constants
save a fifth of the time of 4 to 8 rows with weights of 4 bits on an AMD EPYC; with AVX2 all of them at once
do not fit in its registers where rows are several, and take up to a third longer. */
INLINE void add_chunk(const int format, const int rows, const int parts, const char *weights,
                      const vector *zeros, int first, const float *x, vector sums[][PARTS],
                      struct prefetch *ahead) {
    const int step = step_of(format);
    for (int input = 0; input < CHUNK; input += step, weights += step_bytes(format)) {
        fetch_further(ahead, weights, step_bytes(format));
        fetch_next(ahead, input);
        bits words[PARTS];
        load_step(format, weights, first, parts, words);
        if (format == OF_PAIRS) {
            EACH_ROW(row, rows) EACH_PART(part, parts)
                sums[row][part] = add_pair(sums[row][part], words[part], x[row]);
            x += rows;
            continue;
        }
        if (WIDTH == 16 || rows == 1)
#pragma GCC unroll 8
            for (int at = 0; at < step; at++, x += rows) add_input(format, rows, parts, words, zeros, at, x, sums);
        else
            for (int at = 0; at < step; at++, x += rows) add_input(format, rows, parts, words, zeros, at, x, sums);
    }
}

/* Adds the products of all inputs from `weights` on. */
INLINE void add_inputs(const int format, const int rows, const int parts, const char *weights,
                       const vector *zeros, int first, const float *x, long inputs, vector sums[][PARTS], struct prefetch *ahead) {
    const long bytes = CHUNK / step_of(format) * step_bytes(format);
    do {
        add_chunk(format, rows, parts, weights, zeros, first, x, sums, ahead);
        weights += bytes;
        x += numbers_of(format, CHUNK) * rows;
    } while (inputs -= CHUNK);
}

INLINE void load_sums(const int rows, const int parts, const float *sums, vector held[][PARTS]) {
    EACH_ROW(row, rows) EACH_PART(part, parts)
        memcpy(&held[row][part], sums + row * BLOCK + part * WIDTH, sizeof(vector));
}

INLINE void store_sums(const int rows, const int parts, float *sums, vector held[][PARTS]) {
    EACH_ROW(row, rows) EACH_PART(part, parts)
        memcpy(sums + row * BLOCK + part * WIDTH, &held[row][part], sizeof(vector));
}

/* Adds the scaled sums of a group to those of the groups before. */
INLINE void add_scaled(const int scales, const int rows, const int parts, const char *header, int first,
                       vector held[][PARTS], float *sums) {
    EACH_PART(part, parts) {
        vector scale = scales_of(scales, header, first + part);
        EACH_ROW(row, rows) {
            float *place = sums + row * BLOCK + part * WIDTH;
            vector sum;
            memcpy(&sum, place, sizeof sum);
            sum += scale * held[row][part];
            memcpy(place, &sum, sizeof sum);
        }
    }
}

/* Where the groups of a panel lie: headers, and numbers of a format. */
struct groups {
    struct layout layout;
    const char *headers, *values;
    long header_stride, value_stride;
};

/* The next group of a panel. */
INLINE struct groups following(struct groups of) {
    of.headers += of.header_stride;
    of.values += of.value_stride;
    return of;
}

INLINE const char *group_zeros(struct groups of) { return of.headers + BLOCK * scale_bytes(of.layout); }

/* Adds the products of one chunk of the inputs of a group. */
INLINE void add_group_chunk(const int format, const int rows, const int parts, struct groups of, int first,
                            const float *x, long at, vector held[][PARTS], struct prefetch *ahead) {
    const char *values = of.values + at / step_of(format) * step_bytes(format);
    vector zeros[PARTS] = {};
    if (is_shifted(format)) EACH_PART(part, parts) zeros[part] = zeros_of(group_zeros(of), first + part);
    add_chunk(format, rows, parts, values, zeros, first, x + at * rows, held, ahead);
}

/* Adds the sums of a group to those of the groups before. Scales are those that the format has
(OF_FLOAT32: of numbers that were widened), chosen once for all vectors. */
INLINE void finish_group(const int format, const int rows, const int parts, struct groups of, int first,
                         vector held[][PARTS], float *sums) {
    const int64_t scales = of.layout.scales;
    const int may_be_bytes = format == OF_FLOAT4 || format == OF_FLOAT32;
    if (format != OF_FLOAT4 && scales == IN_BFLOAT16)
        add_scaled(IN_BFLOAT16, rows, parts, of.headers, first, held, sums);
    else if (!may_be_bytes || (format != OF_FLOAT4 && scales == IN_FLOAT32))
        add_scaled(IN_FLOAT32, rows, parts, of.headers, first, held, sums);
    else if (scales == IN_E8M0)
        add_scaled(IN_E8M0, rows, parts, of.headers, first, held, sums);
    else
        add_scaled(IN_E4M3, rows, parts, of.headers, first, held, sums);
}

INLINE void add_group(const int format, const int rows, const int parts, struct groups of, int first,
                      const float *x, float *sums, struct prefetch *ahead) {
    vector held[MOST_ROWS][PARTS] = {};
    fetch_further(ahead, of.headers, header_bytes(of.layout));
    for (long at = 0; at < of.layout.group; at += CHUNK)
        add_group_chunk(format, rows, parts, of, first, x, at, held, ahead);
    finish_group(format, rows, parts, of, first, held, sums);
}

/* Two groups by turns: where rows are few, the sums of small groups would wait for one another. Of large
groups an AMD EPYC reads two streams at 0.4 to 0.6 of the speed of one. */
INLINE void add_two_groups(const int format, const int rows, const int parts, struct groups of, int first,
                           const float *x, float *sums, struct prefetch *ahead) {
    const struct groups next = following(of);
    const float *next_x = x + of.layout.group * rows;
    vector held[MOST_ROWS][PARTS] = {}, next_held[MOST_ROWS][PARTS] = {};
    fetch_further(ahead, of.headers, header_bytes(of.layout));
    fetch_further(ahead, next.headers, header_bytes(of.layout));
    for (long at = 0; at < of.layout.group; at += CHUNK) {
        add_group_chunk(format, rows, parts, of, first, x, at, held, ahead);
        add_group_chunk(format, rows, parts, next, first, next_x, at, next_held, ahead);
    }
    finish_group(format, rows, parts, of, first, held, sums);
    finish_group(format, rows, parts, next, first, next_held, sums);
}

/* Goes on with sums group by group. */
INLINE void add_groups(const int format, const int rows, const int parts, struct groups of, long inputs,
                       int first, const float *x, float *sums, struct prefetch *ahead) {
    const long group = of.layout.group;
    long at = 0;
    if (WIDTH == 16 && rows <= 2 && group / step_of(format) * step_bytes(format) <= BLOCK * 32)
        for (; at + 2 * group <= inputs; at += 2 * group, of = following(following(of)))
            add_two_groups(format, rows, parts, of, first, x + at * rows, sums, ahead);
    for (; at < inputs; at += group, of = following(of))
        add_group(format, rows, parts, of, first, x + at * rows, sums, ahead);
}

/* Goes on with the sums of `parts` vectors of a block from the `first` on. */
INLINE void add_part(const int kind, const int format, const int rows, const int parts, struct panel panel,
                     int first, const float *x, float *sums, struct prefetch *ahead) {
    sums += first * WIDTH;
    if (kind == PLAIN) {
        const char *weights = panel.widened ? (const char *)panel.widened : panel.weights;
        vector held[MOST_ROWS][PARTS];
        vector zeros[PARTS] = {};
        if (is_shifted(format)) EACH_PART(part, parts) zeros[part] = zeros_of(panel.zeros, first + part);
        load_sums(rows, parts, sums, held);
        add_inputs(format, rows, parts, weights, zeros, first, x, panel.inputs, held, ahead);
        store_sums(rows, parts, sums, held);
        return;
    }
    struct groups groups = {panel.layout, panel.weights, panel.weights + header_bytes(panel.layout),
                            group_bytes(panel.layout), group_bytes(panel.layout)};
    if (kind == WIDENED) {
        groups.values = (const char *)panel.widened;
        groups.value_stride = panel.layout.group * BLOCK * (long)sizeof(float);
    }
    add_groups(format, rows, parts, groups, panel.inputs, first, x, sums, ahead);
}

/* Goes on with the sums of all vectors of a block. */
INLINE void add_parts(const int kind, const int format, const int rows, struct panel panel, const float *x,
                      float *sums, struct prefetch *ahead) {
    const int parts = parts_of(format, rows);
    for (int first = 0; first < PARTS; first += parts)
        add_part(kind, format, rows, parts, panel, first, x, sums, ahead);
}

/* There is one loop for each way to prefetch: a choice at each step costs 64 rows 1 to 2 %. */
#define TILE(kind, format, rows)                                                                  \
    static void tile_##kind##_##format##_##rows(struct panel panel, const float *x, float *sums,  \
                                                struct prefetch *ahead) {                         \
        struct prefetch own = *ahead; /* in registers */                                          \
        if (parts_of(format, rows) == PARTS && own.distance) { /* one pass */                     \
            add_parts(kind, format, rows, panel, x, sums, &own);                                  \
        } else {                                                                                  \
            own.distance = 0;                                                                     \
            add_parts(kind, format, rows, panel, x, sums, &own);                                  \
        }                                                                                         \
        *ahead = own;                                                                             \
    }
#define NAME(kind, format, rows) tile_##kind##_##format##_##rows,

#define SIX(define, kind, format)                                                                 \
    define(kind, format, 1) define(kind, format, 2) define(kind, format, 3)                       \
    define(kind, format, 4) define(kind, format, 5) define(kind, format, 6)
#if MOST_ROWS == 12
#define EACH_HEIGHT(define, kind, format)                                                         \
    SIX(define, kind, format)                                                                     \
    define(kind, format, 7) define(kind, format, 8) define(kind, format, 9)                       \
    define(kind, format, 10) define(kind, format, 11) define(kind, format, 12)
#else
#define EACH_HEIGHT SIX
#endif

EACH_HEIGHT(TILE, PLAIN, OF_FLOAT32)
EACH_HEIGHT(TILE, PLAIN, OF_BFLOAT16)
EACH_HEIGHT(TILE, PLAIN, OF_INT8)
EACH_HEIGHT(TILE, PLAIN, SHIFTED_INT8)
EACH_HEIGHT(TILE, PLAIN, OF_FLOAT8)
#if HAS_PAIRS
EACH_HEIGHT(TILE, PLAIN, OF_PAIRS)
#endif
EACH_HEIGHT(TILE, GROUPED, OF_INT8)
EACH_HEIGHT(TILE, GROUPED, SHIFTED_INT8)
EACH_HEIGHT(TILE, GROUPED, OF_INT4)
EACH_HEIGHT(TILE, GROUPED, SHIFTED_INT4)
EACH_HEIGHT(TILE, GROUPED, OF_FLOAT8)
EACH_HEIGHT(TILE, GROUPED, OF_FLOAT4)
EACH_HEIGHT(TILE, WIDENED, OF_FLOAT32)

tile *tile_of(struct panel panel, long rows) {
    const int format = format_in_tiles(panel.layout);
    static tile *const plain[TILE_FORMATS][MOST_ROWS] = {
        [OF_FLOAT32] = {EACH_HEIGHT(NAME, PLAIN, OF_FLOAT32)},
        [OF_BFLOAT16] = {EACH_HEIGHT(NAME, PLAIN, OF_BFLOAT16)},
        [OF_INT8] = {EACH_HEIGHT(NAME, PLAIN, OF_INT8)},
        [SHIFTED_INT8] = {EACH_HEIGHT(NAME, PLAIN, SHIFTED_INT8)},
        [OF_FLOAT8] = {EACH_HEIGHT(NAME, PLAIN, OF_FLOAT8)}};
    static tile *const grouped[TILE_FORMATS][MOST_ROWS] = {
        [OF_INT8] = {EACH_HEIGHT(NAME, GROUPED, OF_INT8)},
        [SHIFTED_INT8] = {EACH_HEIGHT(NAME, GROUPED, SHIFTED_INT8)},
        [OF_INT4] = {EACH_HEIGHT(NAME, GROUPED, OF_INT4)},
        [SHIFTED_INT4] = {EACH_HEIGHT(NAME, GROUPED, SHIFTED_INT4)},
        [OF_FLOAT8] = {EACH_HEIGHT(NAME, GROUPED, OF_FLOAT8)},
        [OF_FLOAT4] = {EACH_HEIGHT(NAME, GROUPED, OF_FLOAT4)}};
#if HAS_PAIRS
    static tile *const paired[MOST_ROWS] = {EACH_HEIGHT(NAME, PLAIN, OF_PAIRS)};
    if (format == OF_PAIRS) return paired[rows - 1];
#endif
    static tile *const widened[MOST_ROWS] = {EACH_HEIGHT(NAME, WIDENED, OF_FLOAT32)};
    if (panel.layout.group) return (panel.widened ? widened : grouped[format])[rows - 1];
    return plain[panel.widened ? OF_FLOAT32 : format][rows - 1];
}

INLINE void widen_inputs(const int format, const char *weights, const char *zeros, float *to, long inputs) {
    const int step = step_of(format);
    for (long input = 0; input < inputs; input += step, weights += step_bytes(format))
        EACH_PART(part, PARTS) {
            bits words = load_words(format, weights, part);
            for (int at = 0; at < step; at++) {
                vector w = weights_of(format, words, at);
                if (is_shifted(format)) w -= zeros_of(zeros, part);
                memcpy(to + (input + at) * BLOCK + part * WIDTH, &w, sizeof w);
            }
        }
}

INLINE void widen_groups(const int format, struct panel panel, float *to) {
    const struct layout of = panel.layout;
    for (long at = 0; at < panel.inputs; at += of.group) {
        const char *header = panel.weights + weight_bytes(of, at);
        widen_inputs(format, header + header_bytes(of), header + BLOCK * scale_bytes(of), to + at * BLOCK,
                     of.group);
    }
}

void widen_weights(struct panel panel, float *to) {
    const int64_t format = panel.layout.format, has_zeros = panel.layout.has_zeros;
    if (panel.layout.group) {
        if (format == OF_INT4 && has_zeros) widen_groups(SHIFTED_INT4, panel, to);
        else if (format == OF_INT4) widen_groups(OF_INT4, panel, to);
        else if (format == OF_FLOAT4) widen_groups(OF_FLOAT4, panel, to);
        else if (format == OF_INT8 && has_zeros) widen_groups(SHIFTED_INT8, panel, to);
        else if (format == OF_INT8) widen_groups(OF_INT8, panel, to);
        else widen_groups(OF_FLOAT8, panel, to);
    } else if (format == OF_BFLOAT16) widen_inputs(OF_BFLOAT16, panel.weights, NULL, to, panel.inputs);
    else if (format == OF_INT8 && has_zeros)
        widen_inputs(SHIFTED_INT8, panel.weights, panel.zeros, to, panel.inputs);
    else if (format == OF_INT8) widen_inputs(OF_INT8, panel.weights, NULL, to, panel.inputs);
    else widen_inputs(OF_FLOAT8, panel.weights, NULL, to, panel.inputs);
}
