/* What amx.c uses of Intel's AMX, computed by a processor that has none: tiles, their configuration, and
`TDPBF16PS` as the Intel SDM defines it. Misuse that a processor would answer with a signal aborts. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct software_tiles {
    uint8_t palette, rows[8];
    uint16_t row_bytes[8];
    uint8_t data[8][16][64];
};
static __thread struct software_tiles software_tiles;

static void software_check(int is_right, const char *error) {
    if (is_right) return;
    fprintf(stderr, "AMX: %s\n", error);
    abort();
}

static void software_loadconfig(const void *from) {
    const uint8_t *bytes = from;
    memset(&software_tiles, 0, sizeof software_tiles);
    software_tiles.palette = bytes[0];
    software_check(bytes[0] == 1, "palette must be 1");
    for (int tile = 0; tile < 16; tile++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * tile, sizeof row_bytes);
        software_check(tile < 8 || (!row_bytes && !bytes[48 + tile]), "there are 8 tiles");
        if (tile >= 8) continue;
        software_check(row_bytes <= 64 && bytes[48 + tile] <= 16, "a tile has 16 rows of 64 bytes");
        software_check(!row_bytes == !bytes[48 + tile], "a tile has rows and bytes, or none");
        software_tiles.row_bytes[tile] = row_bytes;
        software_tiles.rows[tile] = bytes[48 + tile];
    }
}

static void software_move(int tile, void *memory, long stride, int stores) {
    struct software_tiles *of = &software_tiles;
    software_check(of->palette == 1 && of->rows[tile], "the tile is not configured");
    if (!stores) memset(of->data[tile], 0, sizeof of->data[tile]);
    for (int row = 0; row < of->rows[tile]; row++) {
        void *place = (char *)memory + row * stride;
        if (stores) memcpy(place, of->data[tile][row], of->row_bytes[tile]);
        else memcpy(of->data[tile][row], place, of->row_bytes[tile]);
    }
}

static float software_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static float software_half(const uint8_t *from) {
    uint32_t wide = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 24;
    float x;
    memcpy(&x, &wide, sizeof x);
    return software_flushed(x);
}

/* Whether a sum is below 2^-126 is decided after rounding to 24 bits, however small. Sums are rounded to
multiples of 2^-149 here, which only differs from 2^-126 - 2^-150 to 2^-126 - 2^-151. */
static float software_fused(float a, float b, float c) {
    float sum = fmaf(a, b, c);
    if (fabsf(sum) == 0x1p-126f) {
        __float128 exact = (__float128)a * b + c, size = exact < 0 ? -exact : exact;
        if (size < (__float128)0x1p-126 - 0x1p-151) return copysignf(0, sum);
    }
    return software_flushed(sum);
}

static float software_added(float a, float b) { return software_flushed(a + b); }

static void software_dpbf16ps(int to, int a, int b) {
    struct software_tiles *of = &software_tiles;
    software_check(of->rows[to] == of->rows[a] && of->row_bytes[to] == of->row_bytes[b] &&
                       of->row_bytes[a] == 4 * of->rows[b], "the sizes of the tiles do not fit");
    for (int row = 0; row < of->rows[to]; row++)
        for (int column = 0; column < of->row_bytes[to] / 4; column++) {
            float first = 0, second = 0, sum;
            for (int pair = 0; pair < of->rows[b]; pair++) {
                const uint8_t *x = of->data[a][row] + 4 * pair, *w = of->data[b][pair] + 4 * column;
                first = software_fused(software_half(x), software_half(w), first);
                second = software_fused(software_half(x + 2), software_half(w + 2), second);
            }
            memcpy(&sum, of->data[to][row] + 4 * column, sizeof sum);
            sum = software_added(software_flushed(sum), software_added(first, second));
            memcpy(of->data[to][row] + 4 * column, &sum, sizeof sum);
        }
}

/* The processor always has them; `SOFTWARE_TILES_ERRNO` is what the operating system answers. */
static int find_support(void) { return 0; }
static int ask_permission(void) {
    const char *refused = getenv("SOFTWARE_TILES_ERRNO");
    return refused ? atoi(refused) : 0;
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) software_loadconfig(from)
#define _tile_release() memset(&software_tiles, 0, sizeof software_tiles)
#define _tile_loadd(tile, from, stride) software_move(tile, (void *)(from), stride, 0)
#define _tile_stored(tile, to, stride) software_move(tile, to, stride, 1)
#define _tile_dpbf16ps(to, a, b) software_dpbf16ps(to, a, b)
