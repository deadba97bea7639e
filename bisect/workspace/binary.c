/*
 * binary.c - hashes and copies a program together with its modules.
 *
 * The GPU kernels of a program are in a module (base/process/module.h), so a program with another
 * module is another program. Without modules the digest is that of the program file.
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
#include "bisect/workspace/workspace.h"
#include "bisect/workspace/workspace_internal.h"

#include "base/invar_banned.h"

#define RUN_BITS 0111
#define ANY_BITS 0777

static invar_status write_chunk(void *payload, const void *piece, size_t bytes)
{
    return invar_file_writer_put(payload, piece, bytes);
}

/*
 * Opens a regular file that has one of the permission bits `mode`. Returns INVAR_E_NOTFOUND if
 * there is no such file.
 */
static invar_status open_file(int *out, const char *path, mode_t mode)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    struct stat info;

    *out = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*out < 0 && errno != ENOENT)
        return invar_path_fail(path, "cannot be read");
    invar_path_show(shown, path);
    if (*out < 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, ENOENT, "%s: cannot be read: %s", shown,
                          strerror(ENOENT));
    if (fstat(*out, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & mode))
        return INVAR_OK;
    close(*out);
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: it is no program", shown);
}

static invar_status copy_file(const char *from, const char *to, mode_t mode)
{
    invar_file_writer *writer = NULL;
    invar_digest digest;
    invar_status status;
    int64_t bytes;
    int fd;

    INVAR_TRY(open_file(&fd, from, mode));
    status = invar_file_writer_open(&writer, to);
    if (status == INVAR_OK)
        status = invar_fd_hash(&digest, &bytes, fd, from, write_chunk, writer);
    if (status == INVAR_OK)
        status = invar_file_writer_commit(writer);
    invar_file_writer_close(writer);
    close(fd);
    INVAR_TRY(status);
    return chmod(to, 0755) == 0 ? INVAR_OK : invar_path_fail(to, "cannot be made a program");
}

invar_status invar_workspace_hash_binary(invar_digest *out, const char *path, bool runs)
{
    int fd;

    INVAR_TRY(open_file(&fd, path, runs ? RUN_BITS : ANY_BITS));
    close(fd);
    return invar_module_hash_program(out, path);
}

/* The copies of modules are next to the copied program, wherever the originals were found. */
invar_status invar_workspace_copy_binary(invar_digest *out, const char *from, const char *to)
{
    char folder[INVAR_PATH_SIZE], copies[INVAR_PATH_SIZE];
    char path[INVAR_PATH_SIZE], copy[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_folder(folder, from));
    INVAR_TRY(invar_path_folder(copies, to));
    INVAR_TRY(copy_file(from, to, RUN_BITS));
    for (const char *const *name = invar_module_names; *name; name++)
        if (invar_module_find(path, folder, *name)) {
            INVAR_TRY(invar_path_join(copy, sizeof copy, copies, *name));
            INVAR_TRY(copy_file(path, copy, ANY_BITS));
        }
    return invar_workspace_hash_binary(out, to, true);
}
