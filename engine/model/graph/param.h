/*
 * param.h - a model's parameters as programs use them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_PARAM_H
#define INVAR_ENGINE_MODEL_GRAPH_PARAM_H

#include "kernels-deterministic/math/shards.h"
#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_param_kind {
    INVAR_PARAM_EMBEDDING, /* (vocab, hidden) */
    INVAR_PARAM_NORM,      /* (n) */
    INVAR_PARAM_BIAS,      /* (n) */
    INVAR_PARAM_LINEAR,    /* (out, in), quantized by the low-precision formats */
    INVAR_PARAM_EXPERT,    /* (experts * out, in), quantized too */
    INVAR_PARAM_ROUTER,    /* (experts, hidden), never quantized */
    INVAR_PARAM_HEAD,      /* (vocab, hidden), never quantized; (1, hidden) of a critic */
    INVAR_PARAM_ADAPTER    /* A (experts * r, in) or B (experts * out, r), never quantized */
} invar_param_kind;

#define INVAR_PARAM_NAME_SIZE 96

/*
 * What a rank has of a parameter: of each of some experts some rows and columns. They are whole
 * pieces of the cut, or all of the parameter.
 */
typedef struct invar_param_shard {
    int64_t expert, experts; /* the first, and how many; none: nothing of the parameter is here */
    int64_t row, rows;
    int64_t col, cols;     /* cols 0: a vector */
    int32_t piece, pieces; /* of the cut's */
} invar_param_shard;

typedef struct invar_param {
    /* Hugging Face's; of an expert stack without the number: "...mlp.experts.up_proj.weight" */
    char name[INVAR_PARAM_NAME_SIZE];
    invar_param_kind kind;
    int64_t layer;           /* -1: of none */
    int64_t stack;           /* experts; 1 for the others */
    int64_t rows;            /* of one expert; of a vector its length */
    int64_t cols;            /* 0: a vector */
    invar_logical_split cut; /* by logical tensor parallelism */
    invar_param_shard local; /* what of all this the tensors below have */
    invar_tensor weight; /* (experts * rows, cols) or (rows) of `own`, in the type that ops read */
    invar_tensor grad;   /* the same extents in f32; at offsets in a block of gradients */
    invar_tensor master; /* f32 of the rows of `own` that this rank owns; absent: of none */
    int64_t master_row;  /* the first of them */
    const struct invar_param *adapter; /* A of a linear layer, with B behind it; NULL: none */
    int64_t rank;                      /* of an adapter, without what fills it up */
    float factor;                      /* of an adapter */
} invar_param;

/*
 * Behind the gradient of an embedding whose rows ranks divide: rows for the ids that others have,
 * so that one op adds all rows. Several, because an op adds the rows of one id one after the other.
 */
#define INVAR_SPARE_ROWS 64

static inline int64_t invar_param_spare_rows(const invar_param *p)
{
    return p->kind == INVAR_PARAM_EMBEDDING && p->local.pieces < p->cut.shards ? INVAR_SPARE_ROWS
                                                                               : 0;
}

/*
 * Heads, which the cut's atoms count, that so many ranks divide evenly: shards of a rank's. 1 where
 * shards do not lie as those of one rank would; then no group of heads is in several.
 */
static inline int32_t invar_heads_shards(int64_t heads, const invar_logical_split *cut,
                                         int32_t ranks)
{
    bool even = cut->shards % ranks == 0 &&
                invar_shards_divide_evenly(heads, cut->atom, cut->shards, ranks);

    return even ? cut->shards / ranks : 1;
}

/* Elements of a row that this rank has; 1 of a vector. */
static inline int64_t invar_param_row_elements(const invar_param *p)
{
    return p->cols ? p->local.cols : 1;
}

/* Elements that this rank has. */
static inline int64_t invar_param_elements(const invar_param *p)
{
    return p->local.experts * p->local.rows * invar_param_row_elements(p);
}

/* Rows that this rank has. */
static inline int64_t invar_param_rows(const invar_param *p)
{
    return p->local.experts * p->local.rows;
}

/* What this rank has of it at `data`, in f32. */
static inline invar_tensor invar_param_here(const invar_param *p, void *data)
{
    int64_t rows = invar_param_rows(p);

    return p->cols ? invar_tensor_2d(data, INVAR_DTYPE_F32, rows, p->local.cols)
                   : invar_tensor_1d(data, INVAR_DTYPE_F32, rows);
}

/* The f32 values of all rows that this rank has; NULL: it has no master of some of them. */
static inline const invar_tensor *invar_param_f32(const invar_param *p)
{
    if (p->weight.dtype == INVAR_DTYPE_F32)
        return &p->weight;
    return p->master.shape[0] == invar_param_rows(p) ? &p->master : NULL;
}

/* All elements of it. */
static inline int64_t invar_param_all_elements(const invar_param *p)
{
    return p->stack * p->rows * (p->cols ? p->cols : 1);
}

/* All of it at `data`, in f32. */
static inline invar_tensor invar_param_whole(const invar_param *p, void *data)
{
    int64_t rows = p->stack * p->rows;

    return p->cols ? invar_tensor_2d(data, INVAR_DTYPE_F32, rows, p->cols)
                   : invar_tensor_1d(data, INVAR_DTYPE_F32, rows);
}

#ifdef __cplusplus
}
#endif
#endif
