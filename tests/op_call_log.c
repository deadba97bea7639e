/*
 * op_call_log.c - a backend that logs the ops which the engine calls, as text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/op_call_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/op_fields.h"

#define MOST_WRITES 65536
#define MOST_BLOCKS 256
#define LABEL 112

/* Rows of memory whose content has the source `label`. */
typedef struct piece {
    uintptr_t begin, end;
    size_t row, stride;
    char label[LABEL];
} piece;

typedef struct block {
    void *at;
    size_t bytes;
} block;

static struct {
    FILE *file;
    char *text;
    size_t size;
    int count;
    piece pieces[MOST_WRITES]; /* in the order of writes */
    int n_pieces;
    block blocks[MOST_BLOCKS]; /* allocated memory */
    int n_blocks;
    size_t bytes, most, first; /* allocated now, at most, and at the beginning */
} calls;

/* ---- pieces ---------------------------------------------------------------------------------- */

static piece piece_of(const invar_tensor *t)
{
    size_t bits = (size_t)invar_dtype_bits(t->dtype);
    size_t row = (size_t)invar_tensor_row_elements(t) * bits / 8;
    size_t stride = (size_t)t->row_stride * bits / 8;
    uintptr_t at = (uintptr_t)t->data;

    return (piece){at, t->shape[0] > 0 ? at + (size_t)(t->shape[0] - 1) * stride + row : at, row,
                   stride, ""};
}

static piece piece_of_bytes(const void *at, size_t bytes)
{
    return (piece){(uintptr_t)at, (uintptr_t)at + bytes, bytes, bytes, ""};
}

/* Returns whether two pieces overlap; columns of one buffer do not. */
static bool meet(const piece *a, const piece *b)
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

static bool covers(const piece *over, const piece *under)
{
    bool solid = over->row == over->stride;

    return over->begin <= under->begin && over->end >= under->end &&
           (solid || (over->stride == under->stride && over->row >= under->row &&
                      (under->begin - over->begin) % over->stride + under->row <= over->row));
}

static void forget(const piece *covered)
{
    int kept = 0;

    for (int i = 0; i < calls.n_pieces; i++)
        if (!covers(covered, &calls.pieces[i]))
            calls.pieces[kept++] = calls.pieces[i];
    calls.n_pieces = kept;
}

static void note(piece p, const char *label)
{
    INVAR_CHECK(calls.n_pieces < MOST_WRITES && strlen(label) < sizeof p.label);
    if (p.begin == p.end)
        return;
    forget(&p);
    memcpy(p.label, label, strlen(label) + 1);
    calls.pieces[calls.n_pieces++] = p;
}

/* Returns the bytes of one row of a piece that are in [begin, end), from the start of the row. */
static bool part_of_row(size_t *from, size_t *to, const piece *p, size_t number, uintptr_t begin,
                        uintptr_t end)
{
    uintptr_t first = p->begin + number * p->stride, last = first + p->row;

    *from = begin > first ? begin - first : 0;
    *to = end < last ? end - first : p->row;
    return begin < last && end > first;
}

static size_t rows_of(const piece *p)
{
    return p->stride ? (p->end - p->begin + p->stride - 1) / p->stride : 1;
}

/* Marks the bytes of `p` that `q` covers and returns how many were not marked before. */
static size_t mark(char *marked, const piece *p, const piece *q)
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

/* Inserts a label in order of names, so that the order of writes does not matter. */
static void insert_label(const char **labels, size_t count, const char *label)
{
    size_t at = count;

    for (; at > 0 && strcmp(labels[at - 1], label) > 0; at--)
        labels[at] = labels[at - 1];
    labels[at] = label;
}

