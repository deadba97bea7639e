/*
 * check.c - compares a part of the result of an op on a GPU with the CPU's.
 *
 * The audit of the engine computes elements of products and rows of attention again. All other ops
 * run on the CPU too: on a few rows from the middle if each row depends on itself alone, otherwise
 * on everything. The fields of the arguments (op_fields.h) say what is copied to the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/check.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/audit/audit.h"
#include "kernels-deterministic/op_fields.h"

/* ---- products and attention ------------------------------------------------------------------ */

static invar_status count_difference(void *payload, const invar_audit_finding *finding)
{
    (void)finding;
    ++*(int64_t *)payload;
    return INVAR_OK;
}

static invar_status run_audited(invar_op_runner *runner, const invar_bench_case *c)
{
    // in the first step the audit only collects the tensors
    for (int64_t step = 0; step < 2; step++) {
        invar_audit_begin(runner->audit, step, INVAR_AUDIT_TRAIN);
        INVAR_TRY(invar_op_runner_run(runner, c->op, c->args[0]));
        invar_audit_end(runner->audit);
    }
    return INVAR_OK;
}

static invar_status audit(invar_bench_comparison *out, const invar_bench_case *c,
                          const invar_device *dev)
{
    enum { ELEMENTS = 16 };
    invar_audit_options options = {
        .elements = ELEMENTS, .found = count_difference, .payload = &out->different};
    invar_op_runner runner;
    invar_status status;
    int64_t differ;

    invar_op_runner_init(&runner, dev);
    status = invar_audit_new(&runner.audit, dev, &options);
    if (status == INVAR_OK)
        status = run_audited(&runner, c);
    invar_audit_counted(&out->compared, &differ, runner.audit);
    invar_audit_free(runner.audit);
    invar_op_runner_release(&runner);
    return status;
}

/* ---- other ops ------------------------------------------------------------------------------- */

enum { CHECKED_ROWS = 64, MAX_EXCERPTS = 32 };

/* Memory of an argument on the device, its copy before the op, and its copy after the op. */
typedef struct excerpt {
    const void *device;
    size_t bytes, element;
    char *before, *after;
    bool result, host;
} excerpt;

typedef struct comparison {
    const invar_device *dev;
    invar_op_args cpu;        /* arguments with memory of the host */
    invar_tensor list;        /* the tensor of an op that has a list of one */
    int64_t all, first, rows; /* rows of the op; those that are compared */
    excerpt parts[MAX_EXCERPTS];
    int count;
} comparison;

static bool rows_are_independent(invar_op op)
{
    switch (op) {
    case INVAR_OP_QUANTIZE:
    case INVAR_OP_EMBEDDING_FWD:
    case INVAR_OP_ADD:
    case INVAR_OP_SCALE:
    case INVAR_OP_RMSNORM_FWD:
    case INVAR_OP_ROPE_FWD:
    case INVAR_OP_ROPE_BWD:
    case INVAR_OP_SWIGLU_FWD:
    case INVAR_OP_SWIGLU_BWD:
    case INVAR_OP_MOE_ROUTE_FWD:
    case INVAR_OP_MOE_ROUTE_BWD:
    case INVAR_OP_MOE_GATHER_FWD:
    case INVAR_OP_LOGPROB_FWD:
    case INVAR_OP_LOGPROB_BWD:
    case INVAR_OP_LOGPROB_SUM:
    case INVAR_OP_SAMPLE:
    case INVAR_OP_ADAMW: return true;
    default: return false;
    }
}

/* Copies memory of an argument to the host and returns the copy in *pointer. */
static invar_status fetch_memory(comparison *p, void **pointer, size_t bytes, size_t element,
                                 const invar_field *f)
{
    excerpt *e = &p->parts[p->count];

    INVAR_CHECK(p->count < MAX_EXCERPTS);
    *e = (excerpt){.device = *pointer,
                   .bytes = bytes,
                   .element = element,
                   .result = f->role != INVAR_FIELD_IN,
                   .host = f->host && f->kind == INVAR_FIELD_ARRAY};
    p->count++;
    INVAR_TRY(INVAR_ALLOC_ZEROED(e->before, bytes, "rows of a benchmark"));
    INVAR_TRY(INVAR_ALLOC(e->after, bytes, "rows of a benchmark"));
    *pointer = e->before;
    if (e->host) {
        memcpy(e->before, e->device, bytes);
        return INVAR_OK;
    }
    return invar_device_download(p->dev, e->before, e->device, bytes);
}

