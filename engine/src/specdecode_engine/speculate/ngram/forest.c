#include "forest.h"

#include <stdlib.h>
#include <string.h>

#define FEWEST_NODES 64u

static uint64_t key_of(uint32_t parent, int32_t token) {
    return ((uint64_t)parent << 32 | (uint32_t)token) + 1; /* never 0 */
}

static uint32_t slot_of(uint64_t key, uint32_t slots) {
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(key >> 32) & (slots - 1);
}

static uint32_t slots_for(uint64_t nodes) {
    uint64_t slots = 2 * FEWEST_NODES;
    while (slots < 2 * nodes) slots *= 2;
    return (uint32_t)slots;
}

size_t forest_most_bytes(uint32_t capacity) {
    size_t slots = slots_for(capacity), entry = sizeof(uint64_t) + sizeof(uint32_t);
    /* While keys move to a table of twice the size, there are both. */
    return ((size_t)capacity + 1) * sizeof(struct node) + slots * entry * 3 / 2;
}

size_t forest_bytes(const struct forest *forest) {
    size_t entry = sizeof(uint64_t) + sizeof(uint32_t);
    return (size_t)forest->allocated * sizeof(struct node) + forest->slots * entry;
}

bool forest_open(struct forest *forest, uint32_t capacity, uint32_t ranked) {
    memset(forest, 0, sizeof *forest);
    forest->capacity = capacity, forest->ranked = ranked;
    forest->slots = slots_for(0);
    forest->allocated = 1 + (capacity < FEWEST_NODES ? capacity : FEWEST_NODES);
    forest->nodes = malloc(forest->allocated * sizeof(struct node));
    forest->keys = calloc(forest->slots, sizeof(uint64_t));
    forest->values = malloc(forest->slots * sizeof(uint32_t));
    if (!forest->nodes || !forest->keys || !forest->values) {
        forest_close(forest);
        return false;
    }
    memset(forest->nodes, 0, sizeof(struct node));
    return true;
}

void forest_close(struct forest *forest) {
    free(forest->nodes);
    free(forest->keys);
    free(forest->values);
    forest->nodes = NULL, forest->keys = NULL, forest->values = NULL;
}

static uint32_t find_slot(const struct forest *forest, uint64_t key) {
    uint32_t slot = slot_of(key, forest->slots);
    while (forest->keys[slot] && forest->keys[slot] != key) slot = (slot + 1) & (forest->slots - 1);
    return slot;
}

uint32_t forest_find(const struct forest *forest, uint32_t parent, int32_t token) {
    uint32_t first = forest->nodes[parent].child; /* mostly the only one */
    if (!first || forest->nodes[first].token == token) return first;
    uint64_t key = key_of(parent, token);
    uint32_t slot = find_slot(forest, key);
    return forest->keys[slot] == key ? forest->values[slot] : NONE;
}

static void put(struct forest *forest, uint32_t parent, int32_t token, uint32_t node) {
    uint64_t key = key_of(parent, token);
    uint32_t slot = find_slot(forest, key);
    forest->keys[slot] = key, forest->values[slot] = node;
}

static void erase(struct forest *forest, uint32_t parent, int32_t token) {
    uint32_t last = forest->slots - 1, hole = find_slot(forest, key_of(parent, token));
    for (uint32_t slot = (hole + 1) & last; forest->keys[slot]; slot = (slot + 1) & last) {
        uint32_t home = slot_of(forest->keys[slot], forest->slots);
        if (((slot - home) & last) >= ((slot - hole) & last)) {
            forest->keys[hole] = forest->keys[slot], forest->values[hole] = forest->values[slot];
            hole = slot;
        }
    }
    forest->keys[hole] = 0;
}

static bool grow_keys(struct forest *forest) {
    uint32_t slots = forest->slots * 2;
    uint64_t *keys = calloc(slots, sizeof(uint64_t)), *old_keys = forest->keys;
    uint32_t *values = malloc(slots * sizeof(uint32_t)), *old_values = forest->values;
    if (!keys || !values) {
        free(keys);
        free(values);
        return false;
    }
    forest->keys = keys, forest->values = values, forest->slots = slots;
    for (uint32_t slot = 0; slot < slots / 2; slot++)
        if (old_keys[slot]) {
            uint32_t to = find_slot(forest, old_keys[slot]);
            keys[to] = old_keys[slot], values[to] = old_values[slot];
        }
    free(old_keys);
    free(old_values);
    return true;
}

uint32_t forest_take(struct forest *forest) {
    if (forest->used == forest->capacity) return NONE;
    if (forest->free) {
        uint32_t node = forest->free;
        forest->free = forest->nodes[node].next;
        forest->used++;
        return node;
    }
    if (forest->used + 1 == forest->allocated) {
        uint64_t wanted = 2ull * forest->allocated, most = 1ull + forest->capacity;
        uint32_t allocated = (uint32_t)(wanted < most ? wanted : most);
        struct node *nodes = realloc(forest->nodes, allocated * sizeof(struct node));
        if (!nodes) return NONE;
        forest->nodes = nodes, forest->allocated = allocated;
    }
    if (2ull * (forest->used + 1) > forest->slots && !grow_keys(forest)) return NONE;
    return ++forest->used;
}

void forest_give_back(struct forest *forest, uint32_t node) {
    forest->nodes[node].next = forest->free;
    forest->free = node;
    forest->used--;
}

static void unlink_sibling(struct forest *forest, uint32_t node) {
    struct node *nodes = forest->nodes, *one = &nodes[node];
    if (one->prev) nodes[one->prev].next = one->next;
    else nodes[one->parent].child = one->next;
    if (one->next) nodes[one->next].prev = one->prev;
}

