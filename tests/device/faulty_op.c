/*
 * faulty_op.c - the CPU backend with one wrong op.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/faulty_op.h"

#include <string.h>

#include "kernels-deterministic/op_fields.h"
#include "kernels-deterministic/ops.h"

static invar_backend faulty_backend;
static invar_op faulty_op;
static const invar_field *required_field; /* NULL if all calls are wrong */
static int64_t right_calls;               /* number of further calls that are right */
static int64_t n_faulty_calls;

/*
 * Returns the result that is changed, the first that fused and plain calls have. It is absent, and
 * nothing is changed, where only fused results are wanted.
 */
static const invar_tensor *result_of(const void *args)
{
    int count, skipped = faulty_op == INVAR_OP_MOE_ROUTE_FWD; // expert ids must stay valid
    const invar_field *f = invar_op_fields(&count, faulty_op);

    while (f->fused || skipped-- > 0)
        f++;
    INVAR_CHECK(f->kind == INVAR_FIELD_TENSOR && f->role != INVAR_FIELD_IN);
    return invar_field_in(f, args);
}

static const invar_field *find_field(invar_op op, const char *name)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    INVAR_CHECK(!"the op has a field of this name");
    return NULL;
}

static void flip_bit(const invar_tensor *t, int64_t row)
{
    size_t bits = (size_t)invar_dtype_bits(t->dtype);
    unsigned char bit = invar_dtype_scale_block(t->dtype) ? 0x80 : 1; // a code must not become NaN

    ((unsigned char *)t->data)[(size_t)row * (size_t)t->row_stride * bits / 8] ^= bit;
}

/* Flips a bit in the keys that the call has written to the cache. */
static void flip_keys(const invar_kv_write_args *a)
{
    const invar_kv_pages *c = &a->cache;
    int64_t size = c->k.shape[1];
    invar_tensor slots =
        invar_tensor_2d(c->k.data, c->k.dtype, c->k.shape[0] * size, c->k.shape[2] * c->k.shape[3]);

    for (int64_t s = 0; s < a->rows.count; s++) {
        const int32_t *pages = (const int32_t *)c->pages.data + s * c->pages.row_stride;
        int64_t rows = a->rows.offsets[s + 1] - a->rows.offsets[s];
        for (int64_t at = a->lengths[s] - rows; at < a->lengths[s]; at++)
            flip_bit(&slots, pages[at / size] * size + at % size);
    }
}

/* Replaces the sampled tokens by other ids of the vocabulary. */
static void change_tokens(const invar_sample_args *a)
{
    int32_t *tokens = a->tokens.data;

    for (int64_t i = 0; i < a->tokens.shape[0]; i++)
        tokens[i] += tokens[i] > 0 ? -1 : 1;
}

static invar_status run_wrong(const invar_device *dev, const void *args, void *workspace)
{
    const invar_tensor *t = result_of(args);

    INVAR_TRY(invar_backend_cpu()->ops[faulty_op].run(dev, args, workspace));
    if ((required_field && !invar_field_present(required_field, args)) || right_calls-- > 0)
        return INVAR_OK;
    n_faulty_calls++;
    if (faulty_op == INVAR_OP_KV_WRITE)
        flip_keys(args);
    else if (faulty_op == INVAR_OP_SAMPLE)
        change_tokens(args);
    else
        for (int64_t i = 0; i < t->shape[0]; i++)
            flip_bit(t, i);
    return INVAR_OK;
}

const invar_backend *invar_faulty_op_backend(invar_op op, const char *field)
{
    faulty_backend = *invar_backend_cpu();
    faulty_backend.ops[op].run = run_wrong;
    faulty_op = op;
    required_field = field ? find_field(op, field) : NULL;
    n_faulty_calls = right_calls = 0;
    return &faulty_backend;
}

void invar_faulty_op_skip(int64_t right)
{
    right_calls = right;
}

int64_t invar_faulty_op_calls(void)
{
    return n_faulty_calls;
}
