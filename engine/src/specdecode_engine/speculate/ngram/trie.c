/* The paths of the last inserted texts, as in SGLang's NGRAM (cpp_ngram/trie, result).

A text is inserted as the path of up to `depth` tokens from each of its positions. Where nodes run
out, the leaf that was used last the longest ago goes; paths are touched from the leaf up, so that a
parent is always used later than its children. */
#include "forest.h"

#include <stdlib.h>

struct trie {
    struct forest forest;
    uint32_t newest, oldest;
    uint32_t depth, min_match, min_breadth, max_breadth;
    uint32_t *path;
    struct heap heap;
    struct item *queue;
    uint32_t queued;
    int16_t *counts; /* depths and children of a draft */
    uint32_t widest;
};

void trie_free(struct trie *trie) {
    forest_close(&trie->forest);
    free(trie->path);
    free(trie->heap.items);
    free(trie->queue);
    free(trie->counts);
    free(trie);
}

/* NULL without memory. by_count: drafts take children by their counts instead of their last use;
   widest: most tokens of a draft. */
struct trie *trie_new(long depth, long capacity, long min_match, long min_breadth, long max_breadth,
                      long by_count, long widest) {
    struct trie *trie = calloc(1, sizeof *trie);
    if (!trie) return NULL;
    uint32_t paths = (uint32_t)(depth < capacity ? depth : capacity);
    trie->depth = paths, trie->min_match = (uint32_t)min_match, trie->widest = (uint32_t)widest;
    trie->min_breadth = (uint32_t)min_breadth, trie->max_breadth = (uint32_t)max_breadth;
    trie->path = malloc((paths + 1) * sizeof *trie->path);
    trie->queue = malloc((size_t)(widest + 2) * sizeof *trie->queue);
    trie->counts = malloc((size_t)(widest + 1) * 2 * sizeof *trie->counts);
    uint32_t ranked = by_count ? (uint32_t)max_breadth : 0;
    bool is_open = forest_open(&trie->forest, (uint32_t)capacity, ranked);
    if (is_open && trie->path && trie->queue && trie->counts) return trie;
    trie_free(trie);
    return NULL;
}

long trie_bytes(const struct trie *trie) { return (long)forest_bytes(&trie->forest); }
long trie_nodes(const struct trie *trie) { return trie->forest.used; }

static void unlink_use(struct trie *trie, uint32_t node) {
    struct node *nodes = trie->forest.nodes, *one = &nodes[node];
    if (one->newer) nodes[one->newer].older = one->older;
    else trie->newest = one->older;
    if (one->older) nodes[one->older].newer = one->newer;
    else trie->oldest = one->newer;
}

static void link_newest(struct trie *trie, uint32_t node) {
    struct node *nodes = trie->forest.nodes;
    nodes[node].newer = NONE, nodes[node].older = trie->newest;
    if (trie->newest) nodes[trie->newest].newer = node;
    else trie->oldest = node;
    trie->newest = node;
}

static void make_room(struct trie *trie, uint32_t count) {
    while (trie->forest.capacity - trie->forest.used < count) {
        uint32_t last = trie->oldest; /* a leaf */
        unlink_use(trie, last);
        forest_remove(&trie->forest, last);
    }
}

static void insert_path(struct trie *trie, const int32_t *tokens, uint32_t length) {
    make_room(trie, length);
    uint32_t at = ROOT, count = 0;
    for (; count < length; count++) {
        uint32_t child = forest_find(&trie->forest, at, tokens[count]);
        if (child) {
            forest_count(&trie->forest, child);
        } else {
            child = forest_add(&trie->forest, at, tokens[count]);
            if (!child) break; /* no memory: the path stays shorter */
            link_newest(trie, child);
        }
        trie->path[count] = at = child;
    }
    while (count--) {
        unlink_use(trie, trie->path[count]);
        link_newest(trie, trie->path[count]);
    }
}

