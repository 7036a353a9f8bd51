/* Calls the C kernels with arguments that come over a pipe, so that they can run under an emulator.

A request is a memory image: regions with their bytes, and pointers between them. Its results are the
regions that a kernel may have written. Numbers are little-endian, 64 bits wide; see `remote.py`. */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64          /* bytes: a region starts as far after a multiple of it as in the caller */
#define MOST_ARGUMENTS 16

#ifdef BFLOAT16
typedef uint16_t entry;
#else
typedef float entry;
#endif

void rms_norm(const entry *, long, const void *, long, float, entry *, long, long);
void add_rms_norm(const entry *, long, const entry *, long, const void *, long, float, entry *, entry *,
                  long, long);
void apply_rope(entry *, long, long, entry *, long, long, const float *, const float *, long, long);
void silu_and_mul(const entry *, long, const entry *, long, entry *, long, long);
void gelu_tanh_and_mul(const entry *, long, const entry *, long, entry *, long, long);
void softcap(const float *, float, float *, long);
void store_kv(entry *, entry *, const int64_t *, const entry *, long, const entry *, long, long, long,
              long);
void verify_chain(const int64_t *, long, const int64_t *, long, int64_t *, long, long);
void lay_out_rows(const int64_t *, long, long, const int64_t *, const int64_t *, long, const int64_t *,
                  const int64_t *, int64_t *, long, long, int64_t *, long);
void append_tokens(int64_t *, long, int64_t *, const int64_t *, const int64_t *, const int64_t *,
                   const int64_t *, long, const int64_t *, long, long);
void pack(const void *, const entry *);
void pack_quantized(const void *, const void *, const void *, const int8_t *, const float *);
void linear(const void *, const entry *, const entry *, long, entry *, long);
void attend(const void *, const void *, const entry *, long, const entry *, const entry *, entry *, long,
            long, long, long, const void *);
void experts(const void *, const entry *, const void *, const entry *, const entry *, long,
             const int32_t *, const float *, entry *, entry *, long *, const void *, const void *);
void gated_delta(const void *, const void *, const void *, long, const void *, entry *, int32_t *);
void keep_drafted(const void *, const void *, const int64_t *, const int64_t *, long, const int64_t *,
                  long);
void map_heads(const void *, long, const entry *, long, long, entry *, long);

void set_tuning(const void *);

struct region {
    char *allocated, *start;
    size_t size;
    int64_t is_written;
};

union argument {
    int64_t number;
    double real;
    void *address;
};

static void fail(const char *why) {
    fprintf(stderr, "driver: %s\n", why);
    exit(1);
}

/* The end of input between two requests is the end of the program. */
static void take(void *to, size_t size) {
    if (fread(to, 1, size, stdin) != size) fail("the request ends early");
}

static int64_t take_number(void) {
    int64_t number;
    take(&number, sizeof number);
    return number;
}

static struct region take_region(void) {
    size_t size = (size_t)take_number(), offset = (size_t)take_number();
    int64_t is_written = take_number();
    size_t room = (offset + size + LINE) / LINE * LINE;
    char *allocated = aligned_alloc(LINE, room);
    if (!allocated || offset >= LINE) fail("a region cannot be placed");
    take(allocated + offset, size);
    return (struct region){allocated, allocated + offset, size, is_written};
}

/* A pointer is the number of a region and an offset in it. */
static void *take_pointer(struct region *regions) {
    int64_t region = take_number(), offset = take_number();
    return regions[region].start + offset;
}

static union argument take_argument(struct region *regions) {
    union argument argument = {0};
    switch (take_number()) {
    case 0: argument.number = take_number(); break;
    case 1: take(&argument.real, sizeof argument.real); break;
    case 2: argument.address = take_pointer(regions); break;
    default: fail("an argument of unknown kind");
    }
    return argument;
}

#define P(i) a[i].address
#define N(i) (long)a[i].number
#define F(i) (float)a[i].real

static void call(int64_t function, const union argument *a) {
    switch (function) {
    case 0: rms_norm(P(0), N(1), P(2), N(3), F(4), P(5), N(6), N(7)); break;
    case 1: add_rms_norm(P(0), N(1), P(2), N(3), P(4), N(5), F(6), P(7), P(8), N(9), N(10)); break;
    case 2: apply_rope(P(0), N(1), N(2), P(3), N(4), N(5), P(6), P(7), N(8), N(9)); break;
    case 3: silu_and_mul(P(0), N(1), P(2), N(3), P(4), N(5), N(6)); break;
    case 4: store_kv(P(0), P(1), P(2), P(3), N(4), P(5), N(6), N(7), N(8), N(9)); break;
    case 5: pack(P(0), P(1)); break;
    case 6: linear(P(0), P(1), P(2), N(3), P(4), N(5)); break;
    case 7: attend(P(0), P(1), P(2), N(3), P(4), P(5), P(6), N(7), N(8), N(9), N(10), P(11)); break;
    case 8:
        experts(P(0), P(1), P(2), P(3), P(4), N(5), P(6), P(7), P(8), P(9), P(10), P(11), P(12));
        break;
    case 9: gelu_tanh_and_mul(P(0), N(1), P(2), N(3), P(4), N(5), N(6)); break;
    case 10: softcap(P(0), F(1), P(2), N(3)); break;
    case 11: set_tuning(P(0)); break;
    case 12: pack_quantized(P(0), P(1), P(2), P(3), P(4)); break;
    case 13: verify_chain(P(0), N(1), P(2), N(3), P(4), N(5), N(6)); break;
    case 14:
        lay_out_rows(P(0), N(1), N(2), P(3), P(4), N(5), P(6), P(7), P(8), N(9), N(10), P(11), N(12));
        break;
    case 15:
        append_tokens(P(0), N(1), P(2), P(3), P(4), P(5), P(6), N(7), P(8), N(9), N(10));
        break;
    case 16: map_heads(P(0), N(1), P(2), N(3), N(4), P(5), N(6)); break;
    case 17: gated_delta(P(0), P(1), P(2), N(3), P(4), P(5), P(6)); break;
    case 18: keep_drafted(P(0), P(1), P(2), P(3), N(4), P(5), N(6)); break;
    default: fail("an unknown function");
    }
}

static void serve(int64_t function) {
    union argument arguments[MOST_ARGUMENTS] = {0};
    omp_set_num_threads((int)take_number());
    int64_t count = take_number();
    struct region *regions = calloc((size_t)count + 1, sizeof *regions);
    if (!regions) fail("no memory");
    for (int64_t i = 0; i < count; i++) regions[i] = take_region();
    for (int64_t left = take_number(); left > 0; left--) {
        void **at = take_pointer(regions);
        void *target = take_pointer(regions);
        memcpy(at, &target, sizeof target);
    }
    int64_t given = take_number();
    if (given > MOST_ARGUMENTS) fail("too many arguments");
    for (int64_t i = 0; i < given; i++) arguments[i] = take_argument(regions);
    call(function, arguments);
    for (int64_t i = 0; i < count; i++) {
        if (regions[i].is_written) fwrite(regions[i].start, 1, regions[i].size, stdout);
        free(regions[i].allocated);
    }
    free(regions);
    fflush(stdout);
}

int main(void) {
    int64_t function;
    while (fread(&function, sizeof function, 1, stdin) == 1) serve(function);
    return 0;
}
