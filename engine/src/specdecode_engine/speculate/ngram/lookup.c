/* Prompt lookup: what followed the last tokens where they occurred before in the same text
(Saxena, "Prompt Lookup Decoding", 2023; the rules of vLLM's ngram proposer). */
#include <stdbool.h>
#include <stdint.h>

#define BLOCK 32

/* The first place from `at` on that has the token; `end` where there is none. */
static long find(const int32_t *text, long at, long end, int32_t token) {
    for (; at + BLOCK <= end; at += BLOCK) {
        int32_t found = 0;
        for (long place = 0; place < BLOCK; place++) found |= text[at + place] == token;
        if (found) break;
    }
    while (at < end && text[at] != token) at++;
    return at;
}

/* Draft what follows the earliest occurrence of the longest match of min_match to max_match tokens.
   Returns the number of tokens; they are in the text from *first on. */
long lookup_draft(const int32_t *text, long length, long min_match, long max_match, long max_tokens,
                  long *first) {
    long longest = 0, last = length - 1;
    for (long end = 0; longest < max_match; end++) {
        if ((end = find(text, end, last, text[last])) >= last) break;
        long matched = 1;
        while (matched < max_match && matched <= end && text[end - matched] == text[last - matched])
            matched++;
        if (matched > longest) longest = matched, *first = end + 1;
    }
    if (longest < min_match || !longest) return 0;
    return length - *first < max_tokens ? length - *first : max_tokens;
}

/* Mark the tokens from `first` on; returns whether the last one was marked before. Tokens share a
   mark where they differ by a multiple of the number of marks, a power of two. */
long mark_tokens(const int32_t *text, long length, long first, uint8_t *marks, long num_marks) {
    uint8_t was_marked = 0;
    for (long place = first; place < length; place++) {
        uint8_t *mark = &marks[text[place] & (num_marks - 1)];
        was_marked = *mark, *mark = 1;
    }
    return was_marked;
}
