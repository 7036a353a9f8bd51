/* The products of a few rows with the weights of one block; see tile.c. */
#pragma once
#include "formats.h"

#if defined(__AVX512F__)
#define MOST_ROWS 12 /* of a tile */
#else
#define MOST_ROWS 6
#endif

/* Memory that will be read later: `lines` cache lines of it are fetched for each chunk of inputs. */
struct prefetch {
    const char *next;
    long lines;
    long level; /* 1 and 2: that cache and those after it; 0: as data that is read once */
};

typedef void tile(const char *weights, const float *x, float *sums, long inputs, struct prefetch *ahead);

/* Goes on with sums [rows, BLOCK] over some inputs, a multiple of CHUNK; x [inputs, rows]. */
__attribute__((visibility("hidden"))) tile *tile_of(int format, long rows);

/* How often a tile of so many rows reads its weights. */
INLINE int parts_of(int rows) {
    if (WIDTH == 16) return rows <= 6 ? 4 : 2;
    if (WIDTH == 8) return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
    return rows == 1 ? 16 : rows <= 3 ? 8 : 4;
}

INLINE long passes_of(long rows) { return PARTS / parts_of((int)rows); }

/* Writes the weights of a block for some inputs as floats [inputs, BLOCK]. */
__attribute__((visibility("hidden"))) void widen_weights(int format, const char *weights, float *to,
                                                         long inputs);
