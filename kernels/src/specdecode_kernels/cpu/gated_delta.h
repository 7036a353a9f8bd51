/* What the gated delta rule reads and keeps; see gated_delta.c. Of all layers, contiguous. */
#pragma once
#include "vectors.h"

/* `RecurrentRule` of recurrent.py. */
enum { GATED_DELTA, CONVOLUTION };

/* `_DeltaParams` of gated_delta.py. */
struct delta_params {
    int64_t k_heads, v_heads, k_dim, v_dim, conv_width, rule, layers;
    const float *conv;             /* [layers, conv_width, channels] */
    const float *decay, *dt_bias;  /* [layers, v_heads] */
    const float *conv_bias;        /* [layers, channels], or NULL */
};

/* `_DeltaState`. */
struct delta_state {
    int64_t slots, drafted_slots, nodes; /* nodes: those whose inputs are stored, without the root */
    entry *inputs;                       /* [layers, slots, conv_width - 1, channels] */
    float *matrices;                     /* [layers, slots, v_heads, k_dim, v_dim] */
    entry *drafted;                      /* [layers, drafted_slots, nodes, channels] */
    entry *gates;                        /* [layers, drafted_slots, nodes, gates] */
};

/* `_DeltaRows`: the same for every layer of a forward. */
struct delta_rows {
    int64_t batch, chunks, batch_stride, node_stride; /* strides of the ancestry */
    const int64_t *slots;                             /* [rows] */
    const int64_t *starts;                            /* [batch + 1] */
    const uint8_t *ancestry;                          /* [batch, nodes, nodes], or NULL */
};

/* `_DeltaInputs`: rows of one layer, `stride` entries apart. */
struct delta_inputs {
    const entry *u, *gates;  /* [rows, channels] and [rows, gates] */
    int64_t stride, gates_stride;
};
