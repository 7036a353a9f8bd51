/* Register blocks of a matrix product, one for each number of rows.

Every sum adds its products in the order of the inputs, each by one fused multiply-add of float32. So
a sum has the same bits in every tile, with vectors of any width, and however inputs are cut. */
#include "tile.h"

#define EACH_ROW(row, rows) for (int row = 0; row < (rows); row++)
#define EACH_PART(part, parts) for (int part = 0; part < (parts); part++)

INLINE void fetch(struct prefetch *ahead) {
    const char *next = ahead->next;
    if (ahead->level == 1)
        for (long line = 0; line < ahead->lines; line++) __builtin_prefetch(next + line * LINE, 0, 3);
    else if (ahead->level == 2)
        for (long line = 0; line < ahead->lines; line++) __builtin_prefetch(next + line * LINE, 0, 2);
    else
        for (long line = 0; line < ahead->lines; line++) __builtin_prefetch(next + line * LINE, 0, 0);
    ahead->next = next + ahead->lines * LINE;
}

/* Adds the products of CHUNK inputs to the sums in registers. */
INLINE void add_chunk(const int format, const int rows, const int parts, const char *weights,
                      const float *x, vector sums[][PARTS]) {
    const int step = step_of(format);
    for (int first = 0; first < CHUNK; first += step, weights += BLOCK * 4)
        for (int at = 0; at < step; at++, x += rows) {
            vector w[PARTS];
            EACH_PART(part, parts) w[part] = weights_of(format, load_bits(weights + part * 4 * WIDTH), at);
            EACH_ROW(row, rows) EACH_PART(part, parts) sums[row][part] += w[part] * x[row];
        }
}

/* Goes on with the sums of `parts` vectors of a block. */
INLINE void add_part(const int format, const int rows, const int parts, const char *weights,
                     const float *x, float *sums, long inputs, struct prefetch *ahead) {
    vector held[MOST_ROWS][PARTS];
    EACH_ROW(row, rows) EACH_PART(part, parts)
        memcpy(&held[row][part], sums + row * BLOCK + part * WIDTH, sizeof(vector));
    for (long at = 0; at < inputs; at += CHUNK) {
        fetch(ahead);
        add_chunk(format, rows, parts, weights + block_bytes(format, at), x + at * rows, held);
    }
    EACH_ROW(row, rows) EACH_PART(part, parts)
        memcpy(sums + row * BLOCK + part * WIDTH, &held[row][part], sizeof(vector));
}

#define TILE(format, rows)                                                                           \
    static void tile_##format##_##rows(const char *weights, const float *x, float *sums, long inputs, \
                                       struct prefetch *ahead) {                                      \
        for (int part = 0; part < PARTS; part += parts_of(rows))                                      \
            add_part(format, rows, parts_of(rows), weights + part * 4 * WIDTH, x, sums + part * WIDTH, \
                     inputs, ahead);                                                                  \
    }
#define NAME(format, rows) tile_##format##_##rows,

#if MOST_ROWS == 12
#define EACH_TILE(define, format)                                                                     \
    define(format, 1) define(format, 2) define(format, 3) define(format, 4) define(format, 5)         \
    define(format, 6) define(format, 7) define(format, 8) define(format, 9) define(format, 10)        \
    define(format, 11) define(format, 12)
#else
#define EACH_TILE(define, format)                                                                     \
    define(format, 1) define(format, 2) define(format, 3) define(format, 4) define(format, 5)         \
    define(format, 6)
#endif

EACH_TILE(TILE, OF_FLOAT32)
EACH_TILE(TILE, OF_BFLOAT16)

tile *tile_of(int format, long rows) {
    static tile *const tiles[FORMATS][MOST_ROWS] = {{EACH_TILE(NAME, OF_FLOAT32)}, {EACH_TILE(NAME, OF_BFLOAT16)}};
    return tiles[format][rows - 1];
}

void widen_weights(int format, const char *weights, float *to, long inputs) {
    const int step = step_of(format);
    for (long first = 0; first < inputs; first += step, weights += BLOCK * 4)
        EACH_PART(part, PARTS) {
            bits words = load_bits(weights + part * 4 * WIDTH);
            for (int at = 0; at < step; at++) {
                vector w = weights_of(format, words, at);
                memcpy(to + (first + at) * BLOCK + part * WIDTH, &w, sizeof w);
            }
        }
}
