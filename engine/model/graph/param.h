/*
 * param.h - model parameters: shape, logical split, local shard, tensors, adapter.
 *
 * A parameter is known in three extents: the full one of the checkpoint (stack, rows, cols), the
 * local shard that this rank computes with, and the rows of the local shard whose f32 master this
 * rank holds (ZeRO). Op graphs name parameters by their offset in the model's memory.
 *
 * Every rank has the full list in the same order; `local`, `master_row` and the tensors differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_PARAM_H
#define INVAR_ENGINE_MODEL_GRAPH_PARAM_H

#include "kernels-deterministic/math/shards.h"
#include "kernels-deterministic/ops.h"

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
 * A rank's shard of a parameter: a range of rows and columns of each of a range of experts. It
 * consists of complete logical shards, or is the full parameter.
 */
typedef struct invar_param_shard {
    int64_t expert, experts; /* first expert and number of experts; 0 experts if the rank has no
                                shard */
    int64_t row, rows;
    int64_t col, cols;             /* cols is 0 for a vector */
    int32_t first_shard, n_shards; /* first logical shard and number of logical shards */
} invar_param_shard;

typedef struct invar_param {
    /*
     * Hugging Face name; the name of an expert stack has no expert number:
     * "...mlp.experts.up_proj.weight"
     */
    char name[INVAR_PARAM_NAME_SIZE];
    invar_param_kind kind;
    int64_t layer;             /* -1 if it belongs to no layer */
    int64_t stack;             /* number of experts; 1 if it is not an expert stack */
    int64_t rows;              /* rows of one expert; length of a vector */
    int64_t cols;              /* 0 for a vector */
    invar_logical_split split; /* logical tensor parallelism */
    invar_param_shard local;   /* shard that `weight` and `grad` hold */
    invar_tensor weight;       /* (experts * rows, cols) or (rows) of `local`, in the type that ops
                                  read */
    invar_tensor grad;         /* f32, extents of `local`; `data` is an offset in the block of
                                  gradients */
    invar_tensor master; /* f32 rows of `local` in this rank's ZeRO partition; may be absent */
    int64_t master_row;  /* index in `local` of the first row of `master` */
    /* A of the linear layer's adapter, followed by B; may be NULL */
    const struct invar_param *adapter;
    int64_t rank; /* adapters only: rank without padding */
    float factor; /* adapters only: s in u = round(s * x A^T) (docs/arithmetic.md, section 15) */
} invar_param;

/*
 * Number of extra rows after the gradient of an embedding that ranks divide by ids. The ids of
 * other ranks are mapped to them, so one op call adds all rows. There are several because the op
 * adds the rows of one id serially.
 */
#define INVAR_SPARE_ROWS 64

static inline int64_t invar_param_spare_rows(const invar_param *p)
{
    return p->kind == INVAR_PARAM_EMBEDDING && p->local.n_shards < p->split.shards
               ? INVAR_SPARE_ROWS
               : 0;
}

/*
 * Number of logical shards that each of `ranks` ranks has if they divide `heads` heads, which are
 * the unit of the split's atoms. Returns 1 if the ranks do not divide the shards evenly; then no
 * group of heads spans several shards.
 */
static inline int32_t invar_heads_shards(int64_t heads, const invar_logical_split *split,
                                         int32_t ranks)
{
    bool even = split->shards % ranks == 0 &&
                invar_shards_divide_evenly(heads, split->atom, split->shards, ranks);

    return even ? split->shards / ranks : 1;
}

/* Elements per row of the local shard; 1 for a vector. */
static inline int64_t invar_param_row_elements(const invar_param *p)
{
    return p->cols ? p->local.cols : 1;
}

/* Elements of the local shard. */
static inline int64_t invar_param_elements(const invar_param *p)
{
    return p->local.experts * p->local.rows * invar_param_row_elements(p);
}

/* Rows of the local shard, of all its experts. */
static inline int64_t invar_param_rows(const invar_param *p)
{
    return p->local.experts * p->local.rows;
}

/* f32 tensor of the local shard's extents at `data`. */
static inline invar_tensor invar_param_local_tensor(const invar_param *p, void *data)
{
    int64_t rows = invar_param_rows(p);

    return p->cols ? invar_tensor_2d(data, INVAR_DTYPE_F32, rows, p->local.cols)
                   : invar_tensor_1d(data, INVAR_DTYPE_F32, rows);
}

/*
 * f32 values of all rows of the local shard; NULL if this rank has masters of only some of the
 * rows.
 */
static inline const invar_tensor *invar_param_f32(const invar_param *p)
{
    if (p->weight.dtype == INVAR_DTYPE_F32)
        return &p->weight;
    return p->master.shape[0] == invar_param_rows(p) ? &p->master : NULL;
}

/* Elements of the full parameter. */
static inline int64_t invar_param_all_elements(const invar_param *p)
{
    return p->stack * p->rows * (p->cols ? p->cols : 1);
}

/* f32 tensor of the full parameter's extents at `data`. */
static inline invar_tensor invar_param_full_tensor(const invar_param *p, void *data)
{
    int64_t rows = p->stack * p->rows;

    return p->cols ? invar_tensor_2d(data, INVAR_DTYPE_F32, rows, p->cols)
                   : invar_tensor_1d(data, INVAR_DTYPE_F32, rows);
}

#endif
