/*
 * tensorboard.c - writes TensorBoard event files, at once or while a run is written.
 *
 * A growing file always has the bytes of an export of the same steps: both are read from the ledger
 * by the same statement and written by the same code.
 *
 * File format: records of le64 length, masked crc of the length, data, masked crc of the data. The
 * data are a protobuf message Event: wall_time = 1 (double), step = 2 (varint), file_version = 3
 * (text, only in the first record), summary = 5 { value = 1 { tag = 1 (text), simple_value = 2
 * (float) } }.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/temp_name.h"
#include "ledger/view/export/export.h"
#include "ledger/view/export/scalars.h"

#include "base/invar_banned.h"

#define TAG_BYTES 1024 /* longer than any eval/DATASET/METRIC */
#define PATH_BYTES 4096

/* ---- protobuf -------------------------------------------------------------------------------- */

typedef struct message {
    uint8_t data[TAG_BYTES + 128]; /* a tag and the fields around it */
    size_t bytes;
} message;

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_little_endian(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        m->data[m->bytes++] = (uint8_t)(value >> 8 * i);
}

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        m->data[m->bytes++] = (uint8_t)(value | 0x80);
    m->data[m->bytes++] = (uint8_t)value;
}

static void put_head(message *m, unsigned field, unsigned wire)
{
    put_varint(m, field << 3 | wire);
}

static void put_bytes(message *m, unsigned field, const void *data, size_t bytes)
{
    put_head(m, field, WIRE_BYTES);
    put_varint(m, bytes);
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void put_seconds(message *m, unsigned field, int64_t ns)
{
    double seconds = (double)ns / 1e9;
    uint64_t bits;

    memcpy(&bits, &seconds, sizeof bits);
    put_head(m, field, WIRE_64);
    put_little_endian(m, bits, 8);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Returns CRC-32C (Castagnoli), rotated and offset as the format requires. */
static uint32_t masked_crc(const uint8_t *data, size_t bytes)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (UINT32_C(0x82F63B78) & (0 - (crc & 1)));
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8);
}

static invar_status write_failed(const char *path)
{
    return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: cannot be written: %s", path, strerror(errno));
}

typedef struct target {
    FILE *out;
    const char *path;
} target;

static invar_status write_record(const target *to, const message *m)
{
    message head = {.bytes = 0}, tail = {.bytes = 0};

    put_little_endian(&head, m->bytes, 8);
    put_little_endian(&head, masked_crc(head.data, 8), 4);
    put_little_endian(&tail, masked_crc(m->data, m->bytes), 4);
    if (fwrite(head.data, 1, head.bytes, to->out) != head.bytes ||
        fwrite(m->data, 1, m->bytes, to->out) != m->bytes ||
        fwrite(tail.data, 1, tail.bytes, to->out) != tail.bytes)
        return write_failed(to->path);
    return INVAR_OK;
}

static invar_status write_scalar(void *payload, const invar_export_scalar *scalar)
{
    message event = {.bytes = 0}, summary = {.bytes = 0}, value = {.bytes = 0};
    float number = (float)scalar->value;
    uint32_t bits;

    if (scalar->name_bytes > TAG_BYTES)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "step %" PRId64 ": a name has %zu bytes: %.60s...",
                          scalar->step, scalar->name_bytes, scalar->name);
    put_bytes(&value, 1, scalar->name, scalar->name_bytes);
    memcpy(&bits, &number, sizeof bits);
    put_head(&value, 2, WIRE_32);
    put_little_endian(&value, bits, 4);
    put_bytes(&summary, 1, value.data, value.bytes);
    put_seconds(&event, 1, scalar->ns);
    put_head(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)scalar->step);
    put_bytes(&event, 5, summary.data, summary.bytes);
    return write_record(payload, &event);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Paths of the events of a run. */
typedef struct place {
    invar_export_run run;
    char folder[PATH_BYTES];       /* FOLDER/NAME */
    char file[128];                /* name of the event file in the folder */
    char path[PATH_BYTES + 136];   /* path of the event file */
    char partial[INVAR_PATH_SIZE]; /* path of the file while it is incomplete */
} place;

