/*
 * files.c - list of files with paths, modes and ids, and its serialized form, the checkout index.
 *
 * The index is "invar-files 1 DIGEST\n" and one NUL-terminated record per file: "MODE ID SIZE
 * SECONDS NANOSECONDS INODE PATH", with ID "-" for a folder. DIGEST is the digest of everything
 * after the first line. An index that is damaged in any way counts as absent.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/git/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/sort.h"

#include "base/invar_banned.h"

#define BLOCK_BYTES 65536
#define MOST_FILES 1000000
#define MEMORY_BYTES (1u << 30)
#define HEAD "invar-files 1 "
#define HEAD_BYTES (sizeof HEAD - 1 + INVAR_DIGEST_HEX_SIZE) /* including the newline */

struct invar_files_names {
    invar_files_names *next;
    size_t used;
    char text[BLOCK_BYTES];
};

bool invar_files_is_inside(const char *path, const char *folder)
{
    size_t length = strlen(folder);

    if (length == 1) // the root folder "/"
        return true;
    return strncmp(path, folder, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

/* ---- the list -------------------------------------------------------------------------------- */

void invar_files_release(invar_files *files)
{
    while (files->names) {
        invar_files_names *next = files->names->next;
        invar_free(files->names);
        files->names = next;
    }
    invar_free(files->entries);
    memset(files, 0, sizeof *files);
}

/* Returns true if no part of the path is empty, "." or "..", so that it cannot leave the folder. */
static bool path_is_inside(const char *path)
{
    if (strlen(path) >= INVAR_PATH_SIZE)
        return false;
    for (const char *at = path;; at++) {
        size_t length = strcspn(at, "/");
        if (length == 0 || (at[0] == '.' && (length == 1 || (length == 2 && at[1] == '.'))))
            return false;
        at += length;
        if (!*at)
            return true;
    }
}

static invar_status store_path(const char **out, invar_files *files, const char *path)
{
    size_t bytes = strlen(path) + 1; // at most INVAR_PATH_SIZE
    invar_files_names *block = files->names;

    if (!block || BLOCK_BYTES - block->used < bytes) {
        INVAR_TRY(INVAR_ALLOC(block, 1, "names of files"));
        block->next = files->names;
        block->used = 0;
        files->names = block;
    }
    memcpy(block->text + block->used, path, bytes);
    *out = block->text + block->used;
    block->used += bytes;
    return INVAR_OK;
}

invar_status invar_files_add(invar_files *files, const char *path, invar_files_mode mode,
                             const char *id, void *from)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    invar_files_entry *entry;

    if (!path_is_inside(path)) {
        invar_path_show(shown, path);
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "'%s' cannot be the name of a file of a tree", shown);
    }
    if (files->count >= MOST_FILES)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "a tree of more than %d files", MOST_FILES);
    INVAR_TRY(INVAR_GROW(files->entries, files->capacity, (int64_t)files->count,
                         (int64_t)files->count + 1, "files"));
    entry = &files->entries[files->count];
    memset(entry, 0, sizeof *entry);
    INVAR_TRY(store_path(&entry->path, files, path));
    entry->mode = mode;
    entry->from = from;
    snprintf(entry->id, sizeof entry->id, "%s", id);
    files->count++;
    return INVAR_OK;
}

static int by_path(const void *a, const void *b)
{
    const invar_files_entry *x = a, *y = b;

    return strcmp(x->path, y->path);
}

static bool is_sorted(const invar_files *files)
{
    for (size_t i = 1; i < files->count; i++)
        if (by_path(&files->entries[i - 1], &files->entries[i]) >= 0)
            return false;
    return true;
}

invar_status invar_files_sort(invar_files *files)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    if (is_sorted(files))
        return INVAR_OK;
    INVAR_TRY(invar_sort_items(files->entries, files->count, sizeof *files->entries, by_path));
    for (size_t i = 1; i < files->count; i++)
        if (by_path(&files->entries[i - 1], &files->entries[i]) == 0) {
            invar_path_show(shown, files->entries[i].path);
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the tree has '%s' twice", shown);
        }
    return INVAR_OK;
}

/* ---- the checkout index ---------------------------------------------------------------------- */

/* Parses a number followed by a blank, and moves *at past the blank. */
static bool parse_number(uint64_t *out, const char **at, int base)
{
    char *end;

    if (**at < '0' || **at > '9') // strtoull would accept signs and blanks
        return false;
    *out = strtoull(*at, &end, base);
    *at = end + 1;
    return *end == ' ';
}

static bool parse_id(char out[INVAR_OID_SIZE], const char **at)
{
    size_t length = strcspn(*at, " ");

    if (length == 0 || length >= INVAR_OID_SIZE || (*at)[length] != ' ')
        return false;
    snprintf(out, INVAR_OID_SIZE, "%.*s", (int)length, **at == '-' ? "" : *at);
    *at += length + 1;
    return true;
}

