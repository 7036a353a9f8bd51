/* Linear maps whose sums have the order blocks32, which tile.c defines: each format is widened to pairs of
bfloat16, 32 inputs at a time, which AMX or multiply-adds multiply by rows. */
#include "blocks32.h"

#include "rounding.h"
#include "tile.h"

#define EACH_ROW(row, rows) for (int row = 0; row < (rows); row++)
#define EACH_PART(part, parts) for (int part = 0; part < (parts); part++)

/* Where the weights of 32 inputs are, the header of their group, and their zero points. */
struct place {
    const char *weights, *header, *zeros;
};

INLINE struct place place_of(struct span of, long at) {
    const struct layout layout = of.layout;
    if (!layout.group) return (struct place){of.block + weight_bytes(layout, at), NULL, of.zeros};
    const char *header = of.block + weight_bytes(layout, at / layout.group * layout.group);
    const char *weights = header + header_bytes(layout);
    const int format = (int)layout.format;
    return (struct place){weights + at % layout.group / step_of(format) * step_bytes(format), header,
                          header + BLOCK * scale_bytes(layout)};
}

/* The factors of two inputs as a pair; both are numbers of bfloat16. */
INLINE bits pair_of(vector first, vector second) {
    return ((bits)first & 0xffff0000) | (bits)second >> 16;
}

/* Widens some inputs. */
INLINE void widen_pairs(const int format, const int has_scales, long inputs, struct place of, uint32_t *to) {
    const int step = step_of(format), each = step > 1 ? step : 2;
    EACH_PART(part, PARTS) {
        const char *weights = of.weights;
        vector zeros = {}, scales = {};
        if (is_shifted(format)) zeros = zeros_of(of.zeros, part);
        if (has_scales) scales = scales_of(IN_E4M3, of.header, part);
        for (long input = 0; input < inputs; input += each, weights += each / step * step_bytes(format)) {
            bits words = load_words(format, weights, part), others = words;
            if (step == 1) others = load_words(format, weights + step_bytes(format), part);
#pragma GCC unroll 4
            for (int at = 0; at < each; at += 2) {
                vector first = weights_of(format, words, at), second = weights_of(format, others, at + 1);
                if (is_shifted(format)) first -= zeros, second -= zeros;
                if (has_scales) first *= scales, second *= scales;
                bits pair = pair_of(first, second);
                memcpy(to + (input + at) / 2 * BLOCK + part * WIDTH, &pair, sizeof pair);
            }
        }
    }
}

/* NVFP4: two groups of 16. */
static void widen_scaled_pairs(struct span of, long at, uint32_t *to) {
    for (long group = 0; group < SUM_BLOCK; group += of.layout.group)
        widen_pairs(OF_FLOAT4, 1, of.layout.group, place_of(of, at + group), to + group / 2 * BLOCK);
}

__attribute__((noinline)) const uint32_t *pairs_at(struct span of, long at, uint32_t *to) {
    const struct place place = place_of(of, at);
    const int64_t format = of.layout.format, has_zeros = of.layout.has_zeros;
    if (format == OF_BFLOAT16) return (const uint32_t *)place.weights;
    if (format == OF_FLOAT4 && !has_group_sums(of.layout)) widen_scaled_pairs(of, at, to);
    else if (format == OF_FLOAT4) widen_pairs(OF_FLOAT4, 0, SUM_BLOCK, place, to);
    else if (format == OF_FLOAT8) widen_pairs(OF_FLOAT8, 0, SUM_BLOCK, place, to);
    else if (format == OF_INT4 && has_zeros) widen_pairs(SHIFTED_INT4, 0, SUM_BLOCK, place, to);
    else if (format == OF_INT4) widen_pairs(OF_INT4, 0, SUM_BLOCK, place, to);
    else if (has_zeros) widen_pairs(SHIFTED_INT8, 0, SUM_BLOCK, place, to);
    else widen_pairs(OF_INT8, 0, SUM_BLOCK, place, to);
    return to;
}

/* Vectors of a block whose chains a tile keeps in registers at once. */
INLINE int chained_parts(int rows) {
    if (WIDTH == 16) return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
    if (WIDTH == 8) return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
    return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

/* Adds both chains of 32 inputs to the sums so far. */
INLINE void add_chains(const int rows, const int parts, const uint32_t *weights, const float *x, float *sums) {
    vector even[MOST_ROWS][PARTS] = {}, odd[MOST_ROWS][PARTS] = {};
    for (int pair = 0; pair < SUM_PAIRS; pair++, weights += BLOCK, x += 2 * rows) {
        bits words[PARTS];
        memcpy(words, weights, (size_t)parts * sizeof *words);
        EACH_ROW(row, rows) EACH_PART(part, parts) {
            even[row][part] += (vector)(words[part] & 0xffff0000) * x[row];
            odd[row][part] += (vector)(words[part] << 16) * x[rows + row];
        }
    }
    EACH_ROW(row, rows) EACH_PART(part, parts) {
        float *place = sums + row * BLOCK + part * WIDTH;
        vector sum;
        memcpy(&sum, place, sizeof sum);
        sum += even[row][part] + odd[row][part];
        memcpy(place, &sum, sizeof sum);
    }
}

/* Where the pairs of a span are: 32 inputs each, one after the other. */
typedef void chains(const uint32_t *weights, long inputs, const float *x, float *sums);

#define CHAINS(rows)                                                                              \
    static void chains_##rows(const uint32_t *weights, long inputs, const float *x, float *sums) { \
        for (int first = 0; first < PARTS; first += chained_parts(rows))                          \
            for (long at = 0; at < inputs; at += SUM_BLOCK)                                       \
                add_chains(rows, chained_parts(rows), weights + at / 2 * BLOCK + first * WIDTH,   \
                           x + at * rows, sums + first * WIDTH);                                  \
    }
