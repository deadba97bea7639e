/*
 * op_call_log.c - a backend that logs the ops which the engine calls, as text.
 *
 * Every write to memory, by an op, an upload or a fill with zeros, is recorded as rows with a
 * label. The source of an input is the set of labels of the last writes to its bytes. Rows that a
 * later write covers are removed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/op_call_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/op_fields.h"

#define MAX_WRITES 65536
#define MAX_BLOCKS 256
#define MAX_LABEL 112

/* Rows of memory whose content has the source `label`. */
typedef struct written_rows {
    uintptr_t begin, end;
    size_t row, stride;
    char label[MAX_LABEL];
} written_rows;

typedef struct block {
    void *at;
    size_t bytes;
} block;

static struct {
    FILE *file;
    char *text;
    size_t size;
    int count;
    written_rows writes[MAX_WRITES]; /* in the order of writes */
    int n_writes;
    block blocks[MAX_BLOCKS]; /* allocated memory */
    int n_blocks;
    size_t bytes, max_bytes, first; /* allocated now, the maximum, and at the beginning */
} call_log;

/* ---- recorded writes ------------------------------------------------------------------------- */

static written_rows rows_of_tensor(const invar_tensor *t)
{
    size_t bits = (size_t)invar_dtype_bits(t->dtype);
    size_t row = (size_t)invar_tensor_row_elements(t) * bits / 8;
    size_t stride = (size_t)t->row_stride * bits / 8;
    uintptr_t at = (uintptr_t)t->data;

    return (written_rows){at, t->shape[0] > 0 ? at + (size_t)(t->shape[0] - 1) * stride + row : at,
                          row, stride, ""};
}

static written_rows rows_of_bytes(const void *at, size_t bytes)
{
    return (written_rows){(uintptr_t)at, (uintptr_t)at + bytes, bytes, bytes, ""};
}

/* Returns whether two sets of rows overlap. Columns of one buffer that are disjoint do not. */
static bool rows_overlap(const written_rows *a, const written_rows *b)
{
    size_t shift;

    if (a->begin >= b->end || b->begin >= a->end)
        return false;
    if (a->stride != b->stride || a->stride == 0)
        return true;
    shift = b->begin >= a->begin ? (b->begin - a->begin) % a->stride
                                 : a->stride - 1 - (a->begin - b->begin - 1) % a->stride;
    return shift < a->row || shift + b->row > a->stride;
}

static bool covers(const written_rows *outer, const written_rows *inner)
{
    bool solid = outer->row == outer->stride;

    return outer->begin <= inner->begin && outer->end >= inner->end &&
           (solid || (outer->stride == inner->stride && outer->row >= inner->row &&
                      (inner->begin - outer->begin) % outer->stride + inner->row <= outer->row));
}

static void remove_covered(const written_rows *covered)
{
    int n_kept = 0;

    for (int i = 0; i < call_log.n_writes; i++)
        if (!covers(covered, &call_log.writes[i]))
            call_log.writes[n_kept++] = call_log.writes[i];
    call_log.n_writes = n_kept;
}

static void record_write(written_rows p, const char *label)
{
    INVAR_CHECK(call_log.n_writes < MAX_WRITES && strlen(label) < sizeof p.label);
    if (p.begin == p.end)
        return;
    remove_covered(&p);
    memcpy(p.label, label, strlen(label) + 1);
    call_log.writes[call_log.n_writes++] = p;
}

/*
 * Computes which bytes of row `number` are in [begin, end), counted from the start of the row.
 * Returns false if there are none.
 */
static bool part_of_row(size_t *from, size_t *to, const written_rows *p, size_t number,
                        uintptr_t begin, uintptr_t end)
{
    uintptr_t first = p->begin + number * p->stride, last = first + p->row;

    *from = begin > first ? begin - first : 0;
    *to = end < last ? end - first : p->row;
    return begin < last && end > first;
}

static size_t rows_of(const written_rows *p)
{
    return p->stride ? (p->end - p->begin + p->stride - 1) / p->stride : 1;
}

/* Marks the bytes of `p` that `q` covers, and returns how many of them were not marked yet. */
static size_t mark_covered(char *marked, const written_rows *p, const written_rows *q)
{
    size_t rows = rows_of(p), count = 0, from, to;

    for (size_t i = 0; i < rows; i++) {
        uintptr_t row = p->begin + i * p->stride;
        size_t k = q->stride && row > q->begin ? (row - q->begin) / q->stride : 0;
        for (; k < rows_of(q) && q->begin + k * q->stride < row + p->row; k++) {
            uintptr_t first = q->begin + k * q->stride;
            if (!part_of_row(&from, &to, p, i, first, first + q->row))
                continue;
            for (size_t at = from; at < to; at++) {
                count += !marked[i * p->row + at];
                marked[i * p->row + at] = 1;
            }
        }
    }
    return count;
}

