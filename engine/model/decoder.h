/*
 * decoder.h - a whole model as a program: embedding, layers, head, and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_DECODER_H
#define INVAR_ENGINE_MODEL_DECODER_H

#include "engine/model/blocks.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The parameters of a spec in canonical order; out NULL: only their number. */
invar_status invar_decoder_declare(int64_t *count_out, invar_param *out,
                                   const invar_model_spec *spec,
                                   invar_format format) INVAR_MUST_USE;

/* Begins a program of the model; lists of the builder are used again. */
void invar_decoder_begin(invar_builder *b, invar_op_graph *program, const invar_model *model,
                         int64_t rows);

/*
 * Segment 0: the rows through some layers. With b->train segment 1: back, from the gradient at the
 * last of these layers' output. With `recompute` a layer's input is kept and the layer computed
 * once more. Before layer 0 comes the embedding; others begin with what the host writes to `first`.
 * Where ranks divide the stream, T are this rank's rows.
 */
typedef struct invar_decoder {
    invar_tensor first;    /* (T, hidden) the first layer's input; absent: the embedding's */
    invar_tensor d_first;  /* its gradient, where there is a backward */
    invar_tensor stream;   /* (T, hidden) the last layer's output */
    invar_tensor d_stream; /* its gradient, where there is a backward */
    invar_tensor all;      /* of the model's last layer: all rows, also where ranks divide these */
} invar_decoder;

invar_decoder invar_decoder_build(invar_builder *b, const invar_model *model,
                                  const invar_index_range *layers, bool recompute);

#ifdef __cplusplus
}
#endif
#endif
