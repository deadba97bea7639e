/*
 * parts.c - runs the parts of random calls and compares the outputs with those of the calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "tests/gpu/cases/cases.h"

static invar_status alloc_side(invar_case_parts *p, const invar_device *dev)
{
    const invar_fused_parts *list = &p->list;
    void *fill;
    invar_status status;

    INVAR_TRY(invar_device_alloc(dev, &p->side, list->bytes, "side memory"));
    INVAR_TRY(invar_alloc(&p->host_side, list->host_bytes, 1, "side memory of the host"));
    INVAR_TRY(invar_alloc(&fill, list->bytes, 1, "what fills side memory"));
    memset(fill, 0xFF, list->bytes);
    memset(p->host_side, 0xFF, list->host_bytes);
    status = invar_device_upload(dev, p->side, fill, list->bytes);
    invar_free(fill);
    return status;
}

invar_status invar_case_parts_run(invar_case_parts *out, const invar_device *dev,
                                  const invar_case *c)
{
    memset(out, 0, sizeof *out);
    invar_fused_parts_plan(&out->list, c->op, &c->args, NULL, NULL);
    if (out->list.count == 0)
        return INVAR_OK;
    INVAR_TRY(alloc_side(out, dev));
    invar_fused_parts_plan(&out->list, c->op, &c->args, out->side, out->host_side);
    INVAR_TRY(invar_fused_parts_copy_accumulators(dev, &out->list));
    for (int i = 0; i < out->list.count; i++) {
        invar_case part = {
            .op = out->list.call[i].op, .numerics = c->numerics, .args = out->list.call[i].args};
        INVAR_TRY(invar_case_run(dev, &part));
    }
    return INVAR_OK;
}

void invar_case_parts_free(invar_case_parts *parts, const invar_device *dev)
{
    invar_device_free(dev, parts->side);
    invar_free(parts->host_side);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static invar_status fetch_bytes(void **out, const invar_device *dev, const void *from, size_t bytes,
                                bool host)
{
    INVAR_TRY(invar_alloc(out, bytes, 1, "what a call wrote"));
    if (bytes > 0 && host)
        memcpy(*out, from, bytes);
    return bytes > 0 && !host ? invar_device_download(dev, *out, from, bytes) : INVAR_OK;
}

/* Returns the bytes from the first to the last element. */
static size_t span_of(const invar_tensor *t)
{
    int64_t elements =
        t->shape[0] > 0 ? (t->shape[0] - 1) * t->row_stride + invar_tensor_row_elements(t) : 0;

    return (size_t)(elements * invar_dtype_bits(t->dtype)) / 8;
}

/* Copies a tensor with its scales to the host. */
static invar_status fetch_tensor(invar_tensor *out, const invar_device *dev, const invar_tensor *t,
                                 bool host)
{
    *out = *t;
    out->data = out->scale = NULL;
    INVAR_TRY(fetch_bytes(&out->data, dev, t->data, span_of(t), host));
    return fetch_bytes(&out->scale, dev, t->scale, invar_tensor_scale_bytes(t), host);
}

static bool tensors_equal(const invar_tensor *a, const invar_tensor *b)
{
    size_t bits = (size_t)invar_dtype_bits(a->dtype);
    size_t row = (size_t)invar_tensor_row_elements(a) * bits / 8;

    for (int64_t i = 0; i < a->shape[0]; i++)
        if (memcmp((const char *)a->data + (size_t)(i * a->row_stride) * bits / 8,
                   (const char *)b->data + (size_t)(i * b->row_stride) * bits / 8, row) != 0)
            return false;
    return memcmp(a->scale, b->scale, invar_tensor_scale_bytes(a)) == 0;
}

static invar_status compare_output(bool *same_out, const invar_device *dev,
                                   const invar_fused_part_output *o)
{
    invar_tensor fused, side = {0};
    invar_status status = fetch_tensor(&fused, dev, &o->fused, o->field->host);

    if (status == INVAR_OK)
        status = fetch_tensor(&side, dev, &o->reference, o->host);
    *same_out = status == INVAR_OK && tensors_equal(&fused, &side);
    invar_free(fused.data);
    invar_free(fused.scale);
    invar_free(side.data);
    invar_free(side.scale);
    return status;
}

invar_status invar_case_parts_compare(const invar_fused_part_output **differs_out,
                                      const invar_case_parts *parts, const invar_device *dev)
{
    *differs_out = NULL;
    for (int i = 0; i < parts->list.outputs && !*differs_out; i++) {
        const invar_fused_part_output *o = &parts->list.output[i];
        bool equal;
        INVAR_TRY(compare_output(&equal, dev, o));
        *differs_out = equal ? NULL : o;
    }
    return INVAR_OK;
}
