/* Linear maps whose weights are packed in the order in which they are read.

Rows are cut into tiles, and inputs into panels whose weights stay in a cache while the tiles take
turns. Meanwhile the weights of the next panel are fetched, so that memory does not wait for
arithmetic. However rows and inputs are cut, and whatever the number of threads, each output is the
sum of its products in the order of the inputs (tile.c): a row's bits depend on the row alone. */
#include "linear.h"

#include <limits.h>
#include <stdlib.h>

#include "blocks32.h"
#include "rounding.h"
#include "tile.h"
#include "tuning.h"

#define MOST_PANEL 512   /* inputs */
#define MOST_STREAMS 4
#define MOST_SUMS (SLAB > MOST_STREAMS * MOST_ROWS ? SLAB : MOST_STREAMS * MOST_ROWS)
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

typedef float four __attribute__((vector_size(16)));
typedef int32_t four_ints __attribute__((vector_size(16)));

/* The numbers of a row that tiles read: floats, or pairs of bfloat16 with the first in the upper half. */
INLINE four load_four(const int pairs, const entry *from) {
#ifdef BFLOAT16
    typedef uint16_t narrow __attribute__((vector_size(8)));
    typedef uint32_t wide __attribute__((vector_size(16)));
    if (pairs) {
        wide both;
        memcpy(&both, from, sizeof both);
        return (four)(both << 16 | both >> 16);
    }
    narrow bits;
    memcpy(&bits, from, sizeof bits);
    return (four)(__builtin_convertvector(bits, wide) << 16);
#else
    (void)pairs;
    four x;
    memcpy(&x, from, sizeof x);
    return x;
#endif
}

INLINE void store_four(float *to, four x) { memcpy(to, &x, sizeof x); }

/* The number at a place of a row of so many inputs. */
INLINE float number_at(const int pairs, const entry *x, long at, long inputs) {
#ifdef BFLOAT16
    float pair;
    if (!pairs) return widen(x[at]);
    uint32_t both = (uint32_t)x[2 * at] << 16 | (2 * at + 1 < inputs ? x[2 * at + 1] : 0);
    memcpy(&pair, &both, sizeof pair);
    return pair;
#else
    (void)pairs, (void)inputs;
    return x[at];
#endif
}

/* Four rows by four numbers become four numbers by four rows, `stride` numbers apart. */
INLINE void transpose(const int pairs, const entry *const *x, long at, float *to, long stride) {
    const four_ints low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
    four a = load_four(pairs, x[0] + at), b = load_four(pairs, x[1] + at);
    four c = load_four(pairs, x[2] + at), d = load_four(pairs, x[3] + at);
    four ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low);
    four more_ab = __builtin_shuffle(a, b, high), more_cd = __builtin_shuffle(c, d, high);
    store_four(to, __builtin_shuffle(ab, cd, first));
    store_four(to + stride, __builtin_shuffle(ab, cd, second));
    store_four(to + 2 * stride, __builtin_shuffle(more_ab, more_cd, first));
    store_four(to + 3 * stride, __builtin_shuffle(more_ab, more_cd, second));
}

/* One tile [numbers, rows], line by line. The last four rows may be packed twice. */
INLINE void pack_tile(const int pairs, const entry *const *x, long rows, long inputs, long padded, float *to) {
    const long each = pairs ? 2 : 1; /* inputs of a number */
    long numbers = (inputs + each - 1) / each, vectors = rows < 4 ? 0 : inputs / each / 4 * 4;
    for (long line = 0; line < vectors; line += 16)
        for (long four = 0; four < rows; four += 4) {
            long row = four < rows - 4 ? four : rows - 4;
            for (long at = line; at < vectors && at < line + 16; at += 4)
                transpose(pairs, x + row, at * each, to + at * rows + row, rows);
        }
    for (long row = 0; row < rows; row++)
        for (long at = vectors; at < numbers; at++)
            to[at * rows + row] = number_at(pairs, x[row], at, inputs);
    memset(to + numbers * rows, 0, (size_t)((padded / each - numbers) * rows) * sizeof(float));
}

/* As `pack_tile`, with inputs in the order of a quantized weight, whose rows are never pairs. */
INLINE void pack_ordered_tile(const entry *const *x, long rows, struct weight by, float *to) {
    for (long at = 0; at < by.inputs; at++, to += rows)
        for (long row = 0; row < rows; row++) to[row] = number_at(0, x[row], by.order[at], by.inputs);
    memset(to, 0, (size_t)((padded_inputs(by) - by.inputs) * rows) * sizeof(float));
}

