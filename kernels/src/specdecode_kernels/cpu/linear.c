/* Linear maps whose weights are packed in the order in which they are read.

Rows are cut into tiles, and inputs into panels whose weights stay in a cache while the tiles take
turns. Meanwhile the weights of the next panel are fetched, so that memory does not wait for
arithmetic. However rows and inputs are cut, and whatever the number of threads, each output is the
sum of its products in the order of the inputs (tile.c): a row's bits depend on the row alone. */
#include "linear.h"

#include <stdlib.h>

#include "tile.h"
#include "tuning.h"

#define SLAB 240         /* rows that share a panel */
#define MOST_PANEL 512   /* inputs */
#define MOST_STREAMS 4
#define FEW_TILES 2
#define LEAST_PARALLEL 65536 /* weights */

float *scratch(long count) {
    static __thread float *memory;
    static __thread long room;
    if (count > room) {
        free(memory);
        memory = aligned_alloc(64, (size_t)(count + 15) / 16 * 64);
        if (!memory) abort();
        room = count;
    }
    return memory;
}

/* How rows are divided into tiles of nearly equal height. */
INLINE long tiles_of(long rows) { return (rows + tuning.rows - 1) / tuning.rows; }
INLINE long tile_start(long tile, long tiles, long rows) { return rows * tile / tiles; }

INLINE float as_float(entry x) {
#ifdef BFLOAT16
    return widen(x);
#else
    return x;
#endif
}

/* One tile [padded inputs, rows]. */
static void pack_tile(const entry *const *x, long rows, long inputs, float *to) {
    for (long at = 0; at < inputs; at++)
        for (long row = 0; row < rows; row++) *to++ = as_float(x[row][at]);
    for (long at = inputs; at < padded(inputs); at++)
        for (long row = 0; row < rows; row++) *to++ = 0;
}

