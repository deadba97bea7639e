/*
 * dump.c - writes points as .npy files whose number of rows is known only at the end.
 *
 * Data are appended to POINT.npy.tmp after space for a header of fixed size. When the step is
 * finished, the header is written and the file renamed, so a .npy file is always complete. A dump
 * without a folder keeps its rows for the rank that writes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include "base/invar_banned.h"

enum { HEADER = 192, NAME_SIZE = 200, PIECE = 4096 };

/* A file that is being written. */
typedef struct file {
    char name[NAME_SIZE];
    char type[4]; /* numpy type: "<f4" */
    invar_dtype dtype;
    int32_t rank;
    int64_t shape[INVAR_MAX_RANK]; /* shape[0] is the number of rows so far */
    bool whole;
    int64_t *start; /* (starts) first row of each sample */
    int64_t starts, capacity;
} file;

struct invar_dump {
    char folder[INVAR_PATH_SIZE];
    bool keeps; /* no folder: rows are kept for another rank */
    invar_rank_buffer kept;
    int64_t n_kept;
    char *points; /* list of names */
    file *files;
    int64_t count, capacity;
};

/* ---- create and free ------------------------------------------------------------------------- */

invar_status invar_dump_new(invar_dump **out, const char *folder, const char *points)
{
    size_t bytes = strlen(points) + 1;
    invar_dump *dump;

    *out = NULL;
    if (folder && strlen(folder) >= INVAR_PATH_SIZE - NAME_SIZE - 16)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "dump: the folder's path has %zu bytes",
                          strlen(folder));
    if (folder)
        INVAR_TRY(invar_held_folder_make(folder));
    INVAR_TRY(INVAR_ALLOC_SIZED(dump, 1, sizeof *dump + bytes, "a dump"));
    memset(dump, 0, sizeof *dump);
    dump->keeps = !folder;
    if (folder)
        memcpy(dump->folder, folder, strlen(folder) + 1);
    dump->points = (char *)(dump + 1);
    memcpy(dump->points, points, bytes);
    *out = dump;
    return INVAR_OK;
}

static void discard_files(invar_dump *dump)
{
    for (int64_t i = 0; i < dump->count; i++)
        invar_free(dump->files[i].start);
    dump->count = 0;
    invar_rank_buffer_release(&dump->kept);
    dump->n_kept = 0;
}

void invar_dump_free(invar_dump *dump)
{
    if (!dump)
        return;
    discard_files(dump);
    invar_free(dump->files);
    invar_free(dump);
}

/* ---- selection ------------------------------------------------------------------------------- */

