/* The products of a few rows with the weights of one block; see tile.c. */
#pragma once
#include "formats.h"

#if defined(__AVX512F__)
#define MOST_ROWS 12 /* of a tile */
#else
#define MOST_ROWS 6
#endif

/* What is fetched into a cache while a tile works: at each step the weights `distance` bytes further on,
or, where that is 0, at each chunk of inputs `lines` cache lines of other memory. */
struct prefetch {
    long distance;
    const char *next;
    long lines;
    long level; /* 1 and 2: that cache and those after it; 0: as data that is read once */
};

/* Weights of a block for some inputs. Those that were widened are floats [inputs, BLOCK] elsewhere;
`weights` then still has the scales of groups. */
struct panel {
    struct layout layout;
    const char *weights;
    const float *widened; /* or NULL */
    long first, inputs;
};

typedef void tile(struct panel panel, const float *x, float *sums, struct prefetch *ahead);

/* Goes on with sums [rows, BLOCK] over the inputs of a panel; x as `pack_rows` writes it. */
__attribute__((visibility("hidden"))) tile *tile_of(struct panel panel, long rows);

/* Vectors of a block whose sums a tile keeps in registers at once. With 6 rows, weights that are not
floats would need more registers than there are for 4. */
INLINE int parts_of(int format, int rows) {
    if (WIDTH == 16) return rows <= (format == OF_FLOAT32 || TAKES_PAIRS(format) ? 6 : 5) ? 4 : 2;
    if (WIDTH == 8) return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
    return rows == 1 ? 16 : rows <= 3 ? 8 : 4;
}

/* How often a tile of so many rows reads its weights. */
INLINE long passes_of(struct layout of, long rows) { return PARTS / parts_of((int)of.format, (int)rows); }

/* Writes the weights of a panel as floats [inputs, BLOCK]; of integers, the integers. */
__attribute__((visibility("hidden"))) void widen_weights(struct panel panel, float *to);
