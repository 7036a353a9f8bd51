/* A suffix tree with counts, of bounded depth, as in suffix decoding (ArcticInference; Oliaro et
al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024).

A node stands for the tokens on its path; its count is how often they occur in the texts. Nodes with
one child and the same count are one edge. `active` are the last tokens of the present text, the
longest first: each ends at the end of an edge, so that the next token can follow there. */
#include "forest.h"

#include <stdlib.h>
#include <string.h>

#define RANKED 32u /* children by count: as many as a draft may have after one node */

struct suffix {
    struct forest forest;
    int32_t *text;
    uint32_t length, allocated;
    uint32_t depth, min_match;
    uint32_t *active, actives;
    double factor, least; /* draft tokens per matched token; least product of shares */
    struct heap heap;
    int32_t *tokens, *parents; /* of the draft of one match */
    int16_t *counts;
    uint32_t widest;
};

void suffix_free(struct suffix *suffix) {
    forest_close(&suffix->forest);
    free(suffix->text);
    free(suffix->active);
    free(suffix->heap.items);
    free(suffix->tokens);
    free(suffix->counts);
    free(suffix);
}

/* NULL without memory. capacity: most nodes, and most tokens of text; widest: most of a draft. */
struct suffix *suffix_new(long depth, long capacity, long min_match, double factor, double least,
                          long widest) {
    struct suffix *suffix = calloc(1, sizeof *suffix);
    if (!suffix) return NULL;
    long paths = depth < capacity - 1 ? depth : capacity - 1;
    suffix->depth = (uint32_t)(paths < 0 ? 0 : paths), suffix->min_match = (uint32_t)min_match;
    suffix->factor = factor, suffix->least = least, suffix->widest = (uint32_t)widest;
    suffix->active = malloc((suffix->depth + 1) * sizeof *suffix->active);
    suffix->tokens = malloc((size_t)(widest + 1) * 2 * sizeof *suffix->tokens);
    suffix->parents = suffix->tokens ? suffix->tokens + widest + 1 : NULL;
    suffix->counts = malloc((size_t)(widest + 1) * 2 * sizeof *suffix->counts);
    bool is_open = forest_open(&suffix->forest, (uint32_t)capacity, RANKED);
    if (is_open && suffix->active && suffix->tokens && suffix->counts) return suffix;
    suffix_free(suffix);
    return NULL;
}

long suffix_bytes(const struct suffix *suffix) {
    return (long)(forest_bytes(&suffix->forest) + suffix->allocated * sizeof(int32_t));
}
long suffix_nodes(const struct suffix *suffix) { return suffix->forest.used; }

/* Let a suffix that ends at `node` continue with the text's token `at`; returns where it ends. */
static uint32_t advance(struct suffix *suffix, uint32_t node, uint32_t at) {
    struct forest *forest = &suffix->forest;
    int32_t token = suffix->text[at];
    uint32_t child = forest_find(forest, node, token);
    struct node *nodes = forest->nodes;
    if (!child) {
        if (node != ROOT && !nodes[node].child && nodes[node].count == 1) {
            nodes[node].length++; /* no other suffix ends here: the edge grows with the text */
            return node;
        }
        if (!(child = forest_add(forest, node, token))) return NONE;
        forest->nodes[child].start = at, forest->nodes[child].length = 1;
        return child;
    }
    bool is_only = nodes[node].child == child && !nodes[child].next;
    if (node != ROOT && is_only && nodes[node].count == nodes[child].count + 1) {
        forest_detach(forest, child); /* all that comes here goes on to the child: move the border */
        if (nodes[child].length > 1) {
            nodes[node].length++, nodes[child].start++, nodes[child].length--;
            forest_attach(forest, node, child, suffix->text[nodes[child].start]);
            return node;
        }
        nodes[child].start -= nodes[node].length, nodes[child].length += nodes[node].length;
        nodes[child].count++;
        forest_replace(forest, node, child);
        forest_give_back(forest, node);
        return child;
    }
    if (nodes[child].length == 1) {
        forest_count(forest, child);
        return child;
    }
    uint32_t upper = forest_take(forest);
    if (!upper) return NONE;
    nodes = forest->nodes;
    nodes[upper] = (struct node){.count = nodes[child].count + 1};
    nodes[upper].start = nodes[child].start, nodes[upper].length = 1;
    forest_replace(forest, child, upper);
    nodes[child].start++, nodes[child].length--;
    forest_attach(forest, upper, child, suffix->text[nodes[child].start]);
    return upper;
}