static invar_status fetch_tensor(comparison *p, invar_tensor *t, const invar_field *f)
{
    size_t bits = (size_t)invar_dtype_bits(t->dtype);

    if (t->shape[0] == p->all)
        *t = invar_tensor_rows(t, p->first, p->rows);
    if (t->scale)
        INVAR_TRY(fetch_memory(p, &t->scale, invar_tensor_scale_bytes(t), 1, f));
    return fetch_memory(p, &t->data, (size_t)(t->shape[0] * t->row_stride) * bits / 8,
                        (bits + 7) / 8, f);
}

static invar_status fetch_array(comparison *p, void **pointer, const invar_field *f)
{
    int64_t count = invar_field_count(f, &p->cpu);

    if (count == p->all) {
        *pointer = (char *)*pointer + p->first * f->element;
        count = p->rows;
    }
    return fetch_memory(p, pointer, (size_t)count * f->element, f->element, f);
}

static invar_status fetch_field(comparison *p, const invar_field *f)
{
    void *at = (char *)&p->cpu + f->offset;
    invar_row_offsets *offsets = at;

    if (!invar_field_present(f, &p->cpu))
        return INVAR_OK;
    switch (f->kind) {
    case INVAR_FIELD_TENSOR: return fetch_tensor(p, at, f);
    case INVAR_FIELD_SEGMENTS:
        return fetch_memory(p, (void **)(void *)&offsets->offsets,
                            (size_t)(offsets->count + 1) * sizeof *offsets->offsets, 1, f);
    case INVAR_FIELD_ARRAY: return fetch_array(p, at, f);
    case INVAR_FIELD_TENSORS: // a list of one tensor
        p->list = **(const invar_tensor **)at;
        *(const invar_tensor **)at = &p->list;
        return fetch_tensor(p, &p->list, f);
    default: return INVAR_OK; // a number
    }
}

static invar_status compare_result(invar_bench_comparison *out, const comparison *p,
                                   const excerpt *e)
{
    if (e->host)
        memcpy(e->after, e->device, e->bytes);
    else
        INVAR_TRY(invar_device_download(p->dev, e->after, e->device, e->bytes));
    for (size_t at = 0; at < e->bytes; at += e->element)
        out->different += memcmp(e->before + at, e->after + at, e->element) != 0;
    out->compared += (int64_t)(e->bytes / e->element);
    return INVAR_OK;
}

static invar_status compare_with_cpu(invar_bench_comparison *out, const invar_bench_case *c,
                                     comparison *p)
{
    const invar_device cpu = {
        .backend = invar_backend_cpu(), .numerics = p->dev->numerics, .pool = p->dev->pool};
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    (void)invar_op_args_copy(&p->cpu, c->op, c->args[0]);
    if (c->op == INVAR_OP_ADAMW) { // digests are those of all rows
        p->cpu.adamw.digest = NULL;
        p->cpu.adamw.end = NULL;
        p->cpu.adamw.tensors = 0;
    }
    if (rows_are_independent(c->op)) {
        p->all = ((const invar_tensor *)invar_field_in(&fields[0], &p->cpu))->shape[0];
        p->rows = CHECKED_ROWS;
        p->first = (p->all - p->rows) / 2;
    }
    for (int i = count - 1; i >= 0; i--) // arrays before the tensors that count them
        INVAR_TRY(fetch_field(p, &fields[i]));
    INVAR_TRY(invar_bench_run_once(p->dev, c->op, c->args[0]));
    INVAR_TRY(invar_bench_run_once(&cpu, c->op, &p->cpu));
    for (int i = 0; i < p->count; i++)
        if (p->parts[i].result)
            INVAR_TRY(compare_result(out, p, &p->parts[i]));
    return INVAR_OK;
}

invar_status invar_bench_check(invar_bench_comparison *out, const invar_bench_case *c,
                               const invar_device *dev)
{
    comparison p = {.dev = dev, .all = -1};
    invar_status status;

    *out = (invar_bench_comparison){0};
    if (invar_op_depends_on_numerics(c->op))
        return audit(out, c, dev);
    status = compare_with_cpu(out, c, &p);
    for (int i = 0; i < p.count; i++) {
        invar_free(p.parts[i].before);
        invar_free(p.parts[i].after);
    }
    return status;
}