/* Insert after `prev`, or first where that is NONE. */
static void link_sibling(struct forest *forest, uint32_t node, uint32_t prev) {
    struct node *nodes = forest->nodes, *one = &nodes[node];
    uint32_t next = prev ? nodes[prev].next : nodes[one->parent].child;
    one->prev = prev, one->next = next;
    if (prev) nodes[prev].next = node;
    else nodes[one->parent].child = node;
    if (next) nodes[next].prev = node;
}

static bool is_better(const struct node *one, const struct node *other) {
    return one->count != other->count ? one->count > other->count : one->token < other->token;
}

/* Link a node at its place: the ranked ones stand first, the order of the others is free. */
static void rank(struct forest *forest, uint32_t node) {
    struct node *nodes = forest->nodes;
    uint32_t prev = NONE, at = nodes[nodes[node].parent].child, place = 0;
    while (at && place < forest->ranked && is_better(&nodes[at], &nodes[node]))
        prev = at, at = nodes[at].next, place++;
    link_sibling(forest, node, prev);
}

static void place(struct forest *forest, uint32_t node) {
    if (forest->ranked) rank(forest, node);
    else link_sibling(forest, node, NONE);
}

uint32_t forest_add(struct forest *forest, uint32_t parent, int32_t token) {
    uint32_t node = forest_take(forest);
    if (node == NONE) return NONE;
    forest->nodes[node] = (struct node){.token = token, .parent = parent, .count = 1};
    put(forest, parent, token, node);
    place(forest, node);
    return node;
}

void forest_count(struct forest *forest, uint32_t node) {
    struct node *nodes = forest->nodes, *one = &nodes[node];
    one->count++;
    uint32_t prev = one->prev;
    bool is_in_place = forest->ranked ? !prev || is_better(&nodes[prev], one) : !prev;
    if (is_in_place) return;
    unlink_sibling(forest, node);
    place(forest, node);
}

/* The best of the unranked children moves up where one of the ranked ones went. */
static void fill_ranks(struct forest *forest, uint32_t parent) {
    struct node *nodes = forest->nodes;
    uint32_t at = nodes[parent].child, prev = NONE;
    for (uint32_t place = 0; at && place + 1 < forest->ranked; place++)
        prev = at, at = nodes[at].next;
    uint32_t best = at;
    for (; at; at = nodes[at].next)
        if (is_better(&nodes[at], &nodes[best])) best = at;
    if (!best || nodes[best].prev == prev) return;
    unlink_sibling(forest, best);
    link_sibling(forest, best, prev);
}

static bool is_ranked(const struct forest *forest, uint32_t node) {
    uint32_t at = forest->nodes[forest->nodes[node].parent].child;
    for (uint32_t place = 0; at && place < forest->ranked; place++) {
        if (at == node) return true;
        at = forest->nodes[at].next;
    }
    return false;
}

void forest_remove(struct forest *forest, uint32_t node) {
    struct node one = forest->nodes[node];
    bool leaves_a_rank = is_ranked(forest, node);
    erase(forest, one.parent, one.token);
    unlink_sibling(forest, node);
    if (leaves_a_rank) fill_ranks(forest, one.parent);
    forest_give_back(forest, node);
}

void forest_replace(struct forest *forest, uint32_t node, uint32_t other) {
    struct node *nodes = forest->nodes, *one = &nodes[node], *two = &nodes[other];
    two->parent = one->parent, two->token = one->token;
    put(forest, one->parent, one->token, other);
    unlink_sibling(forest, node);
    rank(forest, other);
}

void forest_attach(struct forest *forest, uint32_t parent, uint32_t node, int32_t token) {
    struct node *nodes = forest->nodes, *one = &nodes[node];
    one->parent = parent, one->token = token, one->next = one->prev = NONE;
    nodes[parent].child = node;
    put(forest, parent, token, node);
}

void forest_detach(struct forest *forest, uint32_t node) {
    struct node *one = &forest->nodes[node];
    erase(forest, one->parent, one->token);
    forest->nodes[one->parent].child = NONE;
}

long draft_add(struct draft *draft, long parent, int32_t token) {
    bool is_full = draft->count >= draft->max_tokens;
    bool is_deep = draft->depths[parent] >= draft->max_depth;
    if (is_full || is_deep || draft->children[parent] >= draft->max_children) return -1;
    draft->tokens[draft->count] = token;
    draft->parents[draft->count] = (int32_t)parent;
    long node = ++draft->count;
    draft->depths[node] = draft->depths[parent] + 1;
    draft->children[node] = 0;
    draft->children[parent]++;
    return node;
}

long draft_child(struct draft *draft, long parent, int32_t token) {
    if (draft->children[parent])
        for (long node = parent + 1; node <= draft->count; node++)
            if (draft->parents[node - 1] == parent && draft->tokens[node - 1] == token) return node;
    return draft_add(draft, parent, token);
}

static bool is_before(const struct item *one, const struct item *other) {
    return one->value != other->value ? one->value > other->value : one->order < other->order;
}

bool heap_push(struct heap *heap, struct item item) {
    if (heap->count == heap->allocated) {
        uint32_t allocated = heap->allocated ? 2 * heap->allocated : 64;
        struct item *items = realloc(heap->items, allocated * sizeof(struct item));
        if (!items) return false;
        heap->items = items, heap->allocated = allocated;
    }
    item.order = heap->pushed++;
    uint32_t at = heap->count++;
    for (; at && is_before(&item, &heap->items[(at - 1) / 2]); at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
    return true;
}

struct item heap_pop(struct heap *heap) {
    struct item first = heap->items[0], last = heap->items[--heap->count];
    uint32_t at = 0;
    for (uint32_t child = 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && is_before(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!is_before(&heap->items[child], &last)) break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return first;
}