static void append_one(struct suffix *suffix, uint32_t at) {
    uint32_t kept = 0;
    suffix->active[suffix->actives++] = ROOT;
    for (uint32_t place = 0; place < suffix->actives; place++) {
        uint32_t node = advance(suffix, suffix->active[place], at);
        /* The longest suffix has reached the full depth; without memory a suffix just ends. */
        bool is_whole = place == 0 && suffix->actives == suffix->depth;
        if (node && !is_whole) suffix->active[kept++] = node;
    }
    suffix->actives = kept;
}

static void clear(struct suffix *suffix) {
    uint32_t slots = suffix->forest.slots;
    memset(suffix->forest.keys, 0, slots * sizeof(uint64_t));
    memset(suffix->forest.nodes, 0, sizeof(struct node));
    suffix->forest.used = suffix->forest.free = 0;
    suffix->length = suffix->actives = 0;
}

static bool has_text_room(struct suffix *suffix) {
    if (suffix->length < suffix->allocated) return true;
    uint64_t wanted = suffix->allocated ? 2ull * suffix->allocated : 256;
    uint32_t most = suffix->forest.capacity;
    uint32_t allocated = (uint32_t)(wanted < most ? wanted : most);
    if (allocated == suffix->allocated) return false;
    int32_t *text = realloc(suffix->text, allocated * sizeof *text);
    if (!text) return false;
    suffix->text = text, suffix->allocated = allocated;
    return true;
}

static bool is_full(const struct suffix *suffix) {
    /* Each of the active suffixes may take a node. */
    return suffix->length == suffix->forest.capacity ||
           suffix->forest.capacity - suffix->forest.used < suffix->depth + 1;
}

/* Start over with the newer half of the text. The ends of texts within it are forgotten. */
static void forget(struct suffix *suffix) {
    uint32_t kept = suffix->length, appended;
    do {
        uint32_t first = kept - kept / 2;
        kept /= 2;
        clear(suffix);
        memmove(suffix->text, suffix->text + first, kept * sizeof *suffix->text);
        for (appended = 0; appended < kept && !is_full(suffix); appended++) {
            suffix->length = appended + 1;
            append_one(suffix, appended);
        }
    } while (appended < kept);
}

/* Append tokens to the present text. */
void suffix_append(struct suffix *suffix, const int32_t *tokens, long count) {
    if (!suffix->depth) return;
    for (long place = 0; place < count; place++) {
        while (suffix->length && is_full(suffix)) forget(suffix);
        if (!has_text_room(suffix)) return;
        suffix->text[suffix->length++] = tokens[place];
        append_one(suffix, suffix->length - 1);
    }
}

/* End the present text; the next token begins another. */
void suffix_end(struct suffix *suffix) { suffix->actives = 0; }

/* Follow tokens from the root; returns the node, and how much of its edge was followed. */
static uint32_t follow(const struct suffix *suffix, const int32_t *tokens, long count,
                       uint32_t *within) {
    const struct node *nodes = suffix->forest.nodes;
    uint32_t node = ROOT, length = 0, used = 0;
    for (long place = 0; place < count; place++) {
        if (used == length) {
            if (!(node = forest_find(&suffix->forest, node, tokens[place]))) return NONE;
            length = nodes[node].length, used = 1;
        } else if (suffix->text[nodes[node].start + used++] != tokens[place]) {
            return NONE;
        }
    }
    *within = used;
    return node;
}

