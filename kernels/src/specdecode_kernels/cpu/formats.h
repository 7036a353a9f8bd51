/* How packed weights are stored, and how they become vectors of the processor's own width.

Outputs are cut into blocks of 64. Within a block the weights of one step of inputs lie side by side,
so that a product with one row reads memory once, from front to back. A step is one input; of
bfloat16 two, the upper half of a word belonging to the first; of 4 bits eight, from the lowest bits on.
Inputs are filled up to a multiple of 8, with groups to a multiple of their size, with sums in the order
blocks32 (blocks32.c) also to a multiple of 32.

Weights of 8 bits have one scale for each output: floats after the weights of the block. Where inputs
have groups, scales for each output and group are before the weights of the group. Scales of
float8_e4m3fn have factors of outputs besides: floats after the weights of the block, as scales of outputs
are. Integers may have zero points, bytes after the scales of a group or before those of outputs:
w = scale * (integer - zero point).

Float8 (e4m3fn: a sign, 4 bits of exponent with a bias of 7, 3 of mantissa) is multiplied as its number
divided by 2^8, and has scales that are multiplied by 2^8: with its exponent and mantissa in place of the
upper bits of a float16, whose bias is 15, it is that number, also where it is subnormal. Processors
convert float16 without delay; subnormal floats would take an Intel processor a hundred cycles.

Float4 (e2m1fn: a sign, 2 bits of exponent, 1 of mantissa) is multiplied as twice its number, an integer:
0, 1, 2, 3, 4, 6, 8 or 12 with the sign. Half of its scale is multiplied by the sum of a group. Of
float8_e8m0fnu (MXFP4) that is 2^(byte - 128): exact, and subnormal where the byte is 0 or 1, which only
takes time. Of float8_e4m3fn (NVFP4) it is the number divided by 2^8, and the factor of the output is
multiplied by 2^7; a factor from 2^121 on would become infinity. Sums of 32 products with integers up to 12
stay below the largest float where rows are below 2^119. */
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
typedef int32_t integers __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t bits __attribute__((vector_size(4 * WIDTH)));

enum { OF_FLOAT32, OF_BFLOAT16, OF_INT8, OF_INT4, OF_FLOAT8, OF_FLOAT4, FORMATS };

/* What tiles take integers with zero points for: their differences, which are exact, are multiplied. */
enum { SHIFTED_INT8 = FORMATS + 1, SHIFTED_INT4 };

INLINE int is_shifted(int format) { return format == SHIFTED_INT8 || format == SHIFTED_INT4; }

/* The format in memory of what a tile takes. */
INLINE int stored_format(int format) {
    return format == SHIFTED_INT8 ? OF_INT8 : format == SHIFTED_INT4 ? OF_INT4 : format;
}

/* Of groups. */
enum { IN_BFLOAT16, IN_FLOAT32, IN_E8M0, IN_E4M3 };

/* What tiles may take OF_BFLOAT16 for: rows stay pairs of bfloat16, which one instruction multiplies by
pairs of weights: the upper halves first, each product added by one fused multiply-add. */
#define OF_PAIRS FORMATS
#if defined(BFLOAT16) && defined(__AVX512BF16__)
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

/* Whether a table gives bytes for all codes of a step of float8 at once. */
#if defined(__AVX512VBMI__)
#define HAS_BYTE_TABLES 1
#else
#define HAS_BYTE_TABLES 0
#endif

/* In which order sums add their products; see tile.c. */
enum { BY_INPUTS, BY_BLOCKS32 };
#define SUM_BLOCK 32 /* inputs of a block of blocks32 */

/* `PackedLayout` of packed_weights.py. */
struct layout {
    int64_t format;
    int64_t group;  /* inputs that share a scale; 0: all */
    int64_t scales; /* of groups: IN_E8M0 and IN_E4M3 of float4, the others of other formats */
    int32_t has_zeros;
    int32_t sums; /* BY_BLOCKS32 with rows of bfloat16 alone */
};

INLINE long padded(struct layout of, long inputs) {
    long unit = of.group ? of.group : CHUNK;
    if (of.sums == BY_BLOCKS32 && unit < SUM_BLOCK) unit = SUM_BLOCK;
    return (inputs + unit - 1) / unit * unit;
}

/* Whether a byte holds two weights. */
INLINE int is_halved(int format) {
    return stored_format(format) == OF_INT4 || format == OF_FLOAT4;
}

/* Inputs whose weights share a word. */
INLINE int step_of(int format) {
    return format == OF_BFLOAT16 || format == OF_PAIRS ? 2 : is_halved(format) ? 8 : 1;
}

/* Numbers of packed rows for so many inputs: floats, or pairs. */
INLINE long numbers_of(long format, long inputs) { return format == OF_PAIRS ? inputs / 2 : inputs; }

