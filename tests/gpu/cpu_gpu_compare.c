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
typedef struct mirror {
    invar_case_block *block;
    char *far;
    char *back;
    bool result; /* the op writes to `back` itself, which is host memory */
} mirror;

typedef struct twin {
    invar_device cpu, gpu;
    mirror at[MOST_BLOCKS];
    int count;
    int64_t differences;
    int64_t fused, apart; /* fused calls; fused calls that differ from their parts
                             */
} twin;

/* ---- pointers -------------------------------------------------------------------------------- */

static mirror *mirror_of(twin *t, const void *p)
{
    for (int i = 0; i < t->count; i++) {
        const char *begin = t->at[i].block->data;
        if ((const char *)p >= begin && (const char *)p <= begin + t->at[i].block->bytes)
            return &t->at[i];
    }
    fprintf(stderr, "twin: an argument leads to memory that is not the case's\n");
    abort();
}

static void lead_far(twin *t, void **p)
{
    mirror *m;

    if (!*p)
        return;
    m = mirror_of(t, *p);
    *p = m->far + ((char *)*p - (char *)m->block->data);
}

static void lead_back(twin *t, void **p)
{
    mirror *m;

    if (!*p)
        return;
    m = mirror_of(t, *p);
    m->result = true;
    *p = m->back + ((char *)*p - (char *)m->block->data);
}

static void translate(twin *t, invar_case *far, invar_tensor *list)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, far->op);
    const invar_tensor *near;
    int64_t length;

    for (int i = 0; i < count; i++) {
        char *field = (char *)&far->args + fields[i].offset;
        switch (fields[i].kind) {
        case INVAR_FIELD_TENSOR:
            lead_far(t, &((invar_tensor *)(void *)field)->data);
            lead_far(t, &((invar_tensor *)(void *)field)->scale);
            break;
        case INVAR_FIELD_ARRAY:
            if (!fields[i].host)
                lead_far(t, (void **)(void *)field);
            else if (fields[i].role == INVAR_FIELD_OUT)
                lead_back(t, (void **)(void *)field);
            break;
        case INVAR_FIELD_SEGMENTS: // the boundaries are its first field
            lead_far(t, (void **)(void *)field);
            break;
        case INVAR_FIELD_TENSORS:
            near = invar_case_list(&length, far);
            for (int64_t n = 0; n < length; n++) {
                list[n] = near[n];
                lead_far(t, &list[n].data);
                lead_far(t, &list[n].scale);
            }
            *(invar_tensor **)(void *)field = list;
            break;
        default: break; // a number
        }
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status copy_over(twin *t, invar_case *c)
{
    t->count = 0;
    for (invar_case_block *b = c->blocks; b; b = b->next) {
        mirror *m = &t->at[t->count++];
        if (t->count > MOST_BLOCKS)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "twin: more than %d blocks", (int)MOST_BLOCKS);
        *m = (mirror){.block = b};
        INVAR_TRY(invar_alloc((void **)&m->back, b->bytes + 1, 1, "a block"));
        memcpy(m->back, b->data, b->bytes);
        INVAR_TRY(invar_device_alloc(&t->gpu, (void **)&m->far, b->bytes + 1, "a block"));
        INVAR_TRY(invar_device_upload(&t->gpu, m->far, b->data, b->bytes));
    }
    return INVAR_OK;
}

static void put_away(twin *t)
{
    for (int i = 0; i < t->count; i++) {
        invar_device_free(&t->gpu, t->at[i].far);
        invar_free(t->at[i].back);
    }
    t->count = 0;
}

static void report(const invar_case *c, uint64_t seed, int number, const mirror *m)
{
    const unsigned char *cpu = m->block->data, *gpu = (const unsigned char *)m->back;
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

static invar_status compare(twin *t, invar_case *c, uint64_t seed)
{
    for (int i = 0; i < t->count; i++) {
        mirror *m = &t->at[i];
        if (invar_case_is_list(c, m->block))
            continue;
        if (!m->result)
            INVAR_TRY(invar_device_download(&t->gpu, m->back, m->far, m->block->bytes));
        if (memcmp(m->back, m->block->data, m->block->bytes) != 0) {
            report(c, seed, i, m);
            t->differences++;
        }
        memcpy(m->block->data, m->back, m->block->bytes);
    }
    return INVAR_OK;
}

/* Runs the case on the GPU, after its parts. */
static invar_status run_with_parts(twin *t, const invar_case *far, uint64_t seed)
{
    const invar_fused_part_output *differs = NULL;
    invar_case_parts parts;
    invar_status status = invar_case_parts_run(&parts, &t->gpu, far);

    if (status == INVAR_OK)
        status = invar_case_run(&t->gpu, far);
    if (status == INVAR_OK)
        status = invar_case_parts_compare(&differs, &parts, &t->gpu);
    t->fused += parts.list.count > 0;
    if (differs) {
        fprintf(
            stderr, "%s %s seed %" PRIu64 ", %s: on the GPU %s is not what part %d, %s, gives\n",
            invar_op_name(far->op), invar_numerics_name(far->numerics), seed, far->text,
            differs->field->name, differs->call, invar_op_name(parts.list.call[differs->call].op));
        t->apart++;
    }
    invar_case_parts_free(&parts, &t->gpu);
    return status;
}

static invar_status run_both(void *payload, invar_case *c, uint64_t seed)
{
    twin *t = payload;
    invar_tensor list[MOST_TENSORS];
    invar_case far = *c;
    invar_status status = copy_over(t, c);

    if (status == INVAR_OK) {
        translate(t, &far, list);
        status = invar_case_run(&t->cpu, c);
    }
    if (status == INVAR_OK)
        status = run_with_parts(t, &far, seed);
    if (status == INVAR_OK)
        status = compare(t, c, seed);
    put_away(t);
    return status;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 24;
    twin t = {.cpu = {.backend = invar_backend_cpu()}, .gpu = {.backend = invar_backend_cuda()}};
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
            t.differences, t.apart, t.fused);
    return status != INVAR_OK || t.differences > 0 || t.apart > 0;
}
