/* Low-rank maps that are added to the outputs of a linear map: rows are sorted by the map that each has,
so that its factors are read once for all of them. What a row has of each rank is the sum of four sums
over every fourth input, each in the order of the inputs; what is added to an output is the sum over the
ranks in their order. All are of float32, by fused multiply-adds, and the last sum is rounded once. So a
row's bits depend on the row and its map alone, whatever the number of rows, maps and threads. */
#include "low_rank.h"

#include <stdlib.h>

#include "linear.h"
#include "vectors.h"

#if defined(__AVX512F__)
#define HEIGHT 4 /* rows that are computed together: as many as there are registers for */
#else
#define HEIGHT 1
#endif
#define CHAINS 4              /* sums of a rank: one alone would wait for each product */
#define TASK_ROWS 32          /* at most */
#define TASK_BLOCKS 8         /* at most */
#define LEAST_PARALLEL 65536  /* numbers of factors */
#define VECTORS (BLOCK / LANES)

/* Rows of one map, and its first vector or block that they get. */
struct task {
    int64_t slot, first, rows, part;
};

/* What all tasks share. */
struct job {
    const struct low_rank *by_slot;
    long outputs, inputs;
    const int64_t *sources; /* of sorted rows */
    const entry *x;
    long stride; /* of x */
    entry *out;
    float *ranks; /* [sorted rows, width] */
    long width;
};

