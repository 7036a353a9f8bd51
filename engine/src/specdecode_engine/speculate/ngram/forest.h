/* Nodes with counted children, found by (parent, token): what trie.c and suffix.c are made of. */
#ifndef FOREST_H
#define FOREST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NONE 0u /* node 0 is the root, which is nobody's child */
#define ROOT 0u

struct node {
    int32_t token; /* the first one of its edge */
    uint32_t parent, count;
    uint32_t child, next, prev; /* the first child; siblings */
    union {
        struct {
            uint32_t newer, older; /* trie.c: in the order of last use */
        };
        struct {
            uint32_t start, length; /* suffix.c: the tokens of its edge, in the text */
        };
    };
};

/* Children are ordered by last use, or the first `ranked` of them by count, then by token. */
struct forest {
    struct node *nodes;
    uint64_t *keys; /* of children by (parent, token): open addressing, 0 where free */
    uint32_t *values;
    uint32_t capacity; /* most nodes, the root not counted */
    uint32_t used, allocated, free; /* free: list of nodes that were given back, by `next` */
    uint32_t slots;                 /* of keys, a power of two */
    uint32_t ranked;                /* 0 orders by last use */
};

bool forest_open(struct forest *forest, uint32_t capacity, uint32_t ranked);
void forest_close(struct forest *forest);
size_t forest_bytes(const struct forest *forest);
size_t forest_most_bytes(uint32_t capacity);

uint32_t forest_find(const struct forest *forest, uint32_t parent, int32_t token);
/* Add a child with count 1; NONE without memory. */
uint32_t forest_add(struct forest *forest, uint32_t parent, int32_t token);
/* Count one more use of a node, and move it to its place among its siblings. */
void forest_count(struct forest *forest, uint32_t node);
/* Remove a node without children. */
void forest_remove(struct forest *forest, uint32_t node);
/* Put `other`, whose count is at least as large, into the place of a node, which is detached. */
void forest_replace(struct forest *forest, uint32_t node, uint32_t other);
/* Attach a detached node as the only child of `parent`. */
void forest_attach(struct forest *forest, uint32_t parent, uint32_t node, int32_t token);
/* Take a node from its parent, which has no other child. */
void forest_detach(struct forest *forest, uint32_t node);
void forest_give_back(struct forest *forest, uint32_t node);
uint32_t forest_take(struct forest *forest);

/* A draft: node j + 1 has tokens[j] and parents[j]; node 0 is the last token of the context. */
struct draft {
    int32_t *tokens, *parents;
    int16_t *depths, *children; /* of nodes 0 ... max_tokens */
    long count;
    long max_tokens, max_depth, max_children;
};

/* Find or add a child of a node of the draft; -1 where the limits do not allow it. */
long draft_child(struct draft *draft, long parent, int32_t token);
/* The same without a search: there may be several children with one token. */
long draft_add(struct draft *draft, long parent, int32_t token);

/* A heap: the greatest value first, of equal ones the one that was pushed first. */
struct item {
    double value;
    uint32_t order, node;
    long at, parent;
};

struct heap {
    struct item *items;
    uint32_t count, allocated, pushed;
};

bool heap_push(struct heap *heap, struct item item);
struct item heap_pop(struct heap *heap);

#endif
