/*
 * tp_reduce.h - sums of products that tensor-parallel ranks have parts of, within verbs.
 *
 * Parts of a product's sum are each as large as all rows of the result. Either every rank gets all
 * of them and adds them, or each adds its own, and of a share of the rows those of all ranks; then
 * the sums are gathered: fewer bytes, but two moves. Of the residual stream, where ranks divide it,
 * they are not: a share is what a rank has of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_TP_REDUCE_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_TP_REDUCE_H

#include "engine/model/graph/builder.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_tp_reduce {
    invar_tensor sums; /* f32: of this rank, or room for those of all */
    int64_t rows;      /* of one */
    int32_t parts;     /* of this rank */
    int32_t all, first;
    bool shared;
    bool stream; /* the result has this rank's rows of the stream */
} invar_tp_reduce;

/* Of sums over `rows` rows, for the result y, which may have this rank's alone. */
invar_tp_reduce invar_tp_reduce_divide(invar_builder *b, int64_t rows, const invar_tensor *y,
                                       int32_t parts);

/* Where this rank's part number i goes. */
invar_tensor invar_tp_reduce_room(const invar_tp_reduce *sums, int32_t i);

/* y = what all parts make, with a residual unless NULL; behind the call of this rank's last. */
void invar_tp_reduce_unite(invar_builder *b, const invar_tp_reduce *sums, const invar_tensor *y,
                           const invar_tensor *residual);

/* The columns, where the part is not all of them: a quantized tensor cannot be cut so. */
invar_tensor invar_tp_reduce_columns(const invar_tensor *t, const invar_sum_part *part);
invar_tensor invar_tp_reduce_rows(const invar_tensor *t, const invar_sum_part *part);

#ifdef __cplusplus
}
#endif
#endif
