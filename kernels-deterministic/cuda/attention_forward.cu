/*
 * attention_forward.cu - attention.fwd, attention.paged and kv.write: arguments to problems,
 * problems to kernels.
 *
 * Both attentions are one problem: a sequence's query rows are its last positions, all of them for
 * a packed sample, and keys lie in rows or in pages. So prefill in any chunking and decode in any
 * batch give the bits of the training forward.
 *
 * Numerics contract (rev 1): docs/arithmetic.md, section 8. Which kernel runs decides no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/attention_forward.cuh"

namespace
{

/* ---- problems -------------------------------------------------------------------------------- */

void set_queries(invar_attention_problem *p, const invar_device *dev, invar_op op,
                 const invar_tensor *o, const invar_tensor *q)
{
    p->op = op;
    p->fault = invar_cuda_of(dev)->fault;
    p->dtype = q->dtype;
    p->o = o->data;
    p->q = q->data;
    p->o_stride = o->row_stride;
    p->q_stride = q->row_stride;
    p->n_rows = q->shape[0];
}

void set_keys(invar_attention_problem *p, const invar_tensor *k, const invar_tensor *v)
{
    p->k = k->data;
    p->v = v->data;
    p->k_stride = k->row_stride;
    p->v_stride = v->row_stride;
}

invar_attention_problem packed(const invar_device *dev, const invar_attention_fwd_args *a)
{
    invar_attention_problem p = {};

    set_queries(&p, dev, INVAR_OP_ATTENTION_FWD, &a->o, &a->q);
    set_keys(&p, &a->k, &a->v);
    p.form = invar_attention_form_of(&a->q, a->k.shape[1], &a->shape);
    p.rows = a->samples;
    if (invar_tensor_present(&a->lse2)) {
        p.lse2 = (float *)a->lse2.data;
        p.lse2_stride = a->lse2.row_stride;
    }
    return p;
}

invar_attention_problem paged(const invar_device *dev, const invar_attention_paged_args *a)
{
    invar_attention_problem p = {};

    set_queries(&p, dev, INVAR_OP_ATTENTION_PAGED, &a->o, &a->q);
    set_keys(&p, &a->cache.k, &a->cache.v);
    p.form = invar_attention_form_of(&a->q, a->cache.k.shape[2], &a->shape);
    p.rows = a->rows;
    p.lengths = a->lengths;
    p.paged = true;
    p.pages = (const int32_t *)a->cache.pages.data;
    p.pages_stride = a->cache.pages.row_stride;
    p.page_size = a->cache.k.shape[1];
    p.n_pages = a->cache.k.shape[0];
    p.max_pages = a->cache.pages.shape[1];
    return p;
}

size_t workspace_of(const invar_device *dev, const invar_attention_problem *p)
{
    return invar_attention_wgmma_takes(dev, p) ? invar_attention_wgmma_workspace(dev, p) : 0;
}

invar_status run(const invar_device *dev, const invar_attention_problem *p, void *workspace)
{
    if (p->n_rows == 0)
        return INVAR_OK;
    if (invar_attention_wgmma_takes(dev, p))
        return invar_attention_wgmma(dev, p, workspace);
    if (invar_attention_mma_takes(dev, p))
        return invar_attention_mma(dev, p);
    return invar_attention_fma(dev, p);
}

/* ---- filling the cache ----------------------------------------------------------------------- */

/* A row of keys or values and its slot in the cache, in units of WORD. */
template <typename WORD> struct slots {
    WORD *cache;
    const WORD *rows;
    int64_t page_stride, row_stride;
};

