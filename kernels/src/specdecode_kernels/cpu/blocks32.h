/* Sums in the order blocks32, which tile.c defines: blocks32.c by multiply-adds, amx.c by Intel's AMX. */
#pragma once
#include "linear.h"

#define SUM_PAIRS (SUM_BLOCK / 2)
#define PAIR_WORDS (SUM_PAIRS * BLOCK) /* of 32 inputs of a block of outputs */
#define MOST_SPAN 128                  /* inputs that are widened together, at least a group */

/* Some inputs of a block of outputs, a multiple of 32 and of groups. */
struct span {
    struct layout layout;
    const char *block; /* all weights of these outputs */
    const char *zeros; /* of the outputs, where integers have such without groups */
    long first, inputs;
    long together; /* inputs of a sum */
};

/* Whether the sum of a group has a scale of its own. */
INLINE int has_group_sums(struct layout of) { return of.group && of.scales != IN_E4M3; }

/* Whether rows are multiplied by AMX: where `use_amx` has turned it on. */
HIDDEN int is_by_amx(struct layout of, long rows);

/* Writes rows as `pack_rows`, for AMX: pairs [rows, padded_inputs / 2], the first input in the upper half. */
HIDDEN void pack_amx_rows(const entry *x, long stride, const long *sources, long rows, struct weight by,
                          uint32_t *to);

/* Goes on with sums [inputs / together, rows, BLOCK] of a span; x of its first input, rows `stride` words
apart. The caller has configured nothing. */
HIDDEN void add_span_by_amx(struct span of, const uint32_t *x, long stride, long rows, float *sums);

/* Returns 32 inputs of a span from `at` on as pairs of bfloat16 [16, BLOCK], the first input in the upper
half, without scales of groups: those in memory, or what is written to `to`. */
HIDDEN const uint32_t *pairs_at(struct span of, long at, uint32_t *to);

/* As `map_blocks`. */
HIDDEN void map_blocks32(struct weight by, const entry *bias, long first, long count, const float *x,
                         long rows, struct result out);