void trie_insert(struct trie *trie, const int32_t *tokens, long length) {
    for (long start = 0; start < length; start++) {
        long left = length - start;
        insert_path(trie, tokens + start, (uint32_t)(left < trie->depth ? left : trie->depth));
    }
}

static uint32_t match(const struct trie *trie, const int32_t *tokens, long length) {
    uint32_t at = ROOT;
    for (long place = 0; place < length; place++)
        if (!(at = forest_find(&trie->forest, at, tokens[place]))) return NONE;
    return at;
}

/* Breadth first: a node takes its most recent children, fewer at each level. */
static void draft_by_use(struct trie *trie, uint32_t anchor, long matched, struct draft *draft) {
    const struct node *nodes = trie->forest.nodes;
    double steps = trie->depth > 1 ? trie->depth - 1.0 : 1.0;
    double fall = (trie->max_breadth - (double)trie->min_breadth) / steps;
    double widest = trie->min_breadth + (trie->depth - 1.0 - matched) * fall;
    trie->queue[0] = (struct item){.value = widest, .node = anchor, .at = 0};
    trie->queued = 1;
    for (uint32_t next = 0; next < trie->queued; next++) {
        struct item item = trie->queue[next];
        long breadth = item.value < 1.0 ? 1 : (long)item.value;
        for (uint32_t child = nodes[item.node].child; child && breadth; breadth--) {
            if (draft->count == draft->max_tokens) return;
            long at = draft_child(draft, item.at, nodes[child].token);
            if (at > 0)
                trie->queue[trie->queued++] =
                    (struct item){.value = item.value - fall, .node = child, .at = at};
            child = nodes[child].next;
        }
    }
}

static bool push_children(struct trie *trie, uint32_t node, long at, double value) {
    const struct node *nodes = trie->forest.nodes;
    uint32_t place = 0;
    double sum = 0.0;
    for (uint32_t child = nodes[node].child; child && place < trie->max_breadth; place++)
        sum += nodes[child].count, child = nodes[child].next;
    place = 0;
    for (uint32_t child = nodes[node].child; child && place < trie->max_breadth; place++) {
        struct item item = {.value = nodes[child].count / sum * value, .node = child, .parent = at};
        if (!heap_push(&trie->heap, item)) return false;
        child = nodes[child].next;
    }
    return true;
}

/* The greatest shares of the counts first. */
static void draft_by_count(struct trie *trie, uint32_t anchor, struct draft *draft) {
    trie->heap.count = trie->heap.pushed = 0;
    bool has_memory = push_children(trie, anchor, 0, 1.0);
    while (has_memory && trie->heap.count && draft->count < draft->max_tokens) {
        struct item item = heap_pop(&trie->heap);
        long at = draft_child(draft, item.parent, trie->forest.nodes[item.node].token);
        if (at > 0) has_memory = push_children(trie, item.node, at, item.value);
    }
}

/* Draft after the context: the longest match first; shorter ones fill what it left free.
   Returns the number of tokens. */
long trie_draft(struct trie *trie, const int32_t *context, long length, long max_tokens,
                long max_depth, long max_children, int32_t *tokens, int32_t *parents) {
    if (max_tokens > trie->widest) max_tokens = trie->widest;
    struct draft draft = {tokens, parents, trie->counts, trie->counts + trie->widest + 1,
                          0, max_tokens, max_depth, max_children};
    draft.depths[0] = draft.children[0] = 0;
    long longest = length < trie->depth ? length : trie->depth;
    for (long matched = longest; matched >= trie->min_match; matched--) {
        if (draft.count >= max_tokens) break;
        uint32_t anchor = match(trie, context + length - matched, matched);
        if (!anchor || !trie->forest.nodes[anchor].child) continue;
        if (trie->forest.ranked) draft_by_count(trie, anchor, &draft);
        else draft_by_use(trie, anchor, matched, &draft);
    }
    return draft.count;
}