/* One block per row. A slot that is named twice gets one of its rows. */
template <typename WORD>
__global__ void write_rows(slots<WORD> k, slots<WORD> v, int64_t words,
                           const __grid_constant__ invar_attention_problem p)
{
    int64_t row = blockIdx.x, first;
    invar_attention_sequence s;

    // the last sequence that begins at or before the row: it is not empty
    int64_t low = 0, high = p.rows.count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (p.rows.start[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    if (!invar_attention_find(&s, p, low))
        return;
    first = row - s.row0;
    if (first < s.before || first >= s.length)
        return;
    int64_t page = invar_attention_page(p, s, first / p.page_size);
    int64_t slot = first % p.page_size * words;
    for (int64_t i = threadIdx.x; i < words; i += blockDim.x) {
        k.cache[page * k.page_stride + slot + i] = k.rows[row * k.row_stride + i];
        v.cache[page * v.page_stride + slot + i] = v.rows[row * v.row_stride + i];
    }
}

template <typename WORD>
slots<WORD> slots_of(const invar_tensor *cache, const invar_tensor *rows, int64_t per_word)
{
    return {(WORD *)cache->data, (const WORD *)rows->data, cache->row_stride / per_word,
            rows->row_stride / per_word};
}

template <typename WORD>
invar_status write_all(const invar_device *dev, const invar_kv_write_args *a,
                       const invar_attention_problem &p)
{
    int64_t per_word = (int64_t)sizeof(WORD) * 8 / invar_dtype_bits(a->k.dtype);
    int64_t words = invar_tensor_row_elements(&a->k) / per_word;
    unsigned threads = words < 32 ? 32 : words < 256 ? (unsigned)(words + 31) / 32 * 32 : 256;

    return invar_launch(dev, INVAR_OP_KV_WRITE, write_rows<WORD>, dim3((unsigned)p.n_rows),
                        dim3(threads), 0)(slots_of<WORD>(&a->cache.k, &a->k, per_word),
                                          slots_of<WORD>(&a->cache.v, &a->v, per_word), words, p);
}

/* True where rows of t can be moved by words of 16 bytes. */
bool by_words(const invar_tensor *t, int64_t elements)
{
    int64_t bytes = invar_dtype_bits(t->dtype) / 8;

    return ((uintptr_t)t->data & 15) == 0 && t->row_stride * bytes % 16 == 0 &&
           elements * bytes % 16 == 0;
}

} // namespace

/* ---- entries --------------------------------------------------------------------------------- */

size_t invar_cuda_attention_fwd_workspace(const invar_device *dev,
                                          const invar_attention_fwd_args *args)
{
    invar_attention_problem p = packed(dev, args);

    return workspace_of(dev, &p);
}

invar_status invar_cuda_attention_fwd(const invar_device *dev, const invar_attention_fwd_args *args,
                                      void *workspace)
{
    invar_attention_problem p = packed(dev, args);

    return run(dev, &p, workspace);
}

size_t invar_cuda_attention_paged_workspace(const invar_device *dev,
                                            const invar_attention_paged_args *args)
{
    invar_attention_problem p = paged(dev, args);

    return workspace_of(dev, &p);
}

invar_status invar_cuda_attention_paged(const invar_device *dev,
                                        const invar_attention_paged_args *args, void *workspace)
{
    invar_attention_problem p = paged(dev, args);

    return run(dev, &p, workspace);
}

size_t invar_cuda_kv_write_workspace(const invar_device *dev, const invar_kv_write_args *args)
{
    (void)dev;
    (void)args;
    return 0;
}

invar_status invar_cuda_kv_write(const invar_device *dev, const invar_kv_write_args *args,
                                 void *workspace)
{
    invar_attention_problem p = {};
    int64_t elements = invar_tensor_row_elements(&args->k);

    (void)workspace;
    if (elements == 0 || args->k.shape[0] == 0)
        return INVAR_OK;
    p.op = INVAR_OP_KV_WRITE;
    p.fault = invar_cuda_of(dev)->fault;
    p.rows = args->rows;
    p.n_rows = args->k.shape[0];
    p.lengths = args->lengths;
    p.paged = true;
    p.pages = (const int32_t *)args->cache.pages.data;
    p.pages_stride = args->cache.pages.row_stride;
    p.page_size = args->cache.k.shape[1];
    p.n_pages = args->cache.k.shape[0];
    p.max_pages = args->cache.pages.shape[1];
    if (by_words(&args->cache.k, elements) && by_words(&args->cache.v, elements) &&
        by_words(&args->k, elements) && by_words(&args->v, elements))
        return write_all<uint4>(dev, args, p);
    if (args->k.dtype == INVAR_DTYPE_BF16)
        return write_all<uint16_t>(dev, args, p);
    return write_all<uint32_t>(dev, args, p);
}
