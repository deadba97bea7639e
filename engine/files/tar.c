/*
 * tar.c - writes and unpacks POSIX ustar archives of plain files.
 *
 * For a given name and size there is exactly one valid header. The reader takes these two values
 * from a header, makes the header again and compares all 512 bytes, so an archive cannot ask for
 * anything else (links, absolute paths, modes).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define BLOCK 512
#define PIECE ((size_t)1 << 20)
#define MAX_DEPTH 8

/* ---- headers --------------------------------------------------------------------------------- */

#define MAGIC "ustar"

/* offsets of the fields of a header */
enum {
    AT_NAME = 0,
    AT_MODE = 100,
    AT_UID = 108,
    AT_GID = 116,
    AT_SIZE = 124,
    AT_TIME = 136,
    AT_SUM = 148,
    AT_TYPE = 156,
    AT_MAGIC = 257,
    AT_MAJOR = 329,
    AT_MINOR = 337,
    SIZE_DIGITS = 11
};

static void put_field(uint8_t header[BLOCK], int at, const char *text)
{
    memcpy(header + at, text, strlen(text));
}

static void make_header(uint8_t out[BLOCK], const char *name, int64_t bytes)
{
    char digits[24];
    unsigned sum = 0;

    memset(out, 0, BLOCK);
    put_field(out, AT_NAME, name);
    put_field(out, AT_MODE, "0000644");
    put_field(out, AT_UID, "0000000");
    put_field(out, AT_GID, "0000000");
    (void)snprintf(digits, sizeof digits, "%0*" PRIo64, SIZE_DIGITS, (uint64_t)bytes);
    put_field(out, AT_SIZE, digits);
    put_field(out, AT_TIME, "00000000000");
    put_field(out, AT_SUM, "        ");
    put_field(out, AT_TYPE, "0");
    put_field(out, AT_MAGIC, MAGIC);
    put_field(out, AT_MAGIC + 6, "00");
    put_field(out, AT_MAJOR, "0000000");
    put_field(out, AT_MINOR, "0000000");
    for (int i = 0; i < BLOCK; i++)
        sum += out[i];
    (void)snprintf(digits, sizeof digits, "%06o", sum);
    memcpy(out + AT_SUM, digits, 7); // including its NUL; the blank after it stays
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/*
 * Checks a name. No component may begin with a dot, which excludes "..", and none is empty, which
 * excludes absolute paths.
 */
static bool is_name(const char *name)
{
    size_t length = strlen(name);
    int depth = 1;

    if (length == 0 || length > INVAR_TAR_NAME_BYTES)
        return false;
    for (size_t i = 0; i < length; i++) {
        bool first = i == 0 || name[i - 1] == '/';
        if (first ? !is_name_char(name[i]) || name[i] == '.'
                  : name[i] != '/' && !is_name_char(name[i]))
            return false;
        depth += name[i] == '/';
    }
    return name[length - 1] != '/' && depth <= MAX_DEPTH;
}

/* ---- lists ----------------------------------------------------------------------------------- */

void invar_tar_list_release(invar_tar_list *list)
{
    invar_free(list->items);
    *list = (invar_tar_list){0};
}

const invar_tar_member *invar_tar_find(const invar_tar_list *list, const char *name)
{
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i];
    return NULL;
}

static invar_status fail_member(invar_status status, const char *path, const char *name,
                                const char *why)
{
    return INVAR_FAIL(status, 0, "%s: the member \"%s\" %s", INVAR_SHOWN_PATH(path),
                      INVAR_QUOTED(name), why);
}

/* Appends a member to a list after checking its name and size. `as` is the status of a failure. */
static invar_status append_member(invar_tar_member **out, invar_tar_list *list, const char *path,
                                  const char *name, int64_t bytes, invar_status as)
{
    if (!is_name(name))
        return fail_member(as, path, name, "has a name that no member may have");
    if (invar_tar_find(list, name))
        return fail_member(as, path, name, "is there twice");
    if (bytes > INVAR_TAR_MAX_BYTES)
        return fail_member(as, path, name, "has 8 GiB or more: a tar archive cannot hold it");
    if (list->count == INVAR_TAR_MAX_MEMBERS)
        return fail_member(as, path, name, "is one too many");
    INVAR_TRY(INVAR_GROW(list->items, list->capacity, list->count, list->count + 1, "members"));
    *out = &list->items[list->count++];
    memset(*out, 0, sizeof **out);
    memcpy((*out)->name, name, strlen(name));
    (*out)->bytes = bytes;
    return INVAR_OK;
}

static invar_status io_error(const char *path, const char *what)
{
    int code = errno;

    return INVAR_FAIL(code == ENOENT ? INVAR_E_NOTFOUND : INVAR_E_IO, code, "%s: %s: %s",
                      INVAR_SHOWN_PATH(path), what, strerror(code));
}

/* ---- writing --------------------------------------------------------------------------------- */

