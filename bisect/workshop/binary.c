/*
 * binary.c - the bytes of a program, and of the modules that belong to it.
 *
 * The kernels of a GPU are in a module (base/process/module.h): a program whose module differs is
 * another one. Where there is no module, the digest is that of the program's file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process/module.h"
#include "bisect/workshop/workshop.h"
#include "bisect/workshop/workshop_internal.h"

#include "base/invar_banned.h"

#define RUN_BITS 0111
#define ANY_BITS 0777

static invar_status read_error(const char *path)
{
    int code = errno;
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    return INVAR_FAIL(code == ENOENT ? INVAR_E_NOTFOUND : INVAR_E_IO, code,
                      "%s: cannot be read: %s", shown, strerror(code));
}

static invar_status put_piece(void *payload, const void *piece, size_t bytes)
{
    return invar_file_writer_put(payload, piece, bytes);
}

/* A regular file with one of the bits `mode`. INVAR_E_NOTFOUND: there is none. */
static invar_status open_file(int *out, const char *path, mode_t mode)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    struct stat info;

    *out = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*out < 0)
        return read_error(path);
    if (fstat(*out, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & mode))
        return INVAR_OK;
    close(*out);
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: it is no program", shown);
}

static invar_status copy_open(invar_digest *out, int fd, const char *from, const char *to)
{
    invar_file_writer *writer = NULL;
    char shown[INVAR_PATH_SHOWN_SIZE];
    invar_status status;
    int64_t bytes;

    status = invar_file_writer_open(&writer, to);
    if (status == INVAR_OK)
        status = invar_fd_hash(out, &bytes, fd, from, put_piece, writer);
    if (status == INVAR_OK)
        status = invar_file_writer_commit(writer);
    invar_file_writer_close(writer);
    INVAR_TRY(status);
    if (chmod(to, 0755) == 0)
        return INVAR_OK;
    invar_path_show(shown, to);
    return INVAR_FAIL(INVAR_E_IO, errno, "%s: cannot be made a program: %s", shown,
                      strerror(errno));
}

/* The digest of a file with one of the bits `mode` and, unless `to` is NULL, a copy. */
static invar_status take_file(invar_digest *out, const char *path, const char *to, mode_t mode)
{
    invar_status status;
    int64_t bytes;
    int fd;

    INVAR_TRY(open_file(&fd, path, mode));
    status = to ? copy_open(out, fd, path, to) : invar_fd_hash(out, &bytes, fd, path, NULL, NULL);
    close(fd);
    return status;
}

/* "FOLDER" of "FOLDER/PROGRAM". */
static invar_status folder_of(char out[INVAR_PATH_SIZE], const char *path)
{
    const char *slash = strrchr(path, '/');

    if (snprintf(out, INVAR_PATH_SIZE, "%.*s", slash ? (int)(slash - path) : 1,
                 slash ? path : ".") < INVAR_PATH_SIZE)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "the path of a program is too long");
}

/* Modules lie beside the copy wherever they were found. */
static invar_status take(invar_digest *out, const char *program, const char *to, bool runs)
{
    char folder[INVAR_PATH_SIZE], copies[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    invar_digest module;
    invar_hasher hasher;
    bool any = false;

    INVAR_TRY(folder_of(folder, program));
    INVAR_TRY(folder_of(copies, to ? to : program));
    INVAR_TRY(take_file(out, program, to, runs ? RUN_BITS : ANY_BITS));
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, out, sizeof *out);
    for (const char *const *name = invar_module_names; *name; name++) {
        char copy[INVAR_PATH_SIZE];
        if (!invar_module_find(path, folder, *name))
            continue;
        INVAR_TRY(invar_path_join(copy, sizeof copy, copies, *name));
        INVAR_TRY(take_file(&module, path, to ? copy : NULL, ANY_BITS));
        invar_workshop_mix(&hasher, *name);
        invar_hasher_update(&hasher, &module, sizeof module);
        any = true;
    }
    if (any)
        invar_hasher_final(out, &hasher);
    return INVAR_OK;
}

invar_status invar_workshop_hash_binary(invar_digest *out, const char *path, bool runs)
{
    return take(out, path, NULL, runs);
}

invar_status invar_workshop_copy_binary(invar_digest *out, const char *from, const char *to)
{
    return take(out, from, to, true);
}
