/*
 * tensorboard.c - a run as an event file of TensorBoard.
 *
 * A file is a sequence of records: le64 length, crc of that, the data, crc of it. A record is a
 * protobuf message Event: wall_time = 1 (double), step = 2 (varint), file_version = 3 (text, of the
 * first one only), summary = 5 { value = 1 { tag = 1 (text), simple_value = 2 (float) } }.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "ledger/view/export/export.h"
#include "ledger/view/export/read.h"

#include "base/invar_banned.h"

#define TAG_BYTES 1024 /* eval/DATASET/METRIC is shorter */
#define PATH_BYTES 4096

/* ---- protobuf -------------------------------------------------------------------------------- */

typedef struct message {
    uint8_t data[TAG_BYTES + 128]; /* the tag and what stands around it */
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

static void put_float(message *m, unsigned field, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    put_head(m, field, WIRE_32);
    put_little_endian(m, bits, 4);
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

/* CRC-32C (Castagnoli), turned and offset as the format wants it. */
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

static invar_status write_version(const target *to, int64_t ns)
{
    static const char version[] = "brain.Event:2";
    message event = {.bytes = 0};

    put_seconds(&event, 1, ns);
    put_bytes(&event, 3, version, sizeof version - 1);
    return write_record(to, &event);
}

static invar_status write_scalar(void *payload, const invar_export_scalar *scalar)
{
    message event = {.bytes = 0}, summary = {.bytes = 0}, value = {.bytes = 0};

    if (scalar->name_bytes > TAG_BYTES)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "step %" PRId64 ": a name has %zu bytes: %.60s...",
                          scalar->step, scalar->name_bytes, scalar->name);
    put_bytes(&value, 1, scalar->name, scalar->name_bytes);
    put_float(&value, 2, (float)scalar->value);
    put_bytes(&summary, 1, value.data, value.bytes);
    put_seconds(&event, 1, scalar->ns);
    put_head(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)scalar->step);
    put_bytes(&event, 5, summary.data, summary.bytes);
    return write_record(payload, &event);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* TensorBoard reads every file with this word in its name and shows the sum of them. */
static invar_status refuse_others(const char *folder)
{
    const struct dirent *entry;
    DIR *dir = opendir(folder);
    invar_status status = INVAR_OK;

    if (!dir)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: the folder cannot be read: %s", folder,
                          strerror(errno));
    while (status == INVAR_OK && (entry = readdir(dir)) != NULL) {
        if (strstr(entry->d_name, "tfevents"))
            status = INVAR_FAIL(
                INVAR_E_INVALID, 0,
                "%.1000s has events already, %.1000s: remove them or name another folder", folder,
                entry->d_name);
    }
    closedir(dir);
    return status;
}

static invar_status write_file(const target *to, invar_ledger *ledger, int64_t run, int64_t ns)
{
    INVAR_TRY(write_version(to, ns));
    INVAR_TRY(invar_export_scalars(ledger, run, true, write_scalar, (void *)to));
    if (fflush(to->out) != 0 || invar_fd_sync(fileno(to->out)) != 0)
        return write_failed(to->path);
    return INVAR_OK;
}

/* Opens a file that nobody else has; it is there under its name only when it is whole. */
static invar_status write_and_rename(const char *partial, const char *path, invar_ledger *ledger,
                                     int64_t run, int64_t ns)
{
    int fd = invar_fd_open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    target to = {NULL, path};
    invar_status status;

    if (fd < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: cannot be made: %s", partial,
                          strerror(errno));
    to.out = fdopen(fd, "w");
    if (!to.out) {
        status = write_failed(path);
        close(fd);
    } else {
        status = write_file(&to, ledger, run, ns);
        if (fclose(to.out) != 0 && status == INVAR_OK)
            status = write_failed(path);
    }
    if (status == INVAR_OK && rename(partial, path) != 0)
        status = write_failed(path);
    if (status != INVAR_OK)
        unlink(partial);
    return status;
}

/* The run's name as that of a folder. */
static void make_harmless(char *name)
{
    for (char *c = name; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == '/' || *c == '\\' || *c == 0x7F)
            *c = '_';
    }
    if (name[0] == '.')
        name[0] = '_';
}

invar_status invar_export_tensorboard(const char *folder, invar_ledger *ledger, int64_t run)
{
    char inner[PATH_BYTES], base[PATH_BYTES + 32], partial[INVAR_PATH_SIZE];
    char path[PATH_BYTES + 128];
    invar_export_run found;

    INVAR_TRY(invar_export_find(&found, ledger, run));
    make_harmless(found.name);
    if ((size_t)snprintf(inner, sizeof inner, "%s/%s", folder, found.name) >= sizeof inner)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the folder's name is too long: %.1000s", folder);
    INVAR_TRY(invar_folder_make(inner));
    INVAR_TRY(refuse_others(inner));
    snprintf(base, sizeof base, "%s/.invar-export", inner);
    INVAR_TRY(invar_beside(partial, base, "new"));
    snprintf(path, sizeof path, "%s/events.out.tfevents.%010" PRId64 ".%s", inner,
             found.created_ns / 1000000000, found.uuid);
    return write_and_rename(partial, path, ledger, run, found.created_ns);
}