struct invar_tar_writer {
    invar_file_writer *file;
    invar_tar_list list;
    char path[INVAR_PATH_SIZE];
    uint8_t piece[PIECE];
};

invar_status invar_tar_writer_open(invar_tar_writer **out, const char *path)
{
    invar_tar_writer *writer;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(writer, 1, "an archive"));
    (void)snprintf(writer->path, sizeof writer->path, "%s", path);
    status = invar_path_check_output(path, MAGIC, AT_MAGIC);
    if (status == INVAR_OK)
        status = invar_file_writer_open(&writer->file, path);
    if (status == INVAR_OK)
        *out = writer;
    else
        invar_free(writer);
    return status;
}

void invar_tar_writer_close(invar_tar_writer *writer)
{
    if (!writer)
        return;
    invar_file_writer_close(writer->file);
    invar_tar_list_release(&writer->list);
    invar_free(writer);
}

const invar_tar_list *invar_tar_members(const invar_tar_writer *writer)
{
    return &writer->list;
}

static size_t padding(int64_t bytes)
{
    return (size_t)((BLOCK - bytes % BLOCK) % BLOCK);
}

static invar_status begin_member(invar_tar_member **out, invar_tar_writer *writer, const char *name,
                                 int64_t bytes)
{
    uint8_t header[BLOCK];

    INVAR_TRY(append_member(out, &writer->list, writer->path, name, bytes, INVAR_E_INVALID));
    make_header(header, name, bytes);
    return invar_file_writer_put(writer->file, header, sizeof header);
}

static invar_status pad_member(invar_tar_writer *writer, int64_t bytes)
{
    static const uint8_t zeros[BLOCK];

    return invar_file_writer_put(writer->file, zeros, padding(bytes));
}

invar_status invar_tar_add(invar_tar_writer *writer, const char *name, const void *data,
                           size_t bytes)
{
    invar_tar_member *member;

    INVAR_TRY(begin_member(&member, writer, name, (int64_t)bytes));
    invar_hash_bytes(&member->hash, data, bytes);
    INVAR_TRY(invar_file_writer_put(writer->file, data, bytes));
    return pad_member(writer, (int64_t)bytes);
}

static invar_status add_open(invar_tar_writer *writer, const char *name, const char *path, int fd)
{
    invar_tar_member *member;
    invar_hasher hasher;
    struct stat info;
    int64_t left;

    if (fstat(fd, &info) != 0)
        return io_error(path, "cannot be asked");
    if (!S_ISREG(info.st_mode))
        return fail_member(INVAR_E_INVALID, path, name, "is no regular file");
    INVAR_TRY(begin_member(&member, writer, name, info.st_size));
    invar_hasher_init(&hasher);
    for (left = info.st_size; left > 0;) {
        size_t most = left < (int64_t)PIECE ? (size_t)left : PIECE;
        ssize_t n = read(fd, writer->piece, most);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(path, "cannot be read");
        if (n == 0)
            return fail_member(INVAR_E_IO, path, name, "became shorter while it was read");
        invar_hasher_update(&hasher, writer->piece, (size_t)n);
        INVAR_TRY(invar_file_writer_put(writer->file, writer->piece, (size_t)n));
        left -= n;
    }
    invar_hasher_final(&member->hash, &hasher);
    return pad_member(writer, info.st_size);
}

invar_status invar_tar_add_file(invar_tar_writer *writer, const char *name, const char *path)
{
    int fd = invar_fd_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    invar_status status;

    if (fd < 0)
        return io_error(path, "cannot be opened");
    status = add_open(writer, name, path, fd);
    (void)close(fd);
    return status;
}

invar_status invar_tar_commit(invar_tar_writer *writer)
{
    memset(writer->piece, 0, 2 * BLOCK); // two empty blocks end an archive
    INVAR_TRY(invar_file_writer_put(writer->file, writer->piece, 2 * BLOCK));
    return invar_file_writer_commit(writer->file);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct tar_reader {
    const char *path, *folder;
    int fd;
    int64_t left; /* bytes of the archive that were not read yet */
    uint8_t *piece;
} tar_reader;

static invar_status fail_damaged(const tar_reader *r, const char *why)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: %s", INVAR_SHOWN_PATH(r->path), why);
}