/* Inserts a label in alphabetical order, so that the order of the writes does not matter. */
static void insert_label(const char **labels, size_t count, const char *label)
{
    size_t at = count;

    for (; at > 0 && strcmp(labels[at - 1], label) > 0; at--)
        labels[at] = labels[at - 1];
    labels[at] = label;
}

/* Prints the labels of the last writes to the bytes of `p`. */
static void print_source(written_rows p)
{
    size_t bytes = rows_of(&p) * p.row, left = bytes;
    char *marked = calloc(bytes + 1, 1);
    const char *labels[64];
    size_t count = 0;

    for (int i = call_log.n_writes - 1; i >= 0 && left > 0; i--) {
        size_t n_covered = rows_overlap(&call_log.writes[i], &p)
                               ? mark_covered(marked, &p, &call_log.writes[i])
                               : 0;
        left -= n_covered;
        INVAR_CHECK(count < 64);
        if (n_covered > 0)
            insert_label(labels, count++, call_log.writes[i].label);
    }
    free(marked);
    for (size_t i = 0; i < count; i++)
        fprintf(call_log.file, "%s%s", i ? "+" : "", labels[i]);
    if (left > 0)
        fprintf(call_log.file, count ? "+given" : "given");
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void print_shape(const invar_tensor *t)
{
    fprintf(call_log.file, ":%s(", invar_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        fprintf(call_log.file, "%s%" PRId64, i ? "," : "", t->shape[i]);
    fprintf(call_log.file, t->row_stride == invar_tensor_row_elements(t) ? ")" : ")/%" PRId64,
            t->row_stride);
}

static void print_number(const invar_field *f, const void *in)
{
    union {
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
    } value;

    memcpy(&value, in, f->bytes);
    switch (f->kind) {
    case INVAR_FIELD_I32: fprintf(call_log.file, "%" PRId32, value.i32); break;
    case INVAR_FIELD_I64: fprintf(call_log.file, "%" PRId64, value.i64); break;
    case INVAR_FIELD_F32: fprintf(call_log.file, "%a", (double)value.f32); break;
    default: fprintf(call_log.file, "%a", value.f64); break;
    }
}

static void print_segments(const invar_row_offsets *s)
{
    for (int64_t i = 0; i <= s->count; i++)
        fprintf(call_log.file, "%s%" PRId64, i ? "," : "", s->offsets[i]);
}

/* Prints a field. Tensors that are read have a source, other outputs have none. */
static void print_field(const invar_field *f, const void *args)
{
    const void *in = invar_field_in(f, args);

    fprintf(call_log.file, " %s=", f->name);
    switch (f->kind) {
    case INVAR_FIELD_TENSOR:
        if (f->role != INVAR_FIELD_OUT)
            print_source(rows_of_tensor(in));
        print_shape(in);
        break;
    case INVAR_FIELD_SEGMENTS: print_segments(in); break;
    case INVAR_FIELD_ARRAY:
        if (f->role != INVAR_FIELD_OUT)
            print_source(rows_of_bytes(*(const void *const *)in,
                                       (size_t)invar_field_count(f, args) * f->element));
        fprintf(call_log.file, ":%" PRId64, invar_field_count(f, args));
        break;
    case INVAR_FIELD_TENSORS: {
        const invar_tensor *list = *(const invar_tensor *const *)in;
        for (int64_t i = 0; i < invar_field_count(f, args); i++) {
            fprintf(call_log.file, "%s", i ? "," : "");
            print_source(rows_of_tensor(&list[i]));
            print_shape(&list[i]);
        }
        break;
    }
    default: print_number(f, in); break;
    }
}

/* Prints the input whose memory an output shares. */
static void print_in_place(const invar_field *f, const invar_field *fields, int count,
                           const void *args)
{
    const invar_tensor *out = invar_field_in(f, args);

    for (int i = 0; i < count; i++) {
        const invar_tensor *other = invar_field_in(&fields[i], args);
        if (fields[i].kind == INVAR_FIELD_TENSOR && fields[i].role == INVAR_FIELD_IN &&
            invar_field_present(&fields[i], args) && other->data == out->data && out->data)
            fprintf(call_log.file, "=%s", fields[i].name);
    }
}

static void record_output(const invar_field *f, const void *args)
{
    const void *in = invar_field_in(f, args);
    char label[MAX_LABEL];

    snprintf(label, sizeof label, "%d.%s", call_log.count, f->name);
    if (f->kind == INVAR_FIELD_ARRAY) {
        record_write(rows_of_bytes(*(const void *const *)in,
                                   (size_t)invar_field_count(f, args) * f->element),
                     label);
        return;
    }
    record_write(rows_of_tensor(in), label);
    if (((const invar_tensor *)in)->scale)
        record_write(rows_of_bytes(((const invar_tensor *)in)->scale, invar_tensor_scale_bytes(in)),
                     label);
}

static void log_call(invar_op op, const void *args)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    fprintf(call_log.file, "%d %s", call_log.count, invar_op_name(op));
    for (int i = 0; i < count; i++) {
        if (!invar_field_present(&fields[i], args))
            continue;
        print_field(&fields[i], args);
        if (fields[i].kind == INVAR_FIELD_TENSOR && fields[i].role != INVAR_FIELD_IN)
            print_in_place(&fields[i], fields, count, args);
    }
    fprintf(call_log.file, "\n");
    for (int i = 0; i < count && fields[i].role != INVAR_FIELD_IN; i++)
        if (invar_field_present(&fields[i], args))
            record_output(&fields[i], args);
    call_log.count++;
}

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *scratch)         \
    {                                                                                              \
        log_call(INVAR_OP_##ID, args);                                                             \
        return invar_backend_cpu()->ops[INVAR_OP_##ID].run(dev, args, scratch);                    \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status alloc_counted(const invar_device *dev, void **out, size_t bytes,
                                  const char *what)
{
    invar_status status = invar_backend_cpu()->memory.alloc(dev, out, bytes, what);

    // the scratch of an op depends on the machine
    if (status != INVAR_OK || strstr(what, "scratch"))
        return status;
    INVAR_CHECK(call_log.n_blocks < MAX_BLOCKS);
    call_log.blocks[call_log.n_blocks++] = (block){*out, bytes};
    call_log.bytes += bytes;
    call_log.max_bytes = call_log.bytes > call_log.max_bytes ? call_log.bytes : call_log.max_bytes;
    return INVAR_OK;
}

static void free_counted(const invar_device *dev, void *at)
{
    for (int i = 0; i < call_log.n_blocks; i++)
        if (at && call_log.blocks[i].at == at) {
            written_rows freed = rows_of_bytes(at, call_log.blocks[i].bytes);
            call_log.bytes -= call_log.blocks[i].bytes;
            remove_covered(&freed);
            call_log.blocks[i] = call_log.blocks[--call_log.n_blocks];
        }
    invar_backend_cpu()->memory.free(dev, at);
}

static invar_status zero(const invar_device *dev, void *at, size_t bytes)
{
    record_write(rows_of_bytes(at, bytes), "zero");
    return invar_backend_cpu()->memory.zero(dev, at, bytes);
}

static invar_status upload_logged(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    record_write(rows_of_bytes(to, bytes), "put");
    return invar_backend_cpu()->memory.upload(dev, to, from, bytes);
}

/* ---- interface ------------------------------------------------------------------------------- */

const invar_backend *invar_op_call_log_backend(void)
{
    static invar_backend backend;

    backend = *invar_backend_cpu();
    backend.name = "calls";
    backend.memory.alloc = alloc_counted;
    backend.memory.free = free_counted;
    backend.memory.zero = zero;
    backend.memory.upload = upload_logged;
#define INVAR_OP(ID, fn, name, revision, numerics) backend.ops[INVAR_OP_##ID].run = run_##fn;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    return &backend;
}

void invar_op_call_log_begin(void)
{
    if (call_log.file)
        fclose(call_log.file);
    free(call_log.text);
    call_log.text = NULL;
    call_log.file = open_memstream(&call_log.text, &call_log.size);
    INVAR_CHECK(call_log.file);
    call_log.count = call_log.n_writes = 0;
    call_log.max_bytes = call_log.first = call_log.bytes;
}

void invar_op_call_log_name(const invar_tensor *tensor, const char *kind, const char *name)
{
    char label[MAX_LABEL];

    snprintf(label, sizeof label, "%s:%s", kind, name);
    record_write(rows_of_tensor(tensor), label);
}

char *invar_op_call_log_text(void)
{
    char *copy;

    fflush(call_log.file);
    copy = strdup(call_log.text ? call_log.text : "");
    INVAR_CHECK(copy);
    return copy;
}

int invar_op_call_log_count(void)
{
    return call_log.count;
}

size_t invar_op_call_log_bytes(void)
{
    return call_log.max_bytes - call_log.first;
}