/* Whether a weight is a byte. */
INLINE int is_byte(int format) { return stored_format(format) == OF_INT8 || format == OF_FLOAT8; }

/* Bytes of a step of a block. */
INLINE long step_bytes(int format) { return is_byte(format) ? BLOCK : 4 * BLOCK; }

/* Whether each output has one scale or factor, after the weights of the block. */
INLINE int has_output_scales(struct layout of) {
    return of.group ? of.scales == IN_E4M3 : is_byte((int)of.format);
}

/* Bytes of the scale of a group. */
INLINE long scale_bytes(struct layout of) { return of.scales == IN_FLOAT32 ? 4 : of.scales == IN_BFLOAT16 ? 2 : 1; }

/* Bytes before the weights of a group: scales, then zero points. */
INLINE long header_bytes(struct layout of) {
    if (!of.group) return 0;
    return BLOCK * (scale_bytes(of) + (of.has_zeros ? 1 : 0));
}

/* Bytes of a group with its header. */
INLINE long group_bytes(struct layout of) {
    return header_bytes(of) + of.group / step_of((int)of.format) * step_bytes((int)of.format);
}

/* Bytes of a block's weights for some inputs, from the first one on. */
INLINE long weight_bytes(struct layout of, long inputs) {
    if (of.group) return inputs / of.group * group_bytes(of);
    return inputs / step_of((int)of.format) * step_bytes((int)of.format);
}

/* Bytes of a whole block. */
INLINE long block_bytes(struct layout of, long inputs) {
    long zeros = of.has_zeros && !of.group ? BLOCK : 0;
    return weight_bytes(of, inputs) + zeros + (has_output_scales(of) ? 4 * BLOCK : 0);
}

/* The words of float8 as floats, divided by 2^8. */
INLINE bits load_float8(const char *bytes) {
#if defined(__AVX512F__)
    __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)bytes)), 7);
    return (bits)_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbf80)));
#elif defined(__AVX2__) && defined(__F16C__)
    __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)bytes)), 7);
    return (bits)_mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16((short)0xbf80)));
#elif defined(__aarch64__)
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    int16x4_t wide = vshl_n_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))), 7);
    return (bits)vcvt_f32_f16(vreinterpret_f16_s16(vand_s16(wide, vdup_n_s16((int16_t)0xbf80))));
#else
    bits words;
    for (int i = 0; i < WIDTH; i++) words[i] = (uint32_t)(int8_t)bytes[i] << 20 & 0x87f00000;
    return (bits)((vector)words * 0x1p112f);
#endif
}

/* The words of one part of a step; a byte becomes a word of its own. */
INLINE bits load_words(int format, const char *step, int part) {
    bits words;
    if (format == OF_FLOAT8) return load_float8(step + part * WIDTH);
    if (stored_format(format) == OF_INT8) {
        step += part * WIDTH;
#if defined(__AVX512F__)
        return (bits)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)step));
#elif defined(__AVX2__)
        return (bits)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)step));
#elif defined(__ARM_NEON)
        int32_t four;
        memcpy(&four, step, sizeof four);
        return (bits)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
#else
        for (int i = 0; i < WIDTH; i++) words[i] = (uint32_t)(int8_t)step[i];
        return words;
#endif
    }
    memcpy(&words, step + part * 4 * WIDTH, sizeof words);
    return words;
}

/* Twice the numbers of float4 of input `at` of a step. */
INLINE vector float4_of(bits words, int at) {
#if defined(__AVX512F__)
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return (vector)_mm512_permutexvar_ps((__m512i)(words >> (4 * at)), values);
#elif defined(__AVX2__)
    const __m256i values = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    bits codes = (at % 2 ? words >> 4 : words) & 0x0f0f0f0f; /* of every other input */
    integers numbers = (integers)_mm256_shuffle_epi8(values, (__m256i)codes);
    return __builtin_convertvector((integers)((bits)numbers << (24 - at / 2 * 8)) >> 24, vector);
#else
    /* The exponent and the mantissa in place of those of a float, whose bias is 127. */
    integers upper = (integers)(words << (28 - 4 * at)) >> 6;
    return (vector)(upper & (integers){} + (int32_t)0x81c00000) * 0x1p127f;
#endif
}

#if HAS_BYTE_TABLES
/* Float8 without its sign as bfloat16, divided by 2^8. */
#define NUMBER(code)                                                                              \
    ((code) > 7 ? 0x3800 + (code) * 16 : (code) > 3 ? 0x3780 + (code) * 32 :                      \
     (code) > 1 ? 0x3700 + (code) * 64 : (code) * 0x3700)
#define LOWER(code) (NUMBER(code) & 255)
#define UPPER(code) (NUMBER(code) >> 8)
#define EIGHT(of, code)                                                                           \
    of(code), of(code + 1), of(code + 2), of(code + 3), of(code + 4), of(code + 5), of(code + 6), of(code + 7)
