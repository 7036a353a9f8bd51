/* What a step computes of tokens and positions. */
#include <stdint.h>

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
