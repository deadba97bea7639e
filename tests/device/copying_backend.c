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
#define MOST_PIECES 2048

/* A pointer of the arguments and the bytes that it leads to. */
typedef struct piece {
    void **pointer;
    char *here;
    size_t bytes;
    int span;
} piece;

typedef struct span {
    char *here;
    size_t bytes;
    size_t at; /* offset in the copied block */
} span;

typedef struct crossing {
    invar_op op;
    piece pieces[MOST_PIECES];
    int n_pieces;
    span spans[MOST_PIECES];
    int n_spans;
    size_t bytes; /* size of the copied block */
} crossing;

static struct {
    invar_device over; /* device of the other backend; opened by the first call, never closed */
    char *image;       /* the block in host memory */
    char *block;       /* the block in the other memory */
    char *scratch;     /* scratch in the other memory */
    size_t image_bytes, block_bytes, scratch_bytes;
} ferry;

/* ---- which ----------------------------------------------------------------------------------- */

const invar_backend *invar_test_ops_backend(void)
{
    const char *name = getenv("INVAR_TEST_DEVICE");

    if (!name || strcmp(name, "cpu") == 0)
        return invar_backend_cpu();
    if (strcmp(name, "far") == 0)
        return invar_far_backend();
    if (strcmp(name, "cuda") == 0 && invar_backend_cuda())
        return invar_backend_cuda();
    fprintf(stderr, "tests: there is no device \"%s\" in this build\n", name);
    return NULL;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Inserts a pointer in the order of addresses. */
static void add_piece(crossing *c, void **pointer, size_t bytes)
{
    char *here = *pointer;
    int at = c->n_pieces;

    if (!here || bytes == 0) {
        *pointer = NULL;
        return;
    }
    INVAR_CHECK(c->n_pieces++ < MOST_PIECES);
    for (; at > 0 && c->pieces[at - 1].here > here; at--)
        c->pieces[at] = c->pieces[at - 1];
    c->pieces[at] = (piece){pointer, here, bytes, 0};
}

static void add_tensor(crossing *c, invar_tensor *t)
{
    int64_t row = invar_tensor_row_elements(t);
    int64_t elements = t->shape[0] > 0 && row > 0 ? (t->shape[0] - 1) * t->row_stride + row : 0;

    if (!invar_tensor_present(t)) {
        t->data = t->scale = NULL; // undefined memory of an absent tensor must not be copied
        return;
    }
    add_piece(c, &t->data, (size_t)(elements * invar_dtype_bits(t->dtype) + 7) / 8);
    add_piece(c, &t->scale, invar_tensor_scale_bytes(t));
}

/* Adds the tensors of a list, which stays in host memory as a copy with changed addresses. */
static void add_list(crossing *c, const invar_tensor **list, int64_t count)
{
    static invar_tensor copies[MOST_PIECES];

    INVAR_CHECK(count <= MOST_PIECES);
    for (int64_t i = 0; i < count; i++) {
        copies[i] = (*list)[i];
        add_tensor(c, &copies[i]);
    }
    *list = copies;
}

static void find_pieces(crossing *c, void *args)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count; i++) {
        const invar_field *f = &fields[i];
        void *field = (char *)args + f->offset;
        switch (f->kind) {
        case INVAR_FIELD_TENSOR: add_tensor(c, field); break;
        case INVAR_FIELD_SEGMENTS: // the boundaries are its first field
            add_piece(c, field,
                      (size_t)(((invar_row_offsets *)field)->count + 1) * sizeof(int64_t));
            break;
        case INVAR_FIELD_ARRAY:
            if (!f->host)
                add_piece(c, field, (size_t)invar_field_count(f, args) * f->element);
            break;
        case INVAR_FIELD_TENSORS: add_list(c, field, invar_field_count(f, args)); break;
        default: break; // a number
        }
    }
}

