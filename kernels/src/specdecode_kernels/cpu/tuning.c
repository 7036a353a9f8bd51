/* The tuning in use, and what is needed to measure one. */
#include "tuning.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tile.h"
#ifdef __CLFLUSHOPT__
#include <immintrin.h>
#endif

struct tuning tuning = {.rows = MOST_ROWS, .panel = 512, .few_panel = 64, .streams = 1,
                        .ahead = 4096, .level = 1, .panel_level = 1, .pairs = 1, .ahead_int8 = 8192, .ahead_int4 = 16384,
                        .widen = 1000, .widen_int4 = 2};

/* For all maps that begin afterwards. */
void set_tuning(const struct tuning *values) { tuning = *values; }

int most_rows(void) { return MOST_ROWS; }

/* Gives the whole pages of private memory back; what was written to them is lost. */
void release_pages(char *from, long bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)from + page - 1) & -page;
    uintptr_t end = ((uintptr_t)from + (uintptr_t)bytes) & -page;
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
}

/* Removes memory from the caches, where a program may. */
void evict(const char *from, long bytes) {
#ifdef __CLFLUSHOPT__
    for (long at = 0; at < bytes; at += LINE) _mm_clflushopt((void *)(from + at));
    _mm_sfence();
#else
    (void)from, (void)bytes;
#endif
}