/* Glob match. On a mismatch the last star matches one more character. */
bool invar_dump_matches(const char *pattern, size_t length, const char *text)
{
    const char *end = pattern + length, *star = NULL, *again = NULL;

    while (*text) {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            again = text;
        } else if (pattern < end && *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star;
            text = ++again;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*')
        pattern++;
    return pattern == end;
}

bool invar_dump_wants(const invar_dump *dump, const char *point)
{
    const char *at = dump->points;

    for (;;) {
        size_t length = strcspn(at, ",");
        if (length > 0 && invar_dump_matches(at, length, point))
            return true;
        if (at[length] == '\0')
            return false;
        at += length + 1;
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static invar_status io_error(const char *path, const char *what)
{
    int code = errno;

    return INVAR_FAIL(INVAR_E_IO, code, "dump: %s: %s: %s", INVAR_SHOWN_PATH(path), what,
                      strerror(code));
}

static invar_status path_of(char out[INVAR_PATH_SIZE], const invar_dump *dump, const char *name,
                            const char *suffix)
{
    char entry[NAME_SIZE + 32];

    snprintf(entry, sizeof entry, "%s%s", name, suffix);
    return invar_path_join(out, INVAR_PATH_SIZE, dump->folder, entry);
}

static invar_status write_bytes(int fd, const char *path, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        ssize_t done = write(fd, at, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return io_error(path, "cannot be written");
        at += done;
        bytes -= (size_t)done;
    }
    return INVAR_OK;
}

/* Widens bf16 to f32: its bits are the upper half. */
static invar_status write_bf16(int fd, const char *path, const uint16_t *data, int64_t count)
{
    uint32_t wide[PIECE];

    while (count > 0) {
        int64_t n = count < PIECE ? count : PIECE;
        for (int64_t i = 0; i < n; i++)
            wide[i] = (uint32_t)data[i] << 16;
        INVAR_TRY(write_bytes(fd, path, wide, (size_t)n * sizeof *wide));
        data += n;
        count -= n;
    }
    return INVAR_OK;
}

static invar_status write_rows(int fd, const char *path, const invar_tensor *t, int64_t rows)
{
    int64_t columns = invar_tensor_row_elements(t);
    size_t size = (size_t)invar_dtype_bits(t->dtype) / 8;
    const char *at = t->data;

    for (int64_t i = 0; i < rows; i++, at += (size_t)t->row_stride * size) {
        if (t->dtype == INVAR_DTYPE_BF16)
            INVAR_TRY(write_bf16(fd, path, (const uint16_t *)(const void *)at, columns));
        else
            INVAR_TRY(write_bytes(fd, path, at, (size_t)columns * size));
    }
    return INVAR_OK;
}

/* Version 1.0, padded so that the data are aligned and the header has a fixed size. */
static void make_header(char out[HEADER], const char *type, const int64_t *shape, int32_t rank)
{
    enum { FIXED = 10, ROOM = HEADER - FIXED };
    int used;

    memset(out, ' ', HEADER);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (char)(ROOM & 255);
    out[9] = (char)(ROOM >> 8);
    used = FIXED +
           snprintf(out + FIXED, ROOM, "{'descr': '%s', 'fortran_order': False, 'shape': (", type);
    for (int32_t i = 0; i < rank; i++)
        used += snprintf(out + used, (size_t)(HEADER - used), "%" PRId64 ",%s", shape[i],
                         i + 1 < rank ? " " : "");
    used += snprintf(out + used, (size_t)(HEADER - used), "), }");
    INVAR_CHECK(used < HEADER);
    out[used] = ' ';
    out[HEADER - 1] = '\n';
}

/* ---- adding rows ----------------------------------------------------------------------------- */

static invar_status check_name(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789._-";
    size_t length = strlen(name);

    if (length > 0 && length < NAME_SIZE && strspn(name, allowed) == length && name[0] != '.')
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "dump: point \"%s\" cannot be a file's name: 1 to %d of A-Z a-z 0-9 . _ -",
                      INVAR_QUOTED_BYTES(INVAR_TEXT_QUOTE_SIZE, name, length), NAME_SIZE - 1);
}

static invar_status type_of(char out[4], const char *name, invar_dtype dtype)
{
    const char *type = dtype == INVAR_DTYPE_F32 || dtype == INVAR_DTYPE_BF16 ? "<f4"
                       : dtype == INVAR_DTYPE_I32                            ? "<i4"
                       : dtype == INVAR_DTYPE_I64                            ? "<i8"
                                                                             : NULL;

    if (!type)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "dump: point \"%.100s\" is of type %s, which numpy does not have", name,
                          invar_dtype_name(dtype));
    memcpy(out, type, 4);
    return INVAR_OK;
}

/* Finds the file of a point, or creates it. */
static invar_status find_file(file **out, invar_dump *dump, const file *like)
{
    char path[INVAR_PATH_SIZE], header[HEADER] = {0};

    for (int64_t i = 0; i < dump->count; i++) {
        file *f = &dump->files[i];
        if (strcmp(f->name, like->name) != 0)
            continue;
        if (f->whole || like->whole || f->dtype != like->dtype || f->rank != like->rank ||
            memcmp(f->shape + 1, like->shape + 1, sizeof f->shape - sizeof *f->shape) != 0)
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "dump: point \"%.100s\" comes again, whole or with another shape",
                              like->name);
        *out = f;
        return INVAR_OK;
    }
    INVAR_TRY(INVAR_GROW(dump->files, dump->capacity, dump->count, dump->count + 1, "a dump"));
    INVAR_TRY(path_of(path, dump, like->name, ".npy.tmp"));
    INVAR_TRY(invar_file_write(path, header, sizeof header));
    *out = &dump->files[dump->count++];
    **out = *like;
    return INVAR_OK;
}

