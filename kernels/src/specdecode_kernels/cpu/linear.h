/* The linear map of one block of outputs; see linear.c. */
#pragma once
#include "vectors.h"

#define BLOCK 64    /* outputs side by side */

#ifdef BFLOAT16
#define STEP 2      /* inputs whose weights lie side by side */
#else
#define STEP 1
#endif

/* Inputs of a packed weight, with what fills up its last step. */
INLINE long padded_inputs(long inputs) { return (inputs + STEP - 1) / STEP * STEP; }

/* Maps x [rows, inputs], rows `stride` entries apart, by one block of a packed weight: to the first
`width` entries of each row of out, which are `outputs` apart. bias [width] may be NULL. */
__attribute__((visibility("hidden"))) void map_block(const entry *block, const entry *x, long stride,
                                                     const entry *bias, entry *out, long rows,
                                                     long outputs, long inputs, long width);
