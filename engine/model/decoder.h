/*
 * decoder.h - op graph of a decoder: embedding, a range of layers, and their backward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_DECODER_H
#define INVAR_ENGINE_MODEL_DECODER_H

#include "engine/model/blocks.h"
#include "engine/model/model.h"

/* Lists the parameters of a spec in canonical order; counts them only if `out` is NULL. */
invar_status invar_decoder_declare(int64_t *count_out, invar_param *out,
                                   const invar_model_spec *spec,
                                   invar_format format) INVAR_MUST_USE;

/*
 * Clears `graph` and resets the builder for a graph of the model; the builder's lists are reused.
 */
void invar_decoder_begin(invar_builder *b, invar_op_graph *graph, const invar_model *model,
                         int64_t rows);

/*
 * Interface of the graph of some layers. Section 0 runs rows through the layers. With b->train,
 * section 1 runs back from the gradient of the last layer's output. With `recompute` only the
 * inputs of layers are kept, and each layer is computed again in the backward. Layer 0 is preceded
 * by the embedding; other first layers read what the host writes to `first`. If ranks divide the
 * residual stream, T counts this rank's rows.
 */
typedef struct invar_decoder {
    invar_tensor first;    /* (T, hidden) input of the first layer; absent if it is the embedding */
    invar_tensor d_first;  /* gradient of `first`, if there is a backward */
    invar_tensor stream;   /* (T, hidden) output of the last layer */
    invar_tensor d_stream; /* gradient of `stream`, if there is a backward */
    /*
     * Output of the model's last layer with all rows of this context-parallel rank, gathered if
     * tensor-parallel ranks divide them; absent if the graph ends before the last layer.
     */
    invar_tensor all;
} invar_decoder;

invar_decoder invar_decoder_build(invar_builder *b, const invar_model *model,
                                  const invar_index_range *layers, bool recompute);

#endif