void pack_rows(const entry *x, long stride, const long *order, long rows, long inputs, float *to) {
    for (long top = 0; top < rows; top += SLAB) {
        long height = rows - top < SLAB ? rows - top : SLAB, tiles = tiles_of(height);
        for (long tile = 0; tile < tiles; tile++) {
            long first = tile_start(tile, tiles, height), end = tile_start(tile + 1, tiles, height);
            const entry *of_tile[MOST_ROWS];
            for (long row = first; row < end; row++)
                of_tile[row - first] = x + (order ? order[top + row] : top + row) * stride;
            pack_tile(of_tile, end - first, inputs, to + (top + first) * padded(inputs));
        }
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

/* The weights of one block for some inputs, and how they are read. */
struct panel {
    const char *weights;
    long first, inputs;
    int format;
};

/* What the tiles of a slab fetch while they use a panel: one that is read once, weights further on in
the same block; else their share of the next panel. */
static struct prefetch fetched_during(struct panel panel, long passes) {
    long bytes = block_bytes(panel.format, panel.inputs), chunks = passes * panel.inputs / CHUNK;
    long lines = (bytes / LINE + chunks - 1) / chunks;
    if (passes == 1) return (struct prefetch){panel.weights + tuning.ahead, lines, tuning.level};
    return (struct prefetch){panel.weights + bytes, lines, tuning.level ? tuning.level : 1};
}

/* Goes on with the sums of the rows of a slab; x as `pack_rows` writes it. */
static void add_panel(struct panel panel, const float *x, long rows, long inputs, float *sums) {
    long tiles = tiles_of(rows), passes = 0;
    for (long tile = 0; tile < tiles; tile++)
        passes += passes_of(tile_start(tile + 1, tiles, rows) - tile_start(tile, tiles, rows));
    struct prefetch ahead = fetched_during(panel, passes);
    __attribute__((aligned(64))) float widened[MOST_PANEL * BLOCK];
    if (panel.format != OF_FLOAT32 && tiles >= tuning.widen) {
        widen_weights(panel.format, panel.weights, widened, panel.inputs);
        panel.weights = (const char *)widened;
        panel.format = OF_FLOAT32;
    }
    for (long tile = 0; tile < tiles; tile++) {
        long first = tile_start(tile, tiles, rows), height = tile_start(tile + 1, tiles, rows) - first;
        tile_of(panel.format, height)(panel.weights, x + first * inputs + panel.first * height,
                                      sums + first * BLOCK, panel.inputs, &ahead);
    }
}

/* Inputs of a panel: all where one tile reads its weights once from one stream. */
static long panel_inputs(long rows, long count, long inputs) {
    long tiles = tiles_of(rows);
    if (count == 1 && tiles == 1 && passes_of(rows) == 1) return inputs;
    return tiles <= FEW_TILES ? tuning.few_panel : tuning.panel;
}

/* One slab of rows; the blocks take turns, panel by panel. */
static void map_slab(struct weight by, long first, long count, const float *x, long rows,
                     struct result out) {
    __attribute__((aligned(64))) float sums[(SLAB > MOST_STREAMS * MOST_ROWS ? SLAB : MOST_STREAMS * MOST_ROWS) * BLOCK];
    long inputs = padded(by.inputs), most = panel_inputs(rows, count, inputs);
    memset(sums, 0, (size_t)(count * rows * BLOCK) * sizeof(float));
    for (long at = 0; at < inputs; at += most)
        for (long block = 0; block < count; block++) {
            struct panel panel = {by.blocks + (first + block) * block_bytes(by.format, inputs) +
                                      block_bytes(by.format, at),
                                  at, inputs - at < most ? inputs - at : most, by.format};
            add_panel(panel, x, rows, inputs, sums + block * rows * BLOCK);
        }
    for (long block = 0; block < count; block++) {
        long at = (first + block) * BLOCK, width = by.outputs - at < BLOCK ? by.outputs - at : BLOCK;
        for (long row = 0; row < rows; row++)
            finish(sums + (block * rows + row) * BLOCK, by.bias ? by.bias + at : NULL,
                   out.rows + row * out.stride + at, width);
    }
}

void map_blocks(struct weight by, long first, long count, const float *x, long rows, struct result out) {
    for (long top = 0; top < rows; top += SLAB) {
        long height = rows - top < SLAB ? rows - top : SLAB;
        struct result here = {out.rows + top * out.stride, out.stride};
        map_slab(by, first, count, x + top * padded(by.inputs), height, here);
    }
}

long blocks_together(long rows) {
    return tiles_of(rows) == 1 && passes_of(rows) == 1 ? tuning.streams : 1;
}

/* Packs a weight [outputs, inputs] of entries; what fills it up is zero. */
void pack(const entry *weight, entry *packed, long outputs, long inputs) {
    long wide = padded(inputs), step = step_of(OF_ENTRIES);
#pragma omp parallel for schedule(static)
    for (long first = 0; first < outputs; first += BLOCK)
        for (long at = 0; at < wide; at++)
            for (long i = 0; i < BLOCK; i++) {
                int is_there = first + i < outputs && at < inputs;
                packed[first * wide + at / step * step * BLOCK + i * step + at % step] =
                    is_there ? weight[(first + i) * inputs + at] : 0;
            }
}

/* x [rows, inputs], rows `stride` entries apart, to out [rows, outputs]; bias may be NULL. */
void linear(const entry *packed, const entry *x, long stride, const entry *bias, entry *out, long rows,
            long outputs, long inputs) {
    struct weight by = {(const char *)packed, bias, outputs, inputs, OF_ENTRIES};
    for (long top = 0; top < rows; top += SLAB) {
        long height = rows - top < SLAB ? rows - top : SLAB, together = blocks_together(height);
        float *packed_rows = scratch(height * padded(inputs));
        pack_rows(x + top * stride, stride, NULL, height, inputs, packed_rows);
        struct result here = {out + top * outputs, outputs};
        long blocks = blocks_of(outputs);
#pragma omp parallel for schedule(static) if (outputs * inputs > LEAST_PARALLEL)
        for (long first = 0; first < blocks; first += together)
            map_blocks(by, first, blocks - first < together ? blocks - first : together, packed_rows,
                       height, here);
    }
}