#define SIXTY_FOUR(of, code)                                                                      \
    EIGHT(of, code), EIGHT(of, code + 8), EIGHT(of, code + 16), EIGHT(of, code + 24),             \
    EIGHT(of, code + 32), EIGHT(of, code + 40), EIGHT(of, code + 48), EIGHT(of, code + 56)
#define FROM(at) at, at + 16, at + 1, at + 17, at + 2, at + 18, at + 3, at + 19

/* Reads the words of some parts of a step of float8 as `load_float8`, in fewer instructions: both bytes of
all 64 numbers come from tables. First the bytes are ordered so that a pair of them has a word's bits of
two parts. */
INLINE void load_step_of_float8(const char *step, int first, int parts, bits *words) {
    static const uint8_t order[64] = {FROM(0), FROM(32), FROM(4), FROM(36), FROM(8), FROM(40), FROM(12), FROM(44)};
    static const uint8_t lower[2][64] = {{SIXTY_FOUR(LOWER, 0)}, {SIXTY_FOUR(LOWER, 64)}};
    static const uint8_t upper[2][64] = {{SIXTY_FOUR(UPPER, 0)}, {SIXTY_FOUR(UPPER, 64)}};
    __m512i codes = _mm512_permutexvar_epi8(_mm512_loadu_si512(order), _mm512_loadu_si512(step));
    __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(lower[0]), codes, _mm512_loadu_si512(lower[1]));
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(upper[0]), codes, _mm512_loadu_si512(upper[1]));
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xf8); /* with the sign */
    for (int part = 0; part < parts; part += 2) {
        bits both = (bits)(first + part ? _mm512_unpackhi_epi8(low, high) : _mm512_unpacklo_epi8(low, high));
        words[part] = both << 16;
        words[part + 1] = both & 0xffff0000;
    }
}
#endif

/* The words of some parts of a step. */
INLINE void load_step(int format, const char *step, int first, int parts, bits *words) {
#if HAS_BYTE_TABLES
    if (format == OF_FLOAT8) {
        load_step_of_float8(step, first, parts, words);
        return;
    }
#endif
    for (int part = 0; part < parts; part++) words[part] = load_words(format, step, first + part);
}

/* The weights of input `at` of a step as floats, without their scales. */
INLINE vector weights_of(int format, bits words, int at) {
    if (format == OF_FLOAT4) return float4_of(words, at);
    if (format == OF_FLOAT32 || format == OF_FLOAT8) return (vector)words;
    if (format == OF_BFLOAT16) return (vector)(at ? words << 16 : words & 0xffff0000);
    if (stored_format(format) == OF_INT8) return __builtin_convertvector((integers)words, vector);
#if defined(__AVX512F__)
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    if (at == 7) return __builtin_convertvector((integers)words >> 28, vector);
    return (vector)_mm512_permutexvar_ps((__m512i)(words >> (4 * at)), values);
#else
    return __builtin_convertvector((integers)(words << (28 - 4 * at)) >> 28, vector);
#endif
}

/* Half of the scales of float8_e8m0fnu of one part: 2^(byte - 128). */
INLINE vector half_e8m0(const char *bytes) {
    const int32_t least = 0x00400000; /* 2^-127, the scale of byte 0 */
#if defined(__AVX512F__)
    __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
    vector scales = (vector)_mm512_max_epi32(_mm512_slli_epi32(wide, 23), _mm512_set1_epi32(least));
#elif defined(__AVX2__)
    __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
    vector scales = (vector)_mm256_max_epi32(_mm256_slli_epi32(wide, 23), _mm256_set1_epi32(least));
#else
    integers wide;
    for (int i = 0; i < WIDTH; i++) wide[i] = bytes[i] ? (uint8_t)bytes[i] << 23 : least;
    vector scales = (vector)wide;
#endif
    return scales * 0.5f;
}

/* What the sums of one part of a group are multiplied by. */
INLINE vector scales_of(int kind, const char *header, int part) {
    typedef uint16_t narrow __attribute__((vector_size(2 * WIDTH)));
    vector wide;
    narrow scales;
    if (kind == IN_E8M0) return half_e8m0(header + part * WIDTH);
    if (kind == IN_E4M3) return (vector)load_float8(header + part * WIDTH);
    if (kind == IN_FLOAT32) {
        memcpy(&wide, header + part * 4 * WIDTH, sizeof wide);
        return wide;
    }
    memcpy(&scales, header + part * 2 * WIDTH, sizeof scales);
#if defined(__AVX512F__)
    return (vector)(widen_halves(scales) << 16);
#else
    return (vector)(__builtin_convertvector(scales, bits) << 16);
#endif
}

/* The zero points of one part: bytes [BLOCK]. */
INLINE vector zeros_of(const char *zeros, int part) {
    return weights_of(OF_INT8, load_words(OF_INT8, zeros, part), 0);
}
