/*
 * cpu_gpu_compare.c - random calls of every op on the CPU and on the GPU, compared byte by byte.
 *
 * The memory of a case is copied to the GPU, the op runs on both sides, and every byte of every
 * block is compared: results, and the memory between and around them. For a fused call the GPU also
 * runs the parts (kernels-deterministic/fused_parts.h), and the outputs are compared with theirs.
 * Prints the digests of the GPU's memory, as case_sums does for the CPU. Usage: twin [COUNT [OP]];
 * exit code 1 if a byte differs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "kernels-deterministic/op_fields.h"
#include "tests/gpu/cases/cases.h"

enum { MOST_BLOCKS = 64, MOST_TENSORS = 512 };

/* A block of the case, its copy on the GPU, and the copy back. */
typedef struct block_copy {
    invar_case_block *block;
    char *on_gpu;
    char *host_copy;
    bool
        is_host_output; /* the op writes to `host_copy` itself, which is an output in host memory */
} block_copy;

/* State of the comparison. */
typedef struct comparison {
    invar_device cpu, gpu;
    block_copy copies[MOST_BLOCKS];
    int count;
    int64_t differences;
    int64_t fused,
        fused_differing; /* number of fused calls, and of those that differ from their parts */
} comparison;

/* ---- pointers -------------------------------------------------------------------------------- */

/*
 * Returns the block that contains p. The end of a block belongs to the block, because an empty
 * tensor may be there, unless another block begins at the same address.
 */
static block_copy *find_copy(comparison *t, const void *p)
{
    block_copy *ends = NULL;

    for (int i = 0; i < t->count; i++) {
        const char *begin = t->copies[i].block->data, *end = begin + t->copies[i].block->bytes;
        if ((const char *)p >= begin && (const char *)p < end)
            return &t->copies[i];
        if ((const char *)p == end)
            ends = &t->copies[i];
    }
    if (ends)
        return ends;
    fprintf(stderr, "twin: an argument leads to memory that is not the case's\n");
    abort();
}

static void to_gpu(comparison *t, void **p)
{
    block_copy *m;

    if (!*p)
        return;
    m = find_copy(t, *p);
    *p = m->on_gpu + ((char *)*p - (char *)m->block->data);
}

static void to_host_copy(comparison *t, void **p)
{
    block_copy *m;

    if (!*p)
        return;
    m = find_copy(t, *p);
    m->is_host_output = true;
    *p = m->host_copy + ((char *)*p - (char *)m->block->data);
}

static void translate_args(comparison *t, invar_case *on_gpu, invar_tensor *list)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, on_gpu->op);
    const invar_tensor *host_list;
    int64_t length;

    for (int i = 0; i < count; i++) {
        char *field = (char *)&on_gpu->args + fields[i].offset;
        switch (fields[i].kind) {
        case INVAR_FIELD_TENSOR:
            to_gpu(t, &((invar_tensor *)(void *)field)->data);
            to_gpu(t, &((invar_tensor *)(void *)field)->scale);
            break;
        case INVAR_FIELD_ARRAY:
            if (!fields[i].host)
                to_gpu(t, (void **)(void *)field);
            else if (fields[i].role == INVAR_FIELD_OUT)
                to_host_copy(t, (void **)(void *)field);
            break;
        case INVAR_FIELD_SEGMENTS: // the row offsets are its first field
            to_gpu(t, (void **)(void *)field);
            break;
        case INVAR_FIELD_TENSORS:
            host_list = invar_case_list(&length, on_gpu);
            for (int64_t n = 0; n < length; n++) {
                list[n] = host_list[n];
                to_gpu(t, &list[n].data);
                to_gpu(t, &list[n].scale);
            }
            *(invar_tensor **)(void *)field = list;
            break;
        default: break; // a number
        }
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status upload_case(comparison *t, invar_case *c)
{
    t->count = 0;
    for (invar_case_block *b = c->blocks; b; b = b->next) {
        block_copy *m = &t->copies[t->count++];
        if (t->count > MOST_BLOCKS)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "twin: more than %d blocks", (int)MOST_BLOCKS);
        *m = (block_copy){.block = b};
        INVAR_TRY(INVAR_ALLOC(m->host_copy, b->bytes + 1, "a block"));
        memcpy(m->host_copy, b->data, b->bytes);
        INVAR_TRY(invar_device_alloc(&t->gpu, (void **)&m->on_gpu, b->bytes + 1, "a block"));
        INVAR_TRY(invar_device_upload(&t->gpu, m->on_gpu, b->data, b->bytes));
    }
    return INVAR_OK;
}