/* Prints the labels of the last writers of all bytes of the piece. */
static void print_source(piece p)
{
    size_t bytes = rows_of(&p) * p.row, left = bytes;
    char *marked = calloc(bytes + 1, 1);
    const char *labels[64];
    size_t count = 0;

    for (int i = calls.n_pieces - 1; i >= 0 && left > 0; i--) {
        size_t held = meet(&calls.pieces[i], &p) ? mark(marked, &p, &calls.pieces[i]) : 0;
        left -= held;
        INVAR_CHECK(count < 64);
        if (held > 0)
            insert_label(labels, count++, calls.pieces[i].label);
    }
    free(marked);
    for (size_t i = 0; i < count; i++)
        fprintf(calls.file, "%s%s", i ? "+" : "", labels[i]);
    if (left > 0)
        fprintf(calls.file, count ? "+given" : "given");
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void print_shape(const invar_tensor *t)
{
    fprintf(calls.file, ":%s(", invar_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        fprintf(calls.file, "%s%" PRId64, i ? "," : "", t->shape[i]);
    fprintf(calls.file, t->row_stride == invar_tensor_row_elements(t) ? ")" : ")/%" PRId64,
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
    case INVAR_FIELD_I32: fprintf(calls.file, "%" PRId32, value.i32); break;
    case INVAR_FIELD_I64: fprintf(calls.file, "%" PRId64, value.i64); break;
    case INVAR_FIELD_F32: fprintf(calls.file, "%a", (double)value.f32); break;
    default: fprintf(calls.file, "%a", value.f64); break;
    }
}

static void print_segments(const invar_row_offsets *s)
{
    for (int64_t i = 0; i <= s->count; i++)
        fprintf(calls.file, "%s%" PRId64, i ? "," : "", s->offsets[i]);
}

/* Prints a field. Tensors that are read have a source, other outputs have none. */
static void print_field(const invar_field *f, const void *args)
{
    const void *in = invar_field_in(f, args);

    fprintf(calls.file, " %s=", f->name);
    switch (f->kind) {
    case INVAR_FIELD_TENSOR:
        if (f->role != INVAR_FIELD_OUT)
            print_source(piece_of(in));
        print_shape(in);
        break;
    case INVAR_FIELD_SEGMENTS: print_segments(in); break;
    case INVAR_FIELD_ARRAY:
        if (f->role != INVAR_FIELD_OUT)
            print_source(piece_of_bytes(*(const void *const *)in,
                                        (size_t)invar_field_count(f, args) * f->element));
        fprintf(calls.file, ":%" PRId64, invar_field_count(f, args));
        break;
    case INVAR_FIELD_TENSORS: {
        const invar_tensor *list = *(const invar_tensor *const *)in;
        for (int64_t i = 0; i < invar_field_count(f, args); i++) {
            fprintf(calls.file, "%s", i ? "," : "");
            print_source(piece_of(&list[i]));
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
            fprintf(calls.file, "=%s", fields[i].name);
    }
}

static void note_output(const invar_field *f, const void *args)
{
    const void *in = invar_field_in(f, args);
    char label[LABEL];

    snprintf(label, sizeof label, "%d.%s", calls.count, f->name);
    if (f->kind == INVAR_FIELD_ARRAY) {
        note(piece_of_bytes(*(const void *const *)in,
                            (size_t)invar_field_count(f, args) * f->element),
             label);
        return;
    }
    note(piece_of(in), label);
    if (((const invar_tensor *)in)->scale)
        note(piece_of_bytes(((const invar_tensor *)in)->scale, invar_tensor_scale_bytes(in)),
             label);
}

static void note_call(invar_op op, const void *args)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    fprintf(calls.file, "%d %s", calls.count, invar_op_name(op));
    for (int i = 0; i < count; i++) {
        if (!invar_field_present(&fields[i], args))
            continue;
        print_field(&fields[i], args);
        if (fields[i].kind == INVAR_FIELD_TENSOR && fields[i].role != INVAR_FIELD_IN)
            print_in_place(&fields[i], fields, count, args);
    }
    fprintf(calls.file, "\n");
    for (int i = 0; i < count && fields[i].role != INVAR_FIELD_IN; i++)
        if (invar_field_present(&fields[i], args))
            note_output(&fields[i], args);
    calls.count++;
}

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *scratch)         \
    {                                                                                              \
        note_call(INVAR_OP_##ID, args);                                                            \
        return invar_backend_cpu()->ops[INVAR_OP_##ID].run(dev, args, scratch);                    \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status take(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    invar_status status = invar_backend_cpu()->memory.alloc(dev, out, bytes, what);

    // the scratch of an op depends on the machine
    if (status != INVAR_OK || strstr(what, "scratch"))
        return status;
    INVAR_CHECK(calls.n_blocks < MOST_BLOCKS);
    calls.blocks[calls.n_blocks++] = (block){*out, bytes};
    calls.bytes += bytes;
    calls.most = calls.bytes > calls.most ? calls.bytes : calls.most;
    return INVAR_OK;
}

static void give(const invar_device *dev, void *at)
{
    for (int i = 0; i < calls.n_blocks; i++)
        if (at && calls.blocks[i].at == at) {
            piece whole = piece_of_bytes(at, calls.blocks[i].bytes);
            calls.bytes -= calls.blocks[i].bytes;
            forget(&whole);
            calls.blocks[i] = calls.blocks[--calls.n_blocks];
        }
    invar_backend_cpu()->memory.free(dev, at);
}

static invar_status zero(const invar_device *dev, void *at, size_t bytes)
{
    note(piece_of_bytes(at, bytes), "zero");
    return invar_backend_cpu()->memory.zero(dev, at, bytes);
}

static invar_status put(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    note(piece_of_bytes(to, bytes), "put");
    return invar_backend_cpu()->memory.upload(dev, to, from, bytes);
}

/* ---- interface ------------------------------------------------------------------------------- */

const invar_backend *invar_op_call_log_backend(void)
{
    static invar_backend backend;

    backend = *invar_backend_cpu();
    backend.name = "calls";
    backend.memory.alloc = take;
    backend.memory.free = give;
    backend.memory.zero = zero;
    backend.memory.upload = put;
#define INVAR_OP(ID, fn, name, revision, numerics) backend.ops[INVAR_OP_##ID].run = run_##fn;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    return &backend;
}

void invar_op_call_log_begin(void)
{
    if (calls.file)
        fclose(calls.file);
    free(calls.text);
    calls.text = NULL;
    calls.file = open_memstream(&calls.text, &calls.size);
    INVAR_CHECK(calls.file);
    calls.count = calls.n_pieces = 0;
    calls.most = calls.first = calls.bytes;
}

void invar_op_call_log_name(const invar_tensor *tensor, const char *kind, const char *name)
{
    char label[LABEL];

    snprintf(label, sizeof label, "%s:%s", kind, name);
    note(piece_of(tensor), label);
}

char *invar_op_call_log_text(void)
{
    char *copy;

    fflush(calls.file);
    copy = strdup(calls.text ? calls.text : "");
    INVAR_CHECK(copy);
    return copy;
}

int invar_op_call_log_count(void)
{
    return calls.count;
}

size_t invar_op_call_log_bytes(void)
{
    return calls.most - calls.first;
}