/*
 * Fails if the folder has an event file other than `own`. TensorBoard reads every file with
 * "tfevents" in its name and shows all of them together.
 */
static invar_status check_no_other_events(const char *folder, const char *own)
{
    const struct dirent *entry;
    DIR *dir = opendir(folder);
    invar_status status = INVAR_OK;

    if (!dir)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: the folder cannot be read: %s", folder,
                          strerror(errno));
    while (status == INVAR_OK && (entry = readdir(dir)) != NULL) {
        if (strstr(entry->d_name, "tfevents") && strcmp(entry->d_name, own) != 0)
            status = INVAR_FAIL(
                INVAR_E_INVALID, 0,
                "%.1000s has events already, %.1000s: remove them or name another folder", folder,
                entry->d_name);
    }
    closedir(dir);
    return status;
}

/* Joins the folder and the name of a run, without characters that a folder must not have. */
static invar_status join_folder(char out[PATH_BYTES], const char *folder, const char *name)
{
    char harmless[INVAR_LEDGER_NAME_BYTES + 1];

    (void)snprintf(harmless, sizeof harmless, "%s", name);
    for (char *c = harmless; *c; c++)
        if ((unsigned char)*c < ' ' || strchr("/\\\x7F", *c) || (c == harmless && *c == '.'))
            *c = '_';
    if ((size_t)snprintf(out, PATH_BYTES, "%s/%s", folder, harmless) >= PATH_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the folder's name is too long: %.1000s", folder);
    return INVAR_OK;
}

/* Sets the paths and makes the folder. With `goes_on` it may have the event file of this run. */
static invar_status make_paths(place *out, const char *folder, invar_ledger *ledger, int64_t run,
                               bool goes_on)
{
    char base[PATH_BYTES + 32];

    INVAR_TRY(invar_export_find(&out->run, ledger, run));
    INVAR_TRY(join_folder(out->folder, folder, out->run.name));
    (void)snprintf(out->file, sizeof out->file, "events.out.tfevents.%010" PRId64 ".%s",
                   out->run.created_ns / 1000000000, out->run.uuid);
    (void)snprintf(out->path, sizeof out->path, "%s/%s", out->folder, out->file);
    INVAR_TRY(invar_held_folder_make(out->folder));
    INVAR_TRY(check_no_other_events(out->folder, goes_on ? out->file : ""));
    (void)snprintf(base, sizeof base, "%s/.invar-export", out->folder);
    return invar_temp_name(out->partial, base, "new");
}

static invar_status write_file(const target *to, invar_ledger *ledger, const place *at, int64_t run,
                               const invar_export_range *range)
{
    static const char version[] = "brain.Event:2";
    message event = {.bytes = 0};

    put_seconds(&event, 1, at->run.created_ns);
    put_bytes(&event, 3, version, sizeof version - 1);
    INVAR_TRY(write_record(to, &event));
    INVAR_TRY(invar_export_scalars(ledger, run, range, write_scalar, (void *)to));
    if (fflush(to->out) != 0 || invar_fd_sync(fileno(to->out)) != 0)
        return write_failed(to->path);
    return INVAR_OK;
}

/* Writes the events to the partial file, which only this process uses; a failure removes it. */
static invar_status write_partial(const place *at, invar_ledger *ledger, int64_t run,
                                  const invar_export_range *range)
{
    int fd = invar_fd_open(at->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    target to = {NULL, at->path};
    invar_status status;

    if (fd < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: cannot be made: %s", at->partial,
                          strerror(errno));
    to.out = fdopen(fd, "w");
    if (!to.out) {
        status = write_failed(at->path);
        close(fd);
    } else {
        status = write_file(&to, ledger, at, run, range);
        if (fclose(to.out) != 0 && status == INVAR_OK)
            status = write_failed(at->path);
    }
    if (status != INVAR_OK)
        unlink(at->partial);
    return status;
}

/* Renames the complete partial file to the event file. */
static invar_status rename_partial(const place *at)
{
    invar_status status;

    if (rename(at->partial, at->path) == 0)
        return INVAR_OK;
    status = write_failed(at->path);
    unlink(at->partial);
    return status;
}

invar_status invar_export_tensorboard(const char *folder, invar_ledger *ledger, int64_t run)
{
    const invar_export_range all = {.gauges = true, .after = -2, .upto = INT64_MAX};
    place at;

    INVAR_TRY(make_paths(&at, folder, ledger, run, false));
    INVAR_TRY(write_partial(&at, ledger, run, &all));
    return rename_partial(&at);
}

/* ---- a file that grows ----------------------------------------------------------------------- */

struct invar_tensorboard_writer {
    target to; /* open event file; owned */
    invar_ledger *ledger;
    int64_t run, told; /* number of the run, and last step in the file */
    place at;
};

invar_status invar_tensorboard_writer_check(const char *folder, const char *name, bool begins)
{
    char inner[PATH_BYTES], file[INVAR_PATH_SIZE];

    INVAR_TRY(join_folder(inner, folder, name));
    INVAR_TRY(invar_path_join(file, sizeof file, inner, "events"));
    INVAR_TRY(invar_path_check_creatable(file));
    return begins && invar_path_exists(inner) ? check_no_other_events(inner, "") : INVAR_OK;
}

/* Returns the size of `made` if `there` begins with the same bytes, else -1. */
static int64_t compare_beginning(FILE *there, FILE *made)
{
    int64_t bytes = 0;
    int byte;

    while ((byte = getc(made)) != EOF) {
        if (getc(there) != byte)
            return -1;
        bytes++;
    }
    return bytes;
}

/*
 * Puts the partial file in place. An event file that begins with the same bytes is cut after them
 * instead, so that a TensorBoard that has it open can continue to read. Any other file of that name
 * is replaced.
 */
static invar_status keep_or_replace(const place *at)
{
    FILE *there = fopen(at->path, "rbe"), *made = fopen(at->partial, "rbe");
    int64_t bytes = there && made ? compare_beginning(there, made) : -1;

    if (there)
        fclose(there);
    if (made)
        fclose(made);
    if (bytes < 0 || truncate(at->path, (off_t)bytes) != 0)
        return rename_partial(at);
    unlink(at->partial);
    return INVAR_OK;
}

invar_status invar_tensorboard_writer_open(invar_tensorboard_writer **out, const char *folder,
                                           invar_ledger *ledger, int64_t run, int64_t after)
{
    const invar_export_range past = {.gauges = true, .after = -2, .upto = after};
    invar_tensorboard_writer *e;
    invar_status status;
    int fd = -1;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(e, 1, "events of a run"));
    *e = (invar_tensorboard_writer){.ledger = ledger, .run = run, .told = after};
    e->to.path = e->at.path;
    status = make_paths(&e->at, folder, ledger, run, true);
    if (status == INVAR_OK)
        status = write_partial(&e->at, ledger, run, &past);
    if (status == INVAR_OK)
        status = keep_or_replace(&e->at);
    if (status == INVAR_OK) {
        fd = invar_fd_open(e->at.path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
        e->to.out = fd >= 0 ? fdopen(fd, "a") : NULL;
        if (!e->to.out)
            status = write_failed(e->at.path);
    }
    if (status == INVAR_OK) {
        *out = e;
        return status;
    }
    if (fd >= 0)
        close(fd);
    invar_free(e);
    return status;
}

invar_status invar_tensorboard_writer_add(invar_tensorboard_writer *e, int64_t upto)
{
    const invar_export_range range = {.gauges = true, .after = e->told, .upto = upto};
    struct stat info;

    if (upto <= e->told)
        return INVAR_OK;
    INVAR_TRY(invar_export_scalars(e->ledger, e->run, &range, write_scalar, &e->to));
    if (fflush(e->to.out) != 0)
        return write_failed(e->to.path);
    e->told = upto;
    // writing to a removed file would lose data without an error
    return fstat(fileno(e->to.out), &info) == 0 && info.st_nlink > 0
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_IO, 0, "%.1000s: was removed", e->to.path);
}

void invar_tensorboard_writer_close(invar_tensorboard_writer *e)
{
    if (!e)
        return;
    fclose(e->to.out);
    invar_free(e);
}