static double share(const struct node *nodes, uint32_t child) {
    return nodes[child].count / (double)nodes[nodes[child].parent].count;
}

/* The most frequent token after each; returns the sum of the probabilities. */
static double draft_path(struct suffix *suffix, uint32_t node, uint32_t used, struct draft *draft) {
    const struct node *nodes = suffix->forest.nodes;
    double score = 0.0, probability = 1.0;
    while (probability >= suffix->least) {
        if (used < nodes[node].length) {
            int32_t token = suffix->text[nodes[node].start + used++];
            if (draft_add(draft, draft->count, token) < 0) break;
            score += probability;
        } else {
            uint32_t child = nodes[node].child;
            if (!child) break;
            probability *= share(nodes, child);
            node = child, used = 0;
        }
    }
    return score;
}

/* The most probable tokens first, each with its ancestors. */
static double draft_tree(struct suffix *suffix, uint32_t node, uint32_t used, struct draft *draft) {
    const struct node *nodes = suffix->forest.nodes;
    struct heap *heap = &suffix->heap;
    double score = 0.0;
    heap->count = heap->pushed = 0;
    bool has_memory = heap_push(heap, (struct item){.value = 1.0, .node = node, .at = used});
    while (has_memory && heap->count && draft->count < draft->max_tokens) {
        struct item item = heap_pop(heap);
        const struct node *one = &nodes[item.node];
        if (item.at < one->length) {
            int32_t token = suffix->text[one->start + item.at++];
            if ((item.parent = draft_add(draft, item.parent, token)) < 0) continue;
            score += item.value;
            has_memory = heap_push(heap, item);
            continue;
        }
        uint32_t place = 0;
        for (uint32_t child = one->child; child && place < RANKED; child = nodes[child].next) {
            double value = item.value * share(nodes, child);
            if (value < suffix->least) break;
            struct item pushed = {.value = value, .node = child, .parent = item.parent};
            if (!(has_memory = heap_push(heap, pushed))) break;
            place++;
        }
    }
    return score;
}

/* What was drafted: the length of the match, and the sum of the probabilities. */
struct result {
    double score;
    long count, matched;
};

/* Draft after the context, from the match whose draft has the greatest score, the longest of equal
   ones. A match is shorter than the context. */
void suffix_draft(struct suffix *suffix, const int32_t *context, long length, long max_tokens,
                  long max_depth, long max_children, int32_t *tokens, int32_t *parents,
                  struct result *best) {
    *best = (struct result){0};
    if (max_tokens > suffix->widest) max_tokens = suffix->widest;
    for (long matched = suffix->min_match; matched < length; matched++) {
        uint32_t used, node = follow(suffix, context + length - matched, matched, &used);
        /* Where nothing follows a match, nothing follows a longer one: it ends in the same places. */
        if (!node || (used == suffix->forest.nodes[node].length && !suffix->forest.nodes[node].child))
            break;
        double wanted = matched * suffix->factor + 1e-6;
        long most = wanted < max_tokens ? (long)wanted : max_tokens;
        if (most < best->score) continue; /* no probability is above 1 */
        int16_t *counts = suffix->counts;
        struct draft draft = {suffix->tokens, suffix->parents, counts, counts + suffix->widest + 1,
                              0, most, max_depth, max_children};
        draft.depths[0] = draft.children[0] = 0;
        double score = max_children > 1 ? draft_tree(suffix, node, used, &draft)
                                        : draft_path(suffix, node, used, &draft);
        if (score < best->score || !draft.count) continue;
        *best = (struct result){score, draft.count, matched};
        memcpy(tokens, draft.tokens, draft.count * sizeof *tokens);
        memcpy(parents, draft.parents, draft.count * sizeof *parents);
    }
}