CHAINS(1) CHAINS(2) CHAINS(3) CHAINS(4) CHAINS(5) CHAINS(6)
#if MOST_ROWS == 12
CHAINS(7) CHAINS(8) CHAINS(9) CHAINS(10) CHAINS(11) CHAINS(12)
#endif

static chains *const chains_of[MOST_ROWS] = {
    chains_1, chains_2, chains_3, chains_4, chains_5, chains_6,
#if MOST_ROWS == 12
    chains_7, chains_8, chains_9, chains_10, chains_11, chains_12,
#endif
};

/* Goes on with sums [inputs / together, rows, BLOCK]; x as `pack_rows` writes it for so many `wide` inputs. */
static void add_span(struct span of, const float *x, long rows, long wide, float *sums) {
    __attribute__((aligned(64))) uint32_t widened[MOST_SPAN / 2 * BLOCK];
    const uint32_t *weights = NULL;
    for (long at = 0; at < of.inputs; at += SUM_BLOCK) {
        const uint32_t *found = pairs_at(of, of.first + at, widened + at / 2 * BLOCK);
        if (!at) weights = found;
    }
    uint64_t before = flush_subnormals();
    long tiles = tiles_of(rows);
    for (long tile = 0; tile < tiles; tile++) {
        long first = tile_start(tile, tiles, rows), height = tile_start(tile + 1, tiles, rows) - first;
        const float *tile_x = x + first * wide + of.first * height;
        for (long at = 0; at < of.inputs; at += of.together)
            chains_of[height - 1](weights + at / 2 * BLOCK, of.together, tile_x + at * height,
                                  sums + (at / of.together * rows + first) * BLOCK);
    }
    restore_rounding(before);
}

/* Adds the sums of groups [groups, rows, BLOCK] times their scales to the sums of rows. */
INLINE void add_scaled(const int scales, struct span of, const float *groups, long rows, float *sums) {
    for (long at = 0; at < of.inputs; at += of.together)
        EACH_PART(part, PARTS) {
            vector scale = scales_of(scales, place_of(of, of.first + at).header, part);
            for (long row = 0; row < rows; row++, groups += BLOCK) {
                vector sum, group;
                float *place = sums + row * BLOCK + part * WIDTH;
                memcpy(&sum, place, sizeof sum);
                memcpy(&group, groups + part * WIDTH, sizeof group);
                sum += scale * group;
                memcpy(place, &sum, sizeof sum);
            }
            if (part + 1 < PARTS) groups -= rows * BLOCK;
        }
}

static __attribute__((noinline)) void scale_groups(struct span of, const float *groups, long rows, float *sums) {
    if (of.layout.scales == IN_BFLOAT16) add_scaled(IN_BFLOAT16, of, groups, rows, sums);
    else if (of.layout.scales == IN_FLOAT32) add_scaled(IN_FLOAT32, of, groups, rows, sums);
    else add_scaled(IN_E8M0, of, groups, rows, sums);
}

static void add_sums(struct span of, const float *x, long rows, long wide, float *sums) {
    if (is_by_amx(of.layout, rows))
        add_span_by_amx(of, (const uint32_t *)x + of.first / 2, wide / 2, rows, sums);
    else add_span(of, x, rows, wide, sums);
}

/* Inputs of a span: groups whose sums for these rows fit into those of a slab. */
static long span_inputs(struct layout of, long rows) {
    if (!has_group_sums(of)) return MOST_SPAN;
    long most = SLAB / rows < MOST_SPAN / of.group ? SLAB / rows : MOST_SPAN / of.group;
    return of.group * (most > 1 ? most : 1);
}

static void sum_block(struct weight by, long block, const float *x, long rows, float *sums) {
    __attribute__((aligned(64))) float groups[SLAB * BLOCK];
    const long inputs = padded_inputs(by), most = span_inputs(by.layout, rows);
    struct span of = {by.layout, block_at(by, block), NULL, 0, 0, 0};
    of.zeros = of.block + weight_bytes(by.layout, inputs);
    for (of.first = 0; of.first < inputs; of.first += of.inputs) {
        of.inputs = inputs - of.first < most ? inputs - of.first : most;
        of.together = has_group_sums(by.layout) ? by.layout.group : of.inputs;
        if (!has_group_sums(by.layout)) {
            add_sums(of, x, rows, inputs, sums);
            continue;
        }
        memset(groups, 0, (size_t)(of.inputs / of.together * rows * BLOCK) * sizeof *groups);
        add_sums(of, x, rows, inputs, groups);
        scale_groups(of, groups, rows, sums);
    }
}

void map_blocks32(struct weight by, const entry *bias, long first, long count, const float *x, long rows,
                  struct result out) {
    __attribute__((aligned(64))) float sums[SLAB * BLOCK];
    for (long block = first; block < first + count; block++) {
        memset(sums, 0, (size_t)(rows * BLOCK) * sizeof *sums);
        sum_block(by, block, x, rows, sums);
        finish_block(by, bias, block, sums, rows, out);
    }
}
