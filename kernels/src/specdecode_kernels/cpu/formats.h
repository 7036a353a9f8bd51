/* How packed weights are stored, and how they become vectors of the processor's own width.

Outputs are cut into blocks of 64. Within a block the weights of one step of inputs lie side by side,
so that a product with one row reads memory once, from front to back. A step is one input, of bfloat16
two: the lower half of a word belongs to the first. Inputs are filled up to a multiple of 8. */
#pragma once
#include "vectors.h"

#if defined(__AVX512F__)
#define WIDTH 16 /* floats of a vector register */
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif

#define BLOCK 64 /* outputs side by side */
#define PARTS (BLOCK / WIDTH)
#define CHUNK 8  /* inputs */
#define LINE 64  /* bytes that memory hands out at once */

typedef float vector __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t bits __attribute__((vector_size(4 * WIDTH)));

enum { OF_FLOAT32, OF_BFLOAT16, FORMATS };

INLINE long padded(long inputs) { return (inputs + CHUNK - 1) / CHUNK * CHUNK; }

/* Inputs whose weights share a word. */
INLINE int step_of(int format) { return format == OF_BFLOAT16 ? 2 : 1; }

/* Bytes of a block for some inputs, a multiple of CHUNK. */
INLINE long block_bytes(int format, long inputs) { return inputs / step_of(format) * BLOCK * 4; }

INLINE bits load_bits(const char *from) {
    bits found;
    memcpy(&found, from, sizeof found);
    return found;
}

/* The weights of input `at` of a step, as floats. */
INLINE vector weights_of(int format, bits words, int at) {
    if (format == OF_FLOAT32) return (vector)words;
    return (vector)(at ? words & 0xffff0000 : words << 16);
}