void pack_rows(const entry *x, long stride, const long *sources, long rows, struct weight by, float *to) {
    long tiles = tiles_of(rows), inputs = by.inputs, padded = padded_inputs(by);
    const int format = format_in_tiles(by.layout);
    if (is_by_amx(by.layout, rows)) {
        pack_amx_rows(x, stride, sources, rows, by, (uint32_t *)to);
        return;
    }
    for (long tile = 0; tile < tiles; tile++) {
        long first = tile_start(tile, tiles, rows), end = tile_start(tile + 1, tiles, rows);
        const entry *of_tile[MOST_ROWS];
        for (long row = first; row < end; row++)
            of_tile[row - first] = x + (sources ? sources[row] : row) * stride;
        float *tile_x = to + numbers_of(format, first * padded);
        if (by.order) pack_ordered_tile(of_tile, end - first, by, tile_x);
        else if (format == OF_PAIRS) pack_tile(1, of_tile, end - first, inputs, padded, tile_x);
        else pack_tile(0, of_tile, end - first, inputs, padded, tile_x);
    }
}

/* Multiplies by scales of outputs, adds the bias, rounds, and writes as many outputs as there are. */
static void finish(const float *sums, const char *scales, const entry *bias, entry *out, long outputs) {
    for (long at = 0; at < outputs; at += LANES) {
        floats sum = *(const floats *)(sums + at), scale;
        if (scales) {
            memcpy(&scale, scales + at * (long)sizeof(float), sizeof scale);
            sum *= scale;
        }
        if (bias) sum += load_some(bias + at, outputs - at);
        store_some(out + at, sum, outputs - at);
    }
}

/* How far ahead one pass fetches, in bytes. */
INLINE long distance_of(long format) {
    if (is_halved((int)format)) return tuning.ahead_int4;
    return is_byte((int)format) ? tuning.ahead_int8 : tuning.ahead;
}

/* What the tiles of a slab fetch while they use a panel: one that is read once, weights further on in
the same block; else their share of as many bytes of the `next` panel. */
static struct prefetch fetched_during(struct panel panel, long passes, const char *next) {
    if (passes == 1)
        return (struct prefetch){.distance = distance_of(panel.layout.format), .level = tuning.level};
    long all = weight_bytes(panel.layout, panel.inputs) / LINE, inputs = passes * panel.inputs;
    long every = tuning.spread ? step_of((int)panel.layout.format) : CHUNK;
    while (every < CHUNK && all * every < inputs) every *= 2;
    return (struct prefetch){0, next, (all * every + inputs - 1) / inputs, every, tuning.panel_level};
}

/* From how many tiles on weights are widened for all of them. */
INLINE long widened_from(long format) {
    if (format == OF_FLOAT32 || format == OF_PAIRS) return LONG_MAX;
    return is_halved((int)format) || format == OF_FLOAT8 ? tuning.widen_int4 : tuning.widen;
}

/* Goes on with the sums of the rows of a slab; x as `pack_rows` writes it. */
static void add_panel(struct panel panel, const char *next, const float *x, long rows, long inputs,
                      float *sums) {
    long tiles = tiles_of(rows), passes = 0;
    const int format = format_in_tiles(panel.layout);
    for (long tile = 0; tile < tiles; tile++)
        passes += passes_of(format, tile_start(tile + 1, tiles, rows) - tile_start(tile, tiles, rows));
    struct prefetch ahead = fetched_during(panel, passes, next);
    __attribute__((aligned(64))) float widened[MOST_PANEL * BLOCK];
    if (tiles >= widened_from(format)) {
        widen_weights(panel, widened);
        panel.widened = widened;
    }
    for (long tile = 0; tile < tiles; tile++) {
        long first = tile_start(tile, tiles, rows), height = tile_start(tile + 1, tiles, rows) - first;
        long place = numbers_of(format, first * inputs + panel.first * height);
        tile_of(panel, height)(panel, x + place, sums + first * BLOCK, &ahead);
    }
}

/* Whether one tile reads its weights once. */
INLINE int is_one_pass(struct layout of, long rows) {
    return tiles_of(rows) == 1 && passes_of(format_in_tiles(of), rows) == 1;
}

/* Inputs of a panel: all where one tile reads its weights once from one stream; else whole groups, of
nearly equal number, since each panel fetches as many bytes of the next as it has. */
static long panel_inputs(struct layout of, long rows, long count, long inputs) {
    if (count == 1 && is_one_pass(of, rows)) return inputs;
    long unit = of.group ? of.group : CHUNK, units = inputs / unit;
    long most = (tiles_of(rows) == 1 ? tuning.few_panel : tuning.panel) / unit;
    long panels = most ? (units + most - 1) / most : units;
    return (units + panels - 1) / panels * unit;
}

/* The weights of a block for `count` inputs from `first` on. */
INLINE struct panel panel_of(struct weight by, long block, long first, long count) {
    const char *weights = block_at(by, block) + weight_bytes(by.layout, first);
    const char *zeros = block_at(by, block) + weight_bytes(by.layout, padded_inputs(by));
    return (struct panel){by.layout, weights, NULL, first, count, zeros};
}