static invar_status append_starts(file *f, const invar_row_offsets *samples)
{
    for (int64_t i = 0; i < samples->count; i++) {
        INVAR_TRY(INVAR_GROW(f->start, f->capacity, f->starts, f->starts + 1, "a dump"));
        f->start[f->starts++] = f->shape[0] + samples->offsets[i];
    }
    return INVAR_OK;
}

static invar_status append_rows(file *f, const invar_dump *dump, const invar_tensor *tensor,
                                int64_t rows)
{
    char path[INVAR_PATH_SIZE];
    invar_status status;
    int fd;

    INVAR_TRY(path_of(path, dump, f->name, ".npy.tmp"));
    fd = invar_fd_open(path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    if (fd < 0)
        return io_error(path, "cannot be opened");
    status = write_rows(fd, path, tensor, rows);
    if (close(fd) != 0 && status == INVAR_OK)
        status = io_error(path, "cannot be closed");
    f->shape[0] += rows;
    return status;
}

/* Header of packed rows; sample offsets (samples + 1) and the rows follow. */
typedef struct packed_rows {
    char name[NAME_SIZE];
    int64_t dtype, rank, samples;
    int64_t shape[INVAR_MAX_RANK];
} packed_rows;

static size_t row_bytes(const invar_tensor *t)
{
    return (size_t)invar_tensor_row_elements(t) * (size_t)invar_dtype_bits(t->dtype) / 8;
}

/* Keeps rows for another rank. Complete tensors are known to that rank too. */
static invar_status keep_rows(invar_dump *dump, const char *point, const invar_tensor *t,
                              const invar_row_offsets *samples)
{
    packed_rows p = {.dtype = t->dtype, .rank = t->rank};
    size_t row = row_bytes(t), stride = (size_t)t->row_stride * row;
    void *to;

    if (!samples)
        return INVAR_OK;
    stride /= (size_t)invar_tensor_row_elements(t);
    p.samples = samples->count;
    memcpy(p.name, point, strlen(point) + 1);
    memcpy(p.shape, t->shape, sizeof p.shape);
    p.shape[0] = samples->offsets[samples->count];
    INVAR_TRY(invar_rank_buffer_put(&dump->kept, &p, 1, sizeof p));
    INVAR_TRY(invar_rank_buffer_put(&dump->kept, samples->offsets, (size_t)p.samples + 1,
                                    sizeof *samples->offsets));
    INVAR_TRY(invar_rank_buffer_add(&to, &dump->kept, (size_t)p.shape[0], row));
    for (int64_t i = 0; i < p.shape[0]; i++)
        memcpy((char *)to + (size_t)i * row, (const char *)t->data + (size_t)i * stride, row);
    dump->n_kept++;
    return INVAR_OK;
}

invar_status invar_dump_rows(invar_dump *dump, const char *point, const invar_tensor *tensor,
                             const invar_row_offsets *samples)
{
    int64_t rows = samples ? samples->offsets[samples->count] : tensor->shape[0];
    file like = {.dtype = tensor->dtype, .rank = tensor->rank, .whole = !samples}, *f;

    INVAR_TRY(check_name(point));
    if (dump->keeps)
        return keep_rows(dump, point, tensor, samples);
    INVAR_TRY(type_of(like.type, point, tensor->dtype));
    memcpy(like.name, point, strlen(point) + 1);
    for (int32_t i = 1; i < tensor->rank; i++)
        like.shape[i] = tensor->shape[i];
    INVAR_TRY(find_file(&f, dump, &like));
    if (samples)
        INVAR_TRY(append_starts(f, samples));
    return append_rows(f, dump, tensor, rows);
}

invar_status invar_dump_pack(invar_rank_buffer *to, invar_dump *dump)
{
    INVAR_TRY(invar_rank_buffer_put(to, &dump->n_kept, 1, sizeof dump->n_kept));
    INVAR_TRY(invar_rank_buffer_put(to, dump->kept.data, dump->kept.bytes, 1));
    dump->kept.bytes = 0;
    dump->n_kept = 0;
    return INVAR_OK;
}

static bool is_plausible(const packed_rows *p)
{
    bool fits = memchr(p->name, '\0', sizeof p->name) && p->rank >= 1 &&
                p->rank <= INVAR_MAX_RANK && p->dtype >= 0 && p->dtype < INVAR_DTYPE_COUNT &&
                p->samples >= 0 && p->samples < INT64_MAX;

    for (int64_t i = 0; fits && i < p->rank; i++)
        fits = p->shape[i] >= 0 && p->shape[i] <= INT32_MAX;
    return fits;
}

static invar_status unpack_rows(invar_dump *dump, invar_rank_buffer_reader *from)
{
    const void *item, *start, *rows;
    const packed_rows *p;
    invar_tensor t = {0};

    INVAR_TRY(invar_rank_buffer_take(&item, from, 1, sizeof *p));
    p = item;
    if (!is_plausible(p))
        return invar_rank_buffer_damaged();
    t.dtype = (invar_dtype)p->dtype;
    t.rank = (int32_t)p->rank;
    memcpy(t.shape, p->shape, sizeof p->shape);
    t.row_stride = invar_tensor_row_elements(&t);
    INVAR_TRY(invar_rank_buffer_take(&start, from, p->samples + 1, sizeof(int64_t)));
    INVAR_TRY(invar_rank_buffer_take(&rows, from, p->shape[0], row_bytes(&t)));
    if (((const int64_t *)start)[p->samples] != p->shape[0])
        return invar_rank_buffer_damaged();
    t.data = (void *)(uintptr_t)rows;
    return invar_dump_rows(dump, p->name, &t, &(invar_row_offsets){start, p->samples});
}

invar_status invar_dump_unpack(invar_dump *dump, invar_rank_buffer_reader *from)
{
    const void *count;

    INVAR_TRY(invar_rank_buffer_take(&count, from, 1, sizeof(int64_t)));
    for (int64_t i = 0; i < *(const int64_t *)count; i++)
        INVAR_TRY(unpack_rows(dump, from));
    return INVAR_OK;
}

/* ---- completion ------------------------------------------------------------------------------ */

static invar_status complete_file(const invar_dump *dump, const file *f)
{
    char path[INVAR_PATH_SIZE], final[INVAR_PATH_SIZE], header[HEADER];
    ssize_t done;
    int fd;

    make_header(header, f->type, f->shape, f->rank);
    INVAR_TRY(path_of(path, dump, f->name, ".npy.tmp"));
    INVAR_TRY(path_of(final, dump, f->name, ".npy"));
    fd = invar_fd_open(path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return io_error(path, "cannot be opened");
    do
        done = pwrite(fd, header, sizeof header, 0);
    while (done < 0 && errno == EINTR);
    if (close(fd) != 0 || done != (ssize_t)sizeof header)
        return io_error(path, "cannot be completed");
    if (rename(path, final) != 0)
        return io_error(final, "cannot be put in place");
    return INVAR_OK;
}

/* Writes the first row of each sample and the number of rows. */
static invar_status write_starts(const invar_dump *dump, file *f)
{
    INVAR_AUTO_FREE char *block = NULL;
    int64_t count = f->starts + 1;
    size_t bytes = (size_t)count * sizeof *f->start;
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(INVAR_GROW(f->start, f->capacity, f->starts, count, "a dump"));
    f->start[f->starts] = f->shape[0];
    INVAR_TRY(path_of(path, dump, f->name, ".starts.npy"));
    INVAR_TRY(INVAR_ALLOC(block, HEADER + bytes, "a dump"));
    make_header(block, "<i8", &count, 1);
    memcpy(block + HEADER, f->start, bytes);
    return invar_file_write(path, block, HEADER + bytes);
}

invar_status invar_dump_finish(int64_t *count_out, invar_dump *dump)
{
    *count_out = dump->count;
    for (int64_t i = 0; i < dump->count; i++) {
        file *f = &dump->files[i];
        INVAR_TRY(complete_file(dump, f));
        if (!f->whole)
            INVAR_TRY(write_starts(dump, f));
    }
    discard_files(dump);
    return INVAR_OK;
}
