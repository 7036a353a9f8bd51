/* How linear maps are cut and prefetched on a processor; it changes times and no bits. */
#pragma once

/* `struct _Fields` of tuning.py. */
struct tuning {
    long rows;      /* of a tile, at most */
    long panel;     /* inputs whose weights serve all rows before the next ones are read */
    long few_panel; /* the same where rows are one tile, or streams are several */
    long streams;   /* blocks that are read in turns where one tile reads its weights once */
    long ahead;     /* bytes: how far such a tile fetches weights before it needs them */
    long level;     /* cache that they are fetched to; 0: as data that is read once */
    long ahead_int8; /* as `ahead`, of weights of 8 bits */
    long ahead_int4; /* of 4 bits */
    long panel_level; /* cache that the weights of the next panel are fetched to: 1 or 2 */
    long spread;    /* whether they are fetched evenly, instead of at every chunk of inputs */
    long pairs;     /* whether rows of bfloat16 stay pairs, where an instruction multiplies them */
    long widen;     /* tiles of rows from which weights of 16 or 8 bits become floats once for all */
    long widen_int4; /* the same of weights of 4 bits and of float8 */
};

extern __attribute__((visibility("hidden"))) struct tuning tuning;
