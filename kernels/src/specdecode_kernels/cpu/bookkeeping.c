/* What a step computes of tokens and positions. */
#include <stdint.h>
#include <string.h>

/* Counts how many of each request's drafted tokens precede the first that was not chosen. Choices
[batch, count + 1] and drafted [batch, count] have rows `stride` entries apart. */
void verify_chain(const int64_t *choices, long stride, const int64_t *drafted, long drafted_stride,
                  int64_t *accepted, long batch, long count) {
    for (long request = 0; request < batch; request++, choices += stride, drafted += drafted_stride) {
        long agreed = 0;
        while (agreed < count && drafted[agreed] == choices[agreed]) agreed++;
        accepted[request] = agreed;
    }
}

/* Writes the tokens [batch, count] of each request to its row of `sequences`, at start + offset, and adds
the accepted ones and the bonus token to its length. Rows are `width` and `stride` entries apart. */
void append_tokens(int64_t *sequences, long width, int64_t *lengths, const int64_t *req_indices,
                   const int64_t *starts, const int64_t *offsets, const int64_t *tokens, long stride,
                   const int64_t *accepted, long batch, long count) {
    for (long at = 0; at < batch; at++, tokens += stride) {
        int64_t *row = sequences + req_indices[at] * width + starts[at];
        for (long place = 0; place < count; place++) row[offsets[place]] = tokens[place];
        lengths[req_indices[at]] += accepted[at] + 1;
    }
}

/* Lays out `count` rows of each request at length + start + offset, or at `lowest` of the request where
that is greater; offsets and lowest may be NULL. Rows [4, batch * count] are their requests, positions,
rows of the cache and lengths that they see; the page table [batch, columns] begins as pages do. */
void lay_out_rows(const int64_t *pages, long stride, long page_size, const int64_t *req_indices,
                  const int64_t *lengths, long start, const int64_t *offsets, const int64_t *lowest,
                  int64_t *rows, long batch, long count, int64_t *page_table, long columns) {
    int64_t *positions = rows + batch * count, *slots = positions + batch * count;
    int64_t *kv_lens = slots + batch * count;
    for (long at = 0; at < batch * count; at++) {
        int64_t request = req_indices[at / count];
        int64_t position = lengths[at / count] + start + (offsets ? offsets[at % count] : 0);
        if (lowest && position < lowest[request]) position = lowest[request];
        rows[at] = request;
        positions[at] = position;
        slots[at] = pages[request * stride + position / page_size] * page_size + position % page_size;
        kv_lens[at] = position + 1;
    }
    for (long request = 0; request < batch; request++)
        memcpy(page_table + request * columns, pages + req_indices[request] * stride,
               (size_t)columns * sizeof *pages);
}