/* Reads exactly `bytes` bytes; fails if the archive ends before. */
static invar_status read_bytes(tar_reader *r, void *out, size_t bytes)
{
    uint8_t *to = out;

    if (r->left < (int64_t)bytes)
        return fail_damaged(r, "the archive ends too early");
    r->left -= (int64_t)bytes;
    while (bytes > 0) {
        ssize_t n = read(r->fd, to, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(r->path, "cannot be read");
        if (n == 0)
            return fail_damaged(r, "the archive ends too early");
        to += n;
        bytes -= (size_t)n;
    }
    return INVAR_OK;
}

static bool is_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Reads a header; *name_out is "" at the end of the archive. */
static invar_status read_header(char name_out[INVAR_TAR_NAME_BYTES + 1], int64_t *bytes_out,
                                tar_reader *r)
{
    uint8_t header[BLOCK], expected[BLOCK];

    name_out[0] = '\0';
    *bytes_out = 0;
    INVAR_TRY(read_bytes(r, header, sizeof header));
    if (is_zero(header, sizeof header)) {
        INVAR_TRY(read_bytes(r, header, sizeof header));
        if (!is_zero(header, sizeof header) || r->left != 0)
            return fail_damaged(r, "something follows the end of the archive");
        return INVAR_OK;
    }
    memcpy(name_out, header + AT_NAME, INVAR_TAR_NAME_BYTES);
    name_out[INVAR_TAR_NAME_BYTES] = '\0';
    for (int i = 0; i < SIZE_DIGITS; i++) {
        uint8_t c = header[AT_SIZE + i];
        *bytes_out = *bytes_out * 8 + (c >= '0' && c <= '7' ? c - '0' : 0);
    }
    make_header(expected, name_out, *bytes_out);
    if (!is_name(name_out) || memcmp(expected, header, BLOCK) != 0)
        return fail_damaged(r, "a header of the archive is damaged, or not of invar's making");
    return INVAR_OK;
}

static invar_status write_all(int fd, const char *path, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(path, "cannot be written");
        data += n;
        bytes -= (size_t)n;
    }
    return INVAR_OK;
}

static invar_status unpack_open(invar_tar_member *member, tar_reader *r, const char *path, int fd)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (int64_t left = member->bytes; left > 0;) {
        size_t n = left < (int64_t)PIECE ? (size_t)left : PIECE;
        INVAR_TRY(read_bytes(r, r->piece, n));
        invar_hasher_update(&hasher, r->piece, n);
        INVAR_TRY(write_all(fd, path, r->piece, n));
        left -= (int64_t)n;
    }
    invar_hasher_final(&member->hash, &hasher);
    INVAR_TRY(read_bytes(r, r->piece, padding(member->bytes)));
    if (!is_zero(r->piece, padding(member->bytes)))
        return fail_damaged(r, "something stands behind a member of the archive");
    return INVAR_OK;
}

static invar_status unpack_member(invar_tar_member *member, tar_reader *r)
{
    char path[INVAR_PATH_SIZE], *slash;
    invar_status status;
    int fd;

    INVAR_TRY(invar_path_join(path, sizeof path, r->folder, member->name));
    slash = strrchr(path, '/');
    *slash = '\0';
    INVAR_TRY(invar_held_folder_make(path));
    *slash = '/';
    fd = invar_fd_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return io_error(path, "cannot be made");
    status = unpack_open(member, r, path, fd);
    if (close(fd) != 0 && status == INVAR_OK)
        status = io_error(path, "cannot be written");
    return status;
}

static invar_status unpack_all(invar_tar_list *out, tar_reader *r)
{
    for (;;) {
        char name[INVAR_TAR_NAME_BYTES + 1];
        invar_tar_member *member;
        int64_t bytes;

        INVAR_TRY(read_header(name, &bytes, r));
        if (!name[0])
            return INVAR_OK;
        if (bytes > r->left)
            return fail_damaged(r, "the archive ends too early");
        INVAR_TRY(append_member(&member, out, r->path, name, bytes, INVAR_E_CORRUPT));
        INVAR_TRY(unpack_member(member, r));
    }
}

static invar_status open_archive(tar_reader *r)
{
    struct stat info;

    r->fd = invar_fd_open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (r->fd < 0)
        return io_error(r->path, "cannot be opened");
    if (fstat(r->fd, &info) != 0)
        return io_error(r->path, "cannot be asked");
    if (!S_ISREG(info.st_mode))
        return fail_damaged(r, "it is no regular file");
    r->left = info.st_size;
    return INVAR_ALLOC(r->piece, PIECE, "a piece of an archive");
}

invar_status invar_tar_unpack(invar_tar_list *out, const char *path, const char *folder)
{
    tar_reader r = {.path = path, .folder = folder, .fd = -1};
    invar_status status;

    *out = (invar_tar_list){0};
    status = open_archive(&r);
    if (status == INVAR_OK)
        status = unpack_all(out, &r);
    invar_free(r.piece);
    if (r.fd >= 0)
        (void)close(r.fd);
    if (status != INVAR_OK)
        invar_tar_list_release(out);
    return status;
}

bool invar_tar_is_archive(const char *path)
{
    char magic[5] = "";
    int fd = invar_fd_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    bool is = fd >= 0 && pread(fd, magic, sizeof magic, AT_MAGIC) == sizeof magic &&
              memcmp(magic, MAGIC, sizeof magic) == 0;

    if (fd >= 0)
        (void)close(fd);
    return is;
}