/* Writes the sums of one block. */
void finish_block(struct weight by, const entry *bias, long block, const float *sums, long rows,
                  struct result out) {
    long at = block * BLOCK, width = by.outputs - at < BLOCK ? by.outputs - at : BLOCK;
    const char *scales = has_output_scales(by.layout) ? block_at(by, block + 1) - 4 * BLOCK : NULL;
    for (long row = 0; row < rows; row++)
        finish(sums + row * BLOCK, scales, bias ? bias + at : NULL, out.rows + row * out.stride + at, width);
}

/* Fetches where the sums of a block go. */
static void fetch_outputs(long block, long rows, struct result out) {
    for (long row = 0; row < rows; row++)
        for (long at = 0; at < BLOCK; at += LINE / (long)sizeof(entry))
            __builtin_prefetch(out.rows + row * out.stride + block * BLOCK + at, 1, 3);
}

/* The instruction for pairs takes numbers below 2^-126 for zero and rounds sums below that to zero. So
multiply-adds that take its place do the same. */
INLINE int is_flushed(struct layout of) { return format_in_tiles(of) == OF_BFLOAT16; }

/* The blocks take turns, panel by panel. */
void map_blocks(struct weight by, const entry *bias, long first, long count, const float *x, long rows,
                struct result out, const char *after) {
    if (by.layout.sums == BY_BLOCKS32) {
        map_blocks32(by, bias, first, count, x, rows, out);
        return;
    }
    __attribute__((aligned(64))) float sums[MOST_SUMS * BLOCK];
    long inputs = padded_inputs(by), most = panel_inputs(by.layout, rows, count, inputs);
    memset(sums, 0, (size_t)(count * rows * BLOCK) * sizeof(float));
    uint64_t before = is_flushed(by.layout) ? flush_subnormals() : 0;
    for (long at = 0; at < inputs; at += most)
        for (long block = first; block < first + count; block++) {
            struct panel panel = panel_of(by, block, at, inputs - at < most ? inputs - at : most);
            int is_last = at + most >= inputs;
            const char *next = panel.weights + weight_bytes(by.layout, panel.inputs);
            if (is_last && block == first + count - 1) next = after;
            if (is_last) fetch_outputs(block, rows, out);
            add_panel(panel, next, x, rows, inputs, sums + (block - first) * rows * BLOCK);
        }
    if (is_flushed(by.layout)) restore_rounding(before);
    for (long block = 0; block < count; block++)
        finish_block(by, bias, first + block, sums + block * rows * BLOCK, rows, out);
}

/* x [rows, inputs], rows `stride` entries apart, to out [rows, outputs]; bias [outputs] may be NULL. */
void linear(const struct weight *weight, const entry *bias, const entry *x, long stride, entry *out,
            long rows) {
    struct weight by = *weight;
    for (long top = 0; top < rows; top += SLAB) {
        long height = rows - top < SLAB ? rows - top : SLAB;
        long together = is_one_pass(by.layout, height) ? tuning.streams : 1;
        float *packed = scratch(height * padded_inputs(by));
        pack_rows(x + top * stride, stride, NULL, height, by, packed);
        struct result here = {out + top * by.outputs, by.outputs};
        long blocks = blocks_of(by.outputs);
#pragma omp parallel for schedule(static) if (by.outputs * by.inputs > LEAST_PARALLEL)
        for (long first = 0; first < blocks; first += together)
            map_blocks(by, bias, first, blocks - first < together ? blocks - first : together, packed, height,
                       here, block_at(by, first + together));
    }
}

/* As `linear`, of heads that lie `head_stride` entries apart, each with a weight of its own: those of all
heads lie one after the other. x [rows, heads, inputs] to out [rows, heads, outputs]. A thread maps whole
heads. */
void map_heads(const struct weight *weight, long heads, const entry *x, long stride, long head_stride,
               entry *out, long rows) {
    long blocks = blocks_of(weight->outputs), width = heads * weight->outputs;
#pragma omp parallel for schedule(static) if (width * weight->inputs > LEAST_PARALLEL)
    for (long head = 0; head < heads; head++)
        for (long top = 0; top < rows; top += SLAB) {
            struct weight by = *weight;
            by.blocks += head * packed_bytes(by);
            long height = rows - top < SLAB ? rows - top : SLAB;
            long together = is_one_pass(by.layout, height) ? tuning.streams : 1;
            float *packed = scratch(height * padded_inputs(by));
            pack_rows(x + top * stride + head * head_stride, stride, NULL, height, by, packed);
            struct result here = {out + top * width + head * by.outputs, width};
            for (long first = 0; first < blocks; first += together)
                map_blocks(by, NULL, first, blocks - first < together ? blocks - first : together, packed,
                           height, here, block_at(by, first + together));
        }
}