static void find_spans(crossing *c)
{
    span *last = NULL;

    for (int i = 0; i < c->n_pieces; i++) {
        piece *p = &c->pieces[i];
        if (!last || p->here >= last->here + last->bytes) {
            last = &c->spans[c->n_spans++];
            *last = (span){.here = p->here};
        }
        p->span = c->n_spans - 1;
        if ((size_t)(p->here - last->here) + p->bytes > last->bytes)
            last->bytes = (size_t)(p->here - last->here) + p->bytes;
    }
    for (int i = 0; i < c->n_spans; i++) {
        span *s = &c->spans[i];
        s->at = (c->bytes / GUARD + 2) * GUARD + (uintptr_t)s->here % GUARD;
        c->bytes = s->at + s->bytes;
    }
    c->bytes += GUARD;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status grow(char **block, size_t *has, size_t needs)
{
    if (needs <= *has)
        return INVAR_OK;
    invar_device_free(&ferry.over, *block);
    *has = 0;
    INVAR_TRY(invar_device_alloc(&ferry.over, (void **)block, 2 * needs, "ferry"));
    *has = 2 * needs;
    return INVAR_OK;
}

static invar_status make_ready(const invar_device *dev, size_t bytes)
{
    if (!ferry.over.context) {
        ferry.over.backend = invar_test_ops_backend();
        ferry.over.numerics = INVAR_NUMERICS_SM90; // opening with sm90 checks the tensor cores
        INVAR_TRY(invar_device_open(&ferry.over));
    }
    ferry.over.numerics = dev->numerics;
    ferry.over.cpu_path = dev->cpu_path;
    ferry.over.pool = dev->pool;
    INVAR_TRY(grow(&ferry.block, &ferry.block_bytes, bytes));
    if (bytes > ferry.image_bytes) {
        invar_free(ferry.image);
        ferry.image_bytes = 0;
        INVAR_TRY(invar_alloc((void **)&ferry.image, 2 * bytes, 1, "ferry"));
        ferry.image_bytes = 2 * bytes;
    }
    return INVAR_OK;
}

/* Fills the scratch with NaN, so that reading it before writing shows. */
static invar_status poison_scratch(size_t bytes)
{
    static char poison[1 << 20];

    if (poison[0] == 0)
        memset(poison, 0xFF, sizeof poison);
    INVAR_TRY(grow(&ferry.scratch, &ferry.scratch_bytes, bytes));
    for (size_t at = 0; at < bytes; at += sizeof poison)
        INVAR_TRY(invar_device_upload(&ferry.over, ferry.scratch + at, poison,
                                      bytes - at < sizeof poison ? bytes - at : sizeof poison));
    return INVAR_OK;
}

static invar_status send(crossing *c)
{
    memset(ferry.image, 0xFF, c->bytes);
    for (int i = 0; i < c->n_spans; i++)
        memcpy(ferry.image + c->spans[i].at, c->spans[i].here, c->spans[i].bytes);
    for (int i = 0; i < c->n_pieces; i++) {
        const span *s = &c->spans[c->pieces[i].span];
        *c->pieces[i].pointer = ferry.block + s->at + (c->pieces[i].here - s->here);
    }
    return invar_device_upload(&ferry.over, ferry.block, ferry.image, c->bytes);
}

/* Copies the spans back, but writes only changed ones, because inputs may be read-only. */
static invar_status fetch(const crossing *c)
{
    size_t end = 0;

    INVAR_TRY(invar_device_download(&ferry.over, ferry.image, ferry.block, c->bytes));
    for (int i = 0; i <= c->n_spans; i++) {
        size_t next = i < c->n_spans ? c->spans[i].at : c->bytes;
        for (; end < next; end++)
            if (ferry.image[end] != (char)0xFF)
                return INVAR_FAIL(INVAR_E_STATE, 0, "ferry: %s wrote beside its tensors",
                                  invar_op_name(c->op));
        if (i < c->n_spans)
            end += c->spans[i].bytes;
    }
    for (int i = 0; i < c->n_spans; i++)
        if (memcmp(c->spans[i].here, ferry.image + c->spans[i].at, c->spans[i].bytes) != 0)
            memcpy(c->spans[i].here, ferry.image + c->spans[i].at, c->spans[i].bytes);
    return INVAR_OK;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static invar_status cross(const invar_device *dev, invar_op op, void *args)
{
    static crossing c;
    size_t scratch;

    if (getenv("INVAR_TEST_TRACE"))
        fprintf(stderr, "ferry: %s\n", invar_op_name(op));
    c.op = op;
    c.n_pieces = c.n_spans = 0;
    c.bytes = 0;
    find_pieces(&c, args);
    find_spans(&c);
    INVAR_TRY(make_ready(dev, c.bytes));
    INVAR_TRY(send(&c));
    INVAR_TRY(invar_op_workspace(&scratch, &ferry.over, op, args));
    INVAR_TRY(poison_scratch(scratch));
    INVAR_TRY(ferry.over.backend->ops[op].run(&ferry.over, args, scratch ? ferry.scratch : NULL));
    return fetch(&c);
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
        return cross(dev, INVAR_OP_##ID, &own);                                                    \
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
