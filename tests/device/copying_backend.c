/*
 * copying_backend.c - runs the ops of another backend on copies of tensors in host memory.
 *
 * The memory regions of a call's arguments are sorted; overlapping ones are merged into spans. All
 * spans are in one block of the other backend's memory, with guards of 0xFF between them, so that a
 * call needs one copy in each direction.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/copying_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/op_fields.h"
#include "tests/device/fake_gpu.h"

/* bytes before each span and after the last one; addresses are kept modulo GUARD */
#define GUARD 256
#define MAX_REGIONS 2048

/* A pointer of the arguments and the bytes that it leads to. */
typedef struct region {
    void **pointer;
    char *host_address;
    size_t bytes;
    int span;
} region;

typedef struct span {
    char *host_address;
    size_t bytes;
    size_t at; /* offset in the copied block */
} span;

typedef struct op_call {
    invar_op op;
    region regions[MAX_REGIONS];
    int n_regions;
    span spans[MAX_REGIONS];
    int n_spans;
    size_t bytes; /* size of the copied block */
} op_call;

static struct {
    invar_device device; /* device of the other backend; opened by the first call, never closed */
    char *image;         /* the block in host memory */
    char *block;         /* the block in the other memory */
    char *scratch;       /* scratch in the other memory */
    size_t image_bytes, block_bytes, scratch_bytes;
} copying;

/* ---- selection of the backend ---------------------------------------------------------------- */

const invar_backend *invar_test_ops_backend(void)
{
    const char *name = getenv("INVAR_TEST_DEVICE");

    if (!name || strcmp(name, "cpu") == 0)
        return invar_backend_cpu();
    if (strcmp(name, "fake_gpu") == 0)
        return invar_fake_gpu_backend();
    if (strcmp(name, "cuda") == 0 && invar_backend_cuda())
        return invar_backend_cuda();
    fprintf(stderr, "tests: there is no device \"%s\" in this build\n", name);
    return NULL;
}

/* ---- memory regions of the arguments --------------------------------------------------------- */

/* Inserts a pointer in the order of addresses. */
static void add_region(op_call *c, void **pointer, size_t bytes)
{
    char *host_address = *pointer;
    int at = c->n_regions;

    if (!host_address || bytes == 0) {
        *pointer = NULL;
        return;
    }
    INVAR_CHECK(c->n_regions++ < MAX_REGIONS);
    for (; at > 0 && c->regions[at - 1].host_address > host_address; at--)
        c->regions[at] = c->regions[at - 1];
    c->regions[at] = (region){pointer, host_address, bytes, 0};
}

static void add_tensor(op_call *c, invar_tensor *t)
{
    int64_t row = invar_tensor_row_elements(t);
    int64_t elements = t->shape[0] > 0 && row > 0 ? (t->shape[0] - 1) * t->row_stride + row : 0;

    if (!invar_tensor_present(t)) {
        t->data = t->scale = NULL; // undefined memory of an absent tensor must not be copied
        return;
    }
    add_region(c, &t->data, (size_t)(elements * invar_dtype_bits(t->dtype) + 7) / 8);
    add_region(c, &t->scale, invar_tensor_scale_bytes(t));
}

/* Adds the tensors of a list, which stays in host memory as a copy with changed addresses. */
static void add_list(op_call *c, const invar_tensor **list, int64_t count)
{
    static invar_tensor copies[MAX_REGIONS];

    INVAR_CHECK(count <= MAX_REGIONS);
    for (int64_t i = 0; i < count; i++) {
        copies[i] = (*list)[i];
        add_tensor(c, &copies[i]);
    }
    *list = copies;
}

static void find_regions(op_call *c, void *args)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count; i++) {
        const invar_field *f = &fields[i];
        void *field = (char *)args + f->offset;
        switch (f->kind) {
        case INVAR_FIELD_TENSOR: add_tensor(c, field); break;
        case INVAR_FIELD_SEGMENTS: // the boundaries are its first field
            add_region(c, field,
                       (size_t)(((invar_row_offsets *)field)->count + 1) * sizeof(int64_t));
            break;
        case INVAR_FIELD_ARRAY:
            if (!f->host)
                add_region(c, field, (size_t)invar_field_count(f, args) * f->element);
            break;
        case INVAR_FIELD_TENSORS: add_list(c, field, invar_field_count(f, args)); break;
        default: break; // a number
        }
    }
}