INLINE floats load_lanes(const float *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* LANES ranks of a few rows of floats. */
INLINE void shrink_rows(const int height, const float *a, const float *const *x, long inputs, float *to,
                        long width) {
    floats sums[HEIGHT][CHAINS] = {};
    long at = 0;
    for (; at + CHAINS <= inputs; at += CHAINS)
        for (int chain = 0; chain < CHAINS; chain++) {
            floats w = load_lanes(a + (at + chain) * LANES);
            for (int row = 0; row < height; row++) sums[row][chain] += w * x[row][at + chain];
        }
    for (int chain = 0; at < inputs; at++, chain++)
        for (int row = 0; row < height; row++) sums[row][chain] += load_lanes(a + at * LANES) * x[row][at];
    for (int row = 0; row < height; row++) {
        floats sum = (sums[row][0] + sums[row][1]) + (sums[row][2] + sums[row][3]);
        memcpy(to + row * width, &sum, sizeof sum);
    }
}

/* The numbers of a row as floats; `wide` has room for them. */
INLINE const float *as_floats(const entry *x, long inputs, float *wide) {
#ifdef BFLOAT16
    for (long at = 0; at < inputs; at += LANES) {
        floats some = load_some(x + at, inputs - at);
        memcpy(wide + at, &some, sizeof some);
    }
    return wide;
#else
    (void)inputs, (void)wide;
    return x;
#endif
}

/* One vector of ranks of all rows of a task. */
static void shrink(const struct job *of, struct task task) {
    long room = (of->inputs + LANES - 1) / LANES * LANES;
    float *wide = scratch(HEIGHT * room);
    const float *a = of->by_slot[task.slot].a + task.part * of->inputs * LANES, *x[HEIGHT];
    for (long row = task.first, end = task.first + task.rows; row < end; row += HEIGHT) {
        long height = end - row < HEIGHT ? end - row : HEIGHT;
        for (long each = 0; each < height; each++)
            x[each] = as_floats(of->x + of->sources[row + each] * of->stride, of->inputs, wide + each * room);
        float *to = of->ranks + row * of->width + task.part * LANES;
        if (height == HEIGHT) shrink_rows(HEIGHT, a, x, of->inputs, to, of->width);
        else for (long each = 0; each < height; each++)
            shrink_rows(1, a, x + each, of->inputs, to + each * of->width, of->width);
    }
}

/* Adds to a block of outputs of a few rows. */
INLINE void expand_rows(const int height, const float *b, const float *ranks, long width, long count,
                        entry *const *out, long outputs) {
    floats sums[HEIGHT][VECTORS] = {};
    for (long rank = 0; rank < count; rank++, b += BLOCK)
        for (int vector = 0; vector < VECTORS; vector++) {
            floats w = load_lanes(b + vector * LANES);
            for (int row = 0; row < height; row++) sums[row][vector] += w * ranks[row * width + rank];
        }
    for (int row = 0; row < height; row++)
        for (long vector = 0, left = outputs; vector < VECTORS && left > 0; vector++, left -= LANES) {
            entry *to = out[row] + vector * LANES;
            store_some(to, load_some(to, left) + sums[row][vector], left);
        }
}

/* One block of outputs of all rows of a task. */
static void expand_block(const struct job *of, struct task task, long block) {
    const int64_t *bounds = of->by_slot[task.slot].blocks[block];
    long at = block * BLOCK, outputs = of->outputs - at < BLOCK ? of->outputs - at : BLOCK;
    const float *b = of->by_slot[task.slot].b + bounds[2] * BLOCK;
    for (long row = task.first, end = task.first + task.rows; row < end; row += HEIGHT) {
        long height = end - row < HEIGHT ? end - row : HEIGHT;
        const float *ranks = of->ranks + row * of->width + bounds[0];
        entry *out[HEIGHT];
        for (long each = 0; each < height; each++)
            out[each] = of->out + of->sources[row + each] * of->outputs + at;
        if (height == HEIGHT) expand_rows(HEIGHT, b, ranks, of->width, bounds[1], out, outputs);
        else for (long each = 0; each < height; each++)
            expand_rows(1, b, ranks + each * of->width, of->width, bounds[1], out + each, outputs);
    }
}

static void expand(const struct job *of, struct task task) {
    long blocks = blocks_of(of->outputs), end = task.part + TASK_BLOCKS;
    for (long block = task.part; block < (end < blocks ? end : blocks); block++)
        if (of->by_slot[task.slot].blocks[block][1]) expand_block(of, task, block);
}

/* Lists the tasks of all groups, `step` parts each; returns how many. The parts of a map are its vectors
where `parts` is 0. Without a list they are counted. */
static long list_tasks(const struct low_rank *by_slot, const struct low_rank_rows *sorted, long parts,
                       long step, struct task *tasks) {
    long found = 0;
    for (long group = 0; group < sorted->count; group++) {
        const int64_t *of = sorted->groups[group];
        long vectors = by_slot[of[0]].vectors, all = vectors && parts ? parts : vectors;
        for (long part = 0; part < all; part += step)
            for (long row = of[1], end = of[1] + of[2]; row < end; row += TASK_ROWS, found++)
                if (tasks)
                    tasks[found] = (struct task){of[0], row, end - row < TASK_ROWS ? end - row : TASK_ROWS, part};
    }
    return found;
}

/* Adds to out [rows, outputs] what the maps of sorted rows give for x [rows, inputs], whose rows are `stride`
entries apart. */
void add_low_rank(const struct low_rank *by_slot, long outputs, long inputs,
                  const struct low_rank_rows *sorted, const entry *x, long stride, entry *out) {
    long blocks = blocks_of(outputs), width = 0, work = 0, rows = 0;
    for (long group = 0; group < sorted->count; group++) {
        const int64_t *of = sorted->groups[group];
        long ranks = by_slot[of[0]].vectors * LANES;
        width = ranks > width ? ranks : width;
        work += ranks * (inputs + outputs);
        rows = of[1] + of[2] > rows ? of[1] + of[2] : rows;
    }
    if (!width) return;
    long shrinks = list_tasks(by_slot, sorted, 0, 1, NULL);
    long expands = list_tasks(by_slot, sorted, blocks, TASK_BLOCKS, NULL);
    size_t of_tasks = (size_t)(shrinks + expands) * sizeof(struct task);
    size_t bytes = of_tasks + (size_t)(rows * width) * sizeof(float);
    struct task *tasks = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!tasks) abort();
    list_tasks(by_slot, sorted, 0, 1, tasks);
    list_tasks(by_slot, sorted, blocks, TASK_BLOCKS, tasks + shrinks);
    struct job of = {by_slot, outputs, inputs, sorted->rows, x, stride, out,
                     (float *)((char *)tasks + of_tasks), width};
#pragma omp parallel if (work > LEAST_PARALLEL)
    {
#pragma omp for schedule(dynamic)
        for (long task = 0; task < shrinks; task++) shrink(&of, tasks[task]);
#pragma omp for schedule(dynamic)
        for (long task = shrinks; task < shrinks + expands; task++) expand(&of, tasks[task]);
    }
    free(tasks);
}
