/* What a processor can do at most: read memory, and multiply and add in registers.

Several streams and prefetch distances are offered, because processors differ in what they need to
read at full speed; the caller keeps the fastest. Threads divide the work evenly. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

#define LINE 64        /* bytes */
#define AT_ONCE 4      /* lines of a stream read together */
#define INDEPENDENT 12 /* sums, enough to hide the latency of a multiply-add */
#define HUGE_PAGE (2l << 20)

typedef float vector __attribute__((vector_size(4 * LANES)));

/* Requests huge pages for memory that nothing was written to yet. */
void advise_huge_pages(char *from, long bytes) {
    uintptr_t first = ((uintptr_t)from + HUGE_PAGE - 1) & -HUGE_PAGE;
    uintptr_t end = ((uintptr_t)from + (uintptr_t)bytes) & -HUGE_PAGE;
    if (first < end) madvise((void *)first, end - first, MADV_HUGEPAGE);
}

static float total_of(vector x) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += x[lane];
    return total;
}

/* Adds up `bytes` in `streams` parts that take turns. */
static float read_part(const char *from, long bytes, long streams, long ahead) {
    vector sums[AT_ONCE] = {};
    long each = bytes / streams / (AT_ONCE * LINE) * (AT_ONCE * LINE);
    for (long at = 0; at < each; at += AT_ONCE * LINE)
        for (long stream = 0; stream < streams; stream++) {
            const char *lines = from + stream * each + at;
            for (int i = 0; i < AT_ONCE; i++) {
                if (ahead) __builtin_prefetch(lines + ahead + i * LINE, 0, 0);
                for (int part = 0; part < LINE; part += (int)sizeof(vector)) {
                    vector some;
                    memcpy(&some, lines + i * LINE + part, sizeof some);
                    sums[i] += some;
                }
            }
        }
    vector sum = {};
    for (int i = 0; i < AT_ONCE; i++) sum += sums[i];
    return total_of(sum);
}

float read_memory(const char *from, long bytes, long streams, long ahead, long threads) {
    float total = 0;
    long part = bytes / threads;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
    for (long thread = 0; thread < threads; thread++)
        total += read_part(from + thread * part, part, streams, ahead);
    return total;
}

static float multiply_part(long rounds, float factor, float addend) {
    vector sums[INDEPENDENT] = {}, factors = factor - (vector){}, addends = addend - (vector){};
    for (int i = 0; i < INDEPENDENT; i++) sums[i] = addends * (float)i;
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < INDEPENDENT; i++) sums[i] = sums[i] * factors + addends;
    vector sum = {};
    for (int i = 0; i < INDEPENDENT; i++) sum += sums[i];
    return total_of(sum);
}

/* Returns how many floating-point operations each thread computes in `rounds`. */
long multiply_and_add(long rounds, float factor, float addend, float *total, long threads) {
    float sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum)
    for (long thread = 0; thread < threads; thread++) sum += multiply_part(rounds, factor, addend);
    *total = sum;
    return 2l * rounds * INDEPENDENT * LANES;
}

static float multiply_pairs_part(long rounds, float factor, float addend) {
    vector sums[INDEPENDENT] = {};
    for (int i = 0; i < INDEPENDENT; i++) sums[i] += addend * (float)i;
#ifdef __AVX512BF16__
    __m512bh factors = _mm512_cvtne2ps_pbh(_mm512_set1_ps(factor), _mm512_set1_ps(factor));
    __m512bh addends = _mm512_cvtne2ps_pbh(_mm512_set1_ps(addend), _mm512_set1_ps(addend));
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < INDEPENDENT; i++)
            sums[i] = (vector)_mm512_dpbf16_ps((__m512)sums[i], factors, addends);
#else
    (void)rounds, (void)factor;
#endif
    vector sum = {};
    for (int i = 0; i < INDEPENDENT; i++) sum += sums[i];
    return total_of(sum);
}

/* The same with pairs of bfloat16; none where the processor lacks the instruction. */
long multiply_pairs(long rounds, float factor, float addend, float *total, long threads) {
    float sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum)
    for (long thread = 0; thread < threads; thread++) sum += multiply_pairs_part(rounds, factor, addend);
    *total = sum;
#ifdef __AVX512BF16__
    return 4l * rounds * INDEPENDENT * LANES;
#else
    return 0;
#endif
}
