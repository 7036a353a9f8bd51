/* The products of a few rows with the weights of one block; see tile.c. */
#pragma once
#include "formats.h"
#include "tuning.h"

#if defined(__AVX512F__)
#define MOST_ROWS 12 /* of a tile */
#else
#define MOST_ROWS 6
#endif

/* What is fetched into a cache while a tile works: at each step the weights `distance` bytes further on,
or, where that is 0, at every few inputs `lines` cache lines of other memory. */
struct prefetch {
    long distance;
    const char *next;
    long lines;
    long every; /* inputs, a power of two up to CHUNK */
    long level; /* 1 and 2: that cache and those after it; 0: as data that is read once */
};

/* Weights of a block for some inputs. Those that were widened are floats [inputs, BLOCK] elsewhere;
`weights` then still has the scales of groups. */
struct panel {
    struct layout layout;
    const char *weights;
    const float *widened; /* or NULL */
    long first, inputs;
    const char *zeros; /* of the outputs, where integers have such without groups */
};

typedef void tile(struct panel panel, const float *x, float *sums, struct prefetch *ahead);

/* Goes on with sums [rows, BLOCK] over the inputs of a panel; x as `pack_rows` writes it. */
__attribute__((visibility("hidden"))) tile *tile_of(struct panel panel, long rows);

/* Vectors of a block whose sums a tile keeps in registers at once. With 6 rows, weights that are not
floats would need more registers than there are for 4. */
INLINE int parts_of(int format, int rows) {
    if (WIDTH == 16) return rows <= (format == OF_FLOAT32 || format == OF_PAIRS ? 6 : 5) ? 4 : 2;
    if (WIDTH == 8) return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
    return rows == 1 ? 16 : rows <= 3 ? 8 : 4;
}

/* How rows are divided into tiles of nearly equal height. */
INLINE long tiles_of(long rows) { return (rows + tuning.rows - 1) / tuning.rows; }
INLINE long tile_start(long tile, long tiles, long rows) { return rows * tile / tiles; }

/* How often a tile of so many rows reads its weights. */
INLINE long passes_of(int format, long rows) { return PARTS / parts_of(format, (int)rows); }

/* The format that tiles take the weights of a layout for. */
INLINE int format_in_tiles(struct layout of) {
    if (of.has_zeros) return of.format == OF_INT8 ? SHIFTED_INT8 : SHIFTED_INT4;
    return HAS_PAIRS && of.format == OF_BFLOAT16 && tuning.pairs && of.sums == BY_INPUTS ? OF_PAIRS : (int)of.format;
}

/* Writes the weights of a panel as floats [inputs, BLOCK], without their scales. */
__attribute__((visibility("hidden"))) void widen_weights(struct panel panel, float *to);