static void free_copies(comparison *t)
{
    for (int i = 0; i < t->count; i++) {
        invar_device_free(&t->gpu, t->copies[i].on_gpu);
        invar_free(t->copies[i].host_copy);
    }
    t->count = 0;
}

static void print_difference(const invar_case *c, uint64_t seed, int number, const block_copy *m)
{
    const unsigned char *cpu = m->block->data, *gpu = (const unsigned char *)m->host_copy;
    size_t first = m->block->bytes, differ = 0;

    for (size_t i = m->block->bytes; i-- > 0;)
        if (cpu[i] != gpu[i]) {
            first = i;
            differ++;
        }
    first -= first % 4;
    fprintf(stderr, "%s %s seed %" PRIu64 ", %s: block %d of %zu bytes: %zu differ, first at %zu:",
            invar_op_name(c->op), invar_numerics_name(c->numerics), seed, c->text, number,
            m->block->bytes, differ, first);
    for (size_t i = first; i < first + 4 && i < m->block->bytes; i++)
        fprintf(stderr, " %02x/%02x", cpu[i], gpu[i]);
    fprintf(stderr, " (CPU/GPU)\n");
}

static invar_status compare_case(comparison *t, invar_case *c, uint64_t seed)
{
    for (int i = 0; i < t->count; i++) {
        block_copy *m = &t->copies[i];
        if (invar_case_is_list(c, m->block))
            continue;
        if (!m->is_host_output)
            INVAR_TRY(invar_device_download(&t->gpu, m->host_copy, m->on_gpu, m->block->bytes));
        if (memcmp(m->host_copy, m->block->data, m->block->bytes) != 0) {
            print_difference(c, seed, i, m);
            t->differences++;
        }
        memcpy(m->block->data, m->host_copy, m->block->bytes);
    }
    return INVAR_OK;
}

/* Runs the case on the GPU, after its parts. */
static invar_status run_with_parts(comparison *t, const invar_case *on_gpu, uint64_t seed)
{
    const invar_fused_part_output *differs = NULL;
    invar_case_parts parts;
    invar_status status = invar_case_parts_run(&parts, &t->gpu, on_gpu);

    if (status == INVAR_OK)
        status = invar_case_run(&t->gpu, on_gpu);
    if (status == INVAR_OK)
        status = invar_case_parts_compare(&differs, &parts, &t->gpu);
    t->fused += parts.list.count > 0;
    if (differs) {
        fprintf(
            stderr, "%s %s seed %" PRIu64 ", %s: on the GPU %s is not what part %d, %s, gives\n",
            invar_op_name(on_gpu->op), invar_numerics_name(on_gpu->numerics), seed, on_gpu->text,
            differs->field->name, differs->call, invar_op_name(parts.list.call[differs->call].op));
        t->fused_differing++;
    }
    invar_case_parts_free(&parts, &t->gpu);
    return status;
}

static invar_status run_both(void *payload, invar_case *c, uint64_t seed)
{
    comparison *t = payload;
    invar_tensor list[MOST_TENSORS];
    invar_case on_gpu = *c;
    invar_status status = upload_case(t, c);

    if (status == INVAR_OK) {
        translate_args(t, &on_gpu, list);
        status = invar_case_run(&t->cpu, c);
    }
    if (status == INVAR_OK)
        status = run_with_parts(t, &on_gpu, seed);
    if (status == INVAR_OK)
        status = compare_case(t, c, seed);
    free_copies(t);
    return status;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 24;
    comparison t = {.cpu = {.backend = invar_backend_cpu()},
                    .gpu = {.backend = invar_backend_cuda()}};
    invar_status status;

    if (!t.gpu.backend) {
        fprintf(stderr, "twin: this build has no CUDA\n");
        return 2;
    }
    status = invar_device_open(&t.gpu);
    if (status == INVAR_OK)
        status = invar_case_lines(count, argc > 2 ? argv[2] : NULL, run_both, &t);
    if (status != INVAR_OK)
        fprintf(stderr, "twin: %s\n", invar_error_last()->message);
    invar_device_close(&t.gpu);
    fprintf(stderr,
            "twin: %" PRId64 " blocks differ, and %" PRId64 " of %" PRId64
            " fused calls from their parts\n",
            t.differences, t.fused_differing, t.fused);
    return status != INVAR_OK || t.differences > 0 || t.fused_differing > 0;
}