static bool is_mode(uint64_t mode)
{
    return mode == INVAR_FILES_FOLDER || mode == INVAR_FILES_PLAIN || mode == INVAR_FILES_PROGRAM ||
           mode == INVAR_FILES_LINK;
}

/* Parses one record. *fine_out is false if it is malformed. */
static invar_status parse_record(invar_files *out, bool *fine_out, const char *record)
{
    invar_files_entry entry, *added;
    uint64_t mode, seconds, nanoseconds;

    *fine_out = parse_number(&mode, &record, 8) && is_mode(mode) && parse_id(entry.id, &record) &&
                parse_number(&entry.size, &record, 10) && parse_number(&seconds, &record, 10) &&
                parse_number(&nanoseconds, &record, 10) &&
                parse_number(&entry.inode, &record, 10) && path_is_inside(record);
    if (!*fine_out)
        return INVAR_OK;
    INVAR_TRY(invar_files_add(out, record, (invar_files_mode)mode, entry.id, NULL));
    added = &out->entries[out->count - 1];
    added->size = entry.size;
    added->inode = entry.inode;
    added->seconds = (int64_t)seconds;
    added->nanoseconds = (int64_t)nanoseconds;
    return INVAR_OK;
}

/* Returns true if the first line is valid and its digest matches the rest. */
static bool header_is_valid(const char *text, size_t bytes)
{
    invar_digest digest;
    char hex[INVAR_DIGEST_HEX_SIZE];

    if (bytes < HEAD_BYTES || memcmp(text, HEAD, sizeof HEAD - 1) != 0)
        return false;
    invar_hash_bytes(&digest, text + HEAD_BYTES, bytes - HEAD_BYTES);
    invar_digest_format(hex, &digest);
    return memcmp(text + sizeof HEAD - 1, hex, sizeof hex - 1) == 0 && text[HEAD_BYTES - 1] == '\n';
}

invar_status invar_files_parse(invar_files *out, bool *found_out, const char *text, size_t bytes)
{
    bool fine = header_is_valid(text, bytes);
    invar_status status = INVAR_OK;
    size_t at = HEAD_BYTES;

    while (status == INVAR_OK && fine && at < bytes) {
        const char *end = memchr(text + at, '\0', bytes - at);
        fine = end != NULL;
        if (fine)
            status = parse_record(out, &fine, text + at);
        if (fine)
            at = (size_t)(end - text) + 1;
    }
    *found_out = status == INVAR_OK && fine && is_sorted(out);
    if (!*found_out)
        invar_files_release(out);
    return status;
}

invar_status invar_files_read(invar_files *out, bool *found_out, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    invar_status status = invar_file_read(&text, &bytes, path, MEMORY_BYTES);

    *found_out = false;
    if (status == INVAR_E_NOTFOUND || status == INVAR_E_INVALID) {
        invar_error_clear();
        return INVAR_OK;
    }
    INVAR_TRY(status);
    status = invar_files_parse(out, found_out, text, bytes);
    invar_free(text);
    return status;
}

#define RECORD_BYTES (INVAR_PATH_SIZE + INVAR_OID_SIZE + 128)

/*
 * Writes the records to `out` and returns their size in bytes. `out` may be NULL to get the size.
 */
static size_t format_records(char *out, const invar_files *files)
{
    char record[RECORD_BYTES];
    size_t used = 0;

    for (size_t i = 0; i < files->count; i++) {
        const invar_files_entry *e = &files->entries[i];
        int bytes = snprintf(record, sizeof record,
                             "%06o %s %" PRIu64 " %" PRId64 " %" PRId64 " %" PRIu64 " %s",
                             (unsigned)e->mode, e->id[0] ? e->id : "-", e->size, e->seconds,
                             e->nanoseconds, e->inode, e->path);
        if (out)
            memcpy(out + used, record, (size_t)bytes + 1);
        used += (size_t)bytes + 1;
    }
    return used;
}

invar_status invar_files_write(const invar_files *files, const char *path)
{
    const size_t bytes = format_records(NULL, files);
    char *text = NULL, hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(text, HEAD_BYTES + bytes, "the memory of a folder"));
    format_records(text + HEAD_BYTES, files);
    invar_hash_bytes(&digest, text + HEAD_BYTES, bytes);
    invar_digest_format(hex, &digest);
    memcpy(text, HEAD, sizeof HEAD - 1);
    memcpy(text + sizeof HEAD - 1, hex, sizeof hex - 1);
    text[HEAD_BYTES - 1] = '\n';
    status = invar_file_write(path, text, HEAD_BYTES + bytes);
    invar_free(text);
    return status;
}