static void find_spans(op_call *c)
{
    span *last = NULL;

    for (int i = 0; i < c->n_regions; i++) {
        region *p = &c->regions[i];
        if (!last || p->host_address >= last->host_address + last->bytes) {
            last = &c->spans[c->n_spans++];
            *last = (span){.host_address = p->host_address};
        }
        p->span = c->n_spans - 1;
        if ((size_t)(p->host_address - last->host_address) + p->bytes > last->bytes)
            last->bytes = (size_t)(p->host_address - last->host_address) + p->bytes;
    }
    for (int i = 0; i < c->n_spans; i++) {
        span *s = &c->spans[i];
        s->at = (c->bytes / GUARD + 2) * GUARD + (uintptr_t)s->host_address % GUARD;
        c->bytes = s->at + s->bytes;
    }
    c->bytes += GUARD;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status grow_buffer(char **block, size_t *capacity, size_t bytes_needed)
{
    if (bytes_needed <= *capacity)
        return INVAR_OK;
    invar_device_free(&copying.device, *block);
    *capacity = 0;
    INVAR_TRY(invar_device_alloc(&copying.device, (void **)block, 2 * bytes_needed, "ferry"));
    *capacity = 2 * bytes_needed;
    return INVAR_OK;
}

static invar_status prepare(const invar_device *dev, size_t bytes)
{
    if (!copying.device.context) {
        copying.device.backend = invar_test_ops_backend();
        copying.device.numerics = INVAR_NUMERICS_SM90; // opening with sm90 checks the tensor cores
        INVAR_TRY(invar_device_open(&copying.device));
    }
    copying.device.numerics = dev->numerics;
    copying.device.cpu_path = dev->cpu_path;
    copying.device.pool = dev->pool;
    INVAR_TRY(grow_buffer(&copying.block, &copying.block_bytes, bytes));
    if (bytes > copying.image_bytes) {
        invar_free(copying.image);
        copying.image_bytes = 0;
        INVAR_TRY(INVAR_ALLOC(copying.image, 2 * bytes, "ferry"));
        copying.image_bytes = 2 * bytes;
    }
    return INVAR_OK;
}

/* Fills the scratch with NaN, so that reading it before writing shows. */
static invar_status poison_scratch(size_t bytes)
{
    static char poison[1 << 20];

    if (poison[0] == 0)
        memset(poison, 0xFF, sizeof poison);
    INVAR_TRY(grow_buffer(&copying.scratch, &copying.scratch_bytes, bytes));
    for (size_t at = 0; at < bytes; at += sizeof poison)
        INVAR_TRY(invar_device_upload(&copying.device, copying.scratch + at, poison,
                                      bytes - at < sizeof poison ? bytes - at : sizeof poison));
    return INVAR_OK;
}

static invar_status upload_spans(op_call *c)
{
    memset(copying.image, 0xFF, c->bytes);
    for (int i = 0; i < c->n_spans; i++)
        memcpy(copying.image + c->spans[i].at, c->spans[i].host_address, c->spans[i].bytes);
    for (int i = 0; i < c->n_regions; i++) {
        const span *s = &c->spans[c->regions[i].span];
        *c->regions[i].pointer =
            copying.block + s->at + (c->regions[i].host_address - s->host_address);
    }
    return invar_device_upload(&copying.device, copying.block, copying.image, c->bytes);
}

/* Copies the spans back, but writes only changed ones, because inputs may be read-only. */
static invar_status download_spans(const op_call *c)
{
    size_t end = 0;

    INVAR_TRY(invar_device_download(&copying.device, copying.image, copying.block, c->bytes));
    for (int i = 0; i <= c->n_spans; i++) {
        size_t next = i < c->n_spans ? c->spans[i].at : c->bytes;
        for (; end < next; end++)
            if (copying.image[end] != (char)0xFF)
                return INVAR_FAIL(INVAR_E_STATE, 0, "ferry: %s wrote beside its tensors",
                                  invar_op_name(c->op));
        if (i < c->n_spans)
            end += c->spans[i].bytes;
    }
    for (int i = 0; i < c->n_spans; i++)
        if (memcmp(c->spans[i].host_address, copying.image + c->spans[i].at, c->spans[i].bytes) !=
            0)
            memcpy(c->spans[i].host_address, copying.image + c->spans[i].at, c->spans[i].bytes);
    return INVAR_OK;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static invar_status run_on_copies(const invar_device *dev, invar_op op, void *args)
{
    static op_call c;
    size_t scratch;

    if (getenv("INVAR_TEST_TRACE"))
        fprintf(stderr, "ferry: %s\n", invar_op_name(op));
    c.op = op;
    c.n_regions = c.n_spans = 0;
    c.bytes = 0;
    find_regions(&c, args);
    find_spans(&c);
    INVAR_TRY(prepare(dev, c.bytes));
    INVAR_TRY(upload_spans(&c));
    INVAR_TRY(invar_op_workspace(&scratch, &copying.device, op, args));
    INVAR_TRY(poison_scratch(scratch));
    INVAR_TRY(copying.device.backend->ops[op].run(&copying.device, args,
                                                  scratch ? copying.scratch : NULL));
    return download_spans(&c);
}

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static size_t workspace_##fn(const invar_device *dev, const void *args)                        \
    {                                                                                              \
        (void)dev, (void)args;                                                                     \
        return 0;                                                                                  \
    }                                                                                              \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *scratch)         \
    {                                                                                              \
        invar_##fn##_args own = *(const invar_##fn##_args *)args;                                  \
                                                                                                   \
        (void)scratch;                                                                             \
        return run_on_copies(dev, INVAR_OP_##ID, &own);                                            \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

const invar_backend *invar_test_heap_backend(void)
{
    static invar_backend backend = {
        .abi = INVAR_BACKEND_ABI,
        .name = "ferry",
        .ops =
            {
#define INVAR_OP(ID, fn, name, revision, numerics) [INVAR_OP_##ID] = {workspace_##fn, run_##fn},
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
            },
    };
    const invar_backend *ops = invar_test_ops_backend();

    backend.memory = invar_backend_cpu()->memory;
    return !ops || !ops->memory.device_local ? ops : &backend;
}
