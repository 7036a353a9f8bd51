/* Products in the order blocks32 by Intel's AMX: `TDPBF16PS` multiplies up to 16 rows by 32 inputs by 16
outputs. Weights have the first input of a pair in the upper half, and so have rows: the instruction's
first chain is that of the odd inputs, and the two are added, which gives the same bits. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "blocks32.h"

#if defined(SOFTWARE_TILES)
#include SOFTWARE_TILES /* computes what the instructions do, where a processor has none */
#define HAS_TILES 1
#define BY_TILES
#elif defined(__x86_64__) && defined(BFLOAT16) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#include <cpuid.h>
#include <immintrin.h>
#define HAS_TILES 1
#define BY_TILES __attribute__((target("amx-tile,amx-bf16")))
#endif
#endif
#ifndef HAS_TILES
#define HAS_TILES 0
#endif

#define HEIGHT 16      /* rows of a tile */
#define FEW 16         /* rows whose weights are widened between products */
#define ROW_BYTES 256  /* of a pair of inputs of a block, and of sums */
#define BUFFER_WORDS (PAIR_WORDS + 32) /* addresses of two buffers differ by more than a multiple of 4 KiB */

enum { ALLOWED, NO_COMPILER = -1, NO_PROCESSOR = -2, NO_SYSTEM = -3 };

static int is_used; /* set before maps begin */

int is_by_amx(struct layout of, long rows) {
    return is_used && of.sums == BY_BLOCKS32 && (rows > 1 || of.format != OF_BFLOAT16);
}

#if HAS_TILES && !defined(SOFTWARE_TILES)

/* Whether the processor has the instructions and the operating system keeps their registers. */
static int find_support(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 5) != 5) return NO_PROCESSOR;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return NO_SYSTEM;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3 ? ALLOWED : NO_SYSTEM;
}

/* Asks Linux for the registers, once for all threads of the process and processes that it forks. */
static int ask_permission(void) {
    const long request = 0x1023 /* ARCH_REQ_XCOMP_PERM */, tile_data = 18;
    return syscall(SYS_arch_prctl, request, tile_data) ? errno : ALLOWED;
}
#endif

/* Turns AMX on or off for maps that begin afterwards. Returns 0 where it is as wanted, an errno where the
operating system refuses it, or one of the negative numbers above. */
int use_amx(int is_wanted) {
    int refused = ALLOWED;
    is_used = 0;
    if (!is_wanted) return ALLOWED;
#if HAS_TILES
    refused = find_support();
    if (!refused) refused = ask_permission();
#else
    refused = NO_COMPILER;
#endif
    is_used = !refused;
    return refused;
}

void pack_amx_rows(const entry *x, long stride, const long *sources, long rows, struct weight by,
                   uint32_t *to) {
#ifdef BFLOAT16
    const long padded = padded_inputs(by);
    for (long row = 0; row < rows; row++) {
        const entry *from = x + (sources ? sources[row] : row) * stride;
        for (long at = 0; at < padded; at += 2, to++) {
            uint32_t first = at < by.inputs ? from[by.order ? by.order[at] : at] : 0;
            uint32_t second = at + 1 < by.inputs ? from[by.order ? by.order[at + 1] : at + 1] : 0;
            *to = first << 16 | second;
        }
    }
#else
    (void)x, (void)stride, (void)sources, (void)rows, (void)by, (void)to; /* rows are never bfloat16 */
#endif
}

#if HAS_TILES

