/* Packs weights into the blocks of formats.h, and reads them again. */
#include "linear.h"

/* Packs a weight [outputs, inputs] of entries; what fills it up is zero. */
void pack(const struct weight *to, const entry *weight) {
    const struct weight by = *to;
    long wide = padded_inputs(by), step = step_of(OF_ENTRIES);
    entry *packed = (entry *)by.blocks;
#pragma omp parallel for schedule(static)
    for (long first = 0; first < by.outputs; first += BLOCK)
        for (long at = 0; at < wide; at++)
            for (long i = 0; i < BLOCK; i++) {
                int is_there = first + i < by.outputs && at < by.inputs;
                packed[first * wide + at / step * step * BLOCK + i * step + step - 1 - at % step] =
                    is_there ? weight[(first + i) * by.inputs + at] : 0;
            }
}

/* A scale as bfloat16, which holds it. */
INLINE void store_scale(struct layout of, char *header, long place, float scale) {
    uint32_t found;
    memcpy(&found, &scale, sizeof found);
    uint16_t upper = (uint16_t)(found >> 16);
    if (of.scales == IN_FLOAT32) memcpy(header + 4 * place, &scale, sizeof scale);
    else memcpy(header + 2 * place, &upper, sizeof upper);
}

/* The scale or factor of an output, after the weights of its block. */
static void store_output_scale(struct weight by, long output, float scale) {
    memcpy(block_at(by, output / BLOCK + 1) - 4 * (BLOCK - output % BLOCK), &scale, sizeof scale);
}

static void pack_byte_output(struct weight by, long output, const char *values, const float *scales,
                             const int8_t *zeros) {
    struct layout of = by.layout;
    long place = output % BLOCK, group = of.group ? of.group : by.inputs;
    long groups = (by.inputs + group - 1) / group;
    char *block = block_at(by, output / BLOCK);
    for (long number = 0; number < groups; number++) {
        char *header = block + weight_bytes(of, number * group), *group_values = header + header_bytes(of);
        long first = number * group, count = by.inputs - first < group ? by.inputs - first : group;
        for (long i = 0; i < count; i++) group_values[i * BLOCK + place] = values[output * by.inputs + first + i];
        float scale = scales[output * groups + number] * (of.format == OF_FLOAT8 ? 256 : 1);
        if (of.group) store_scale(of, header, place, scale);
        else store_output_scale(by, output, scale);
        char *group_zeros = of.group ? group_values - BLOCK : block + weight_bytes(of, padded_inputs(by));
        if (of.has_zeros) group_zeros[place] = zeros[output * groups + number];
    }
}

static void pack_halved_output(struct weight by, long output, const uint8_t *values, const void *scales,
                               const int8_t *zeros, const float *factors) {
    struct layout of = by.layout;
    long place = output % BLOCK, groups = (by.inputs + of.group - 1) / of.group, row = (by.inputs + 1) / 2;
    uint32_t flipped = of.format == OF_INT4 ? 8 : 0; /* less 8, in two's complement */
    for (long group = 0; group < groups; group++) {
        char *header = block_at(by, output / BLOCK) + group * weight_bytes(of, of.group);
        long number = output * groups + group;
        if (scale_bytes(of) == 1) header[place] = ((const char *)scales)[number];
        else store_scale(of, header, place, ((const float *)scales)[number]);
        if (of.has_zeros) header[header_bytes(of) - BLOCK + place] = zeros[number];
        for (long i = 0; i < of.group; i += 8) {
            uint32_t word = 0;
            for (long part = 0, at = group * of.group + i; part < 8 && at < by.inputs; part++, at++) {
                uint32_t stored = values[output * row + at / 2] >> at % 2 * 4 & 15;
                word |= (stored ^ flipped) << 4 * part;
            }
            memcpy(header + header_bytes(of) + i / 8 * 4 * BLOCK + 4 * place, &word, sizeof word);
        }
    }
    if (factors) store_output_scale(by, output, factors[output] * 0x1p7f);
}

/* Packs a quantized weight: values [outputs, inputs] of 8 bits; or of 4 bits, two in a byte
[outputs, (inputs + 1) / 2], the lower half first, 8 added to integers. Scales [outputs, groups] are
floats, or bytes as they are stored. Zero points [outputs, groups], of integers without the 8, and factors
[outputs] of scales of float8_e4m3fn may be NULL. */
void pack_quantized(const struct weight *to, const void *values, const void *scales, const int8_t *zeros,
                    const float *factors) {
    const struct weight by = *to;
    memset((char *)by.blocks, 0, (size_t)packed_bytes(by));
#pragma omp parallel for schedule(static)
    for (long output = 0; output < by.outputs; output++) {
        if (is_byte((int)by.layout.format)) pack_byte_output(by, output, values, scales, zeros);
        else pack_halved_output(by, output, values, scales, zeros, factors);
    }
}