struct configuration {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Tiles 0 to 3 have sums, 4 and 5 rows, 6 and 7 weights. Of up to 16 rows 0 to 3 are 64 outputs; of more,
0 and 1 are 32 outputs of the first 16, 2 and 3 of the others. */
BY_TILES static void configure(long rows) {
    __attribute__((aligned(64))) struct configuration of = {.palette = 1};
    const long first = rows < HEIGHT ? rows : HEIGHT, others = rows > HEIGHT ? rows - HEIGHT : rows;
    const uint8_t heights[8] = {first, first, others, others, first, others, HEIGHT, HEIGHT};
    for (int tile = 0; tile < 8; tile++) of.row_bytes[tile] = 64, of.rows[tile] = heights[tile];
    __asm__ volatile("" : : "r"(&of) : "memory"); /* GCC 12 believes that less of it is read */
    _tile_loadconfig(&of);
}

INLINE void fetch(const char *from, long bytes) {
    for (long at = 0; at < bytes; at += LINE) __builtin_prefetch(from + at, 0, 3);
}

/* Fetches what a span reads some 8 KiB after the inputs from `at` on. */
INLINE void fetch_weights(struct span of, long at) {
    fetch(of.block + weight_bytes(of.layout, of.layout.group ? at / of.layout.group * of.layout.group : at) + 8192,
          SUM_BLOCK / step_of((int)of.layout.format) * step_bytes((int)of.layout.format));
}

/* Up to 16 rows by 64 outputs. Tile loads wait for stores, so weights of the next 32 inputs are widened
between the products of these, to another buffer. */
BY_TILES static void add_few(struct span of, const uint32_t *x, long stride, long rows, float *sums) {
    __attribute__((aligned(64))) uint32_t buffers[2 * BUFFER_WORDS];
    const uint32_t *next = pairs_at(of, of.first, buffers);
    for (long at = 0; at < of.inputs; at += SUM_BLOCK) {
        const char *weights = (const char *)next;
        if (at % of.together == 0) {
            _tile_loadd(0, sums, ROW_BYTES);
            _tile_loadd(1, sums + 16, ROW_BYTES);
            _tile_loadd(2, sums + 32, ROW_BYTES);
            _tile_loadd(3, sums + 48, ROW_BYTES);
        }
        _tile_loadd(4, x + at / 2, stride * 4);
        _tile_loadd(6, weights, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, weights + 64, ROW_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        fetch_weights(of, of.first + at);
        if (at + SUM_BLOCK < of.inputs)
            next = pairs_at(of, of.first + at + SUM_BLOCK, buffers + (at / SUM_BLOCK + 1) % 2 * BUFFER_WORDS);
        _tile_loadd(6, weights + 128, ROW_BYTES);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, weights + 192, ROW_BYTES);
        _tile_dpbf16ps(3, 4, 7);
        if ((at + SUM_BLOCK) % of.together == 0) {
            _tile_stored(0, sums, ROW_BYTES);
            _tile_stored(1, sums + 16, ROW_BYTES);
            _tile_stored(2, sums + 32, ROW_BYTES);
            _tile_stored(3, sums + 48, ROW_BYTES);
            sums += rows * BLOCK;
        }
    }
}

/* 17 to 32 rows by 32 outputs, of inputs that have one sum. */
BY_TILES static void add_half(const char *weights, long inputs, const uint32_t *x, long stride, float *sums) {
    float *others = sums + HEIGHT * BLOCK;
    _tile_loadd(0, sums, ROW_BYTES);
    _tile_loadd(1, sums + 16, ROW_BYTES);
    _tile_loadd(2, others, ROW_BYTES);
    _tile_loadd(3, others + 16, ROW_BYTES);
    for (long at = 0; at < inputs; at += SUM_BLOCK, weights += PAIR_WORDS * 4) {
        _tile_loadd(4, x + at / 2, stride * 4);
        _tile_loadd(5, x + HEIGHT * stride + at / 2, stride * 4);
        _tile_loadd(6, weights, ROW_BYTES);
        _tile_loadd(7, weights + 64, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, ROW_BYTES);
    _tile_stored(1, sums + 16, ROW_BYTES);
    _tile_stored(2, others, ROW_BYTES);
    _tile_stored(3, others + 16, ROW_BYTES);
}

/* Up to 32 rows, of weights [inputs / 2, BLOCK] that are widened already. Sums of groups are `ahead` rows
apart. */
BY_TILES static void add_many(struct span of, const uint32_t *weights, const uint32_t *x, long stride, long rows,
                              long ahead, float *sums) {
    for (long at = 0; at < of.inputs; at += of.together, sums += ahead * BLOCK) {
        const char *group = (const char *)(weights + at / 2 * BLOCK);
        if (rows > HEIGHT) {
            add_half(group, of.together, x + at / 2, stride, sums);
            add_half(group + 128, of.together, x + at / 2, stride, sums + 32);
            continue;
        }
        for (long column = 0; column < BLOCK; column += 16) {
            _tile_loadd(0, sums + column, ROW_BYTES);
            for (long input = 0; input < of.together; input += SUM_BLOCK) {
                _tile_loadd(4, x + (at + input) / 2, stride * 4);
                _tile_loadd(6, group + input / 2 * ROW_BYTES + column * 4, ROW_BYTES);
                _tile_dpbf16ps(0, 4, 6);
            }
            _tile_stored(0, sums + column, ROW_BYTES);
        }
    }
}

/* Tiles are configured for each span and released after it, so that no thread keeps them for long, and
switches between threads stay short. */
BY_TILES void add_span_by_amx(struct span of, const uint32_t *x, long stride, long rows, float *sums) {
    if (rows <= FEW) {
        configure(rows);
        add_few(of, x, stride, rows, sums);
        _tile_release();
        return;
    }
    __attribute__((aligned(64))) uint32_t widened[MOST_SPAN / 2 * BLOCK];
    const uint32_t *weights = NULL;
    for (long at = 0; at < of.inputs; at += SUM_BLOCK) {
        const uint32_t *found = pairs_at(of, of.first + at, widened + at / 2 * BLOCK);
        if (!at) weights = found;
    }
    for (long first = 0, height; first < rows; first += height) {
        height = rows - first < 2 * HEIGHT ? rows - first : 2 * HEIGHT;
        configure(height);
        add_many(of, weights, x + first * stride, stride, height, rows, sums + first * BLOCK);
    }
    _tile_release();
}

#else

void add_span_by_amx(struct span of, const uint32_t *x, long stride, long rows, float *sums) {
    (void)of, (void)x, (void)stride, (void)rows, (void)sums; /* `is_by_amx` is never true */
}

#endif
