/*
 * power_disk.h - a simulated disk that loses power: writes that were not synced may be lost, in
 * part.
 *
 * Included by one file of a program, it replaces the system calls that change files (open, write,
 * fsync, rename, ...), also for SQLite. The calls are carried out, and while `disk.recording` is
 * set, those below `disk.folder` are recorded in order. disk_lose() then makes a folder that a disk
 * might hold when power goes after the first n of them:
 *
 *   - A file has what was written before its last sync. Of later writes, each sector of 512 bytes
 *     arrived or did not, in any order, and so did each change of the file's length.
 *   - A folder has the names of its last sync. Of later changes (files made, renamed, removed),
 *     those up to some point arrived. Folders do not wait for each other, and syncing a file does
 *     not sync its name.
 *
 * The usual file systems promise more than that. Negative controls: a disk whose syncs do nothing,
 * for files or for folders.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAULT_ENGINE_POWER_DISK_H
#define INVAR_TESTS_FAULT_ENGINE_POWER_DISK_H

#undef _FORTIFY_SOURCE // allows the definition of open in this file
#define _GNU_SOURCE 1  // declares open64, realpath

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support.h"

#define DISK_SECTOR 512

typedef enum disk_kind {
    DISK_MAKE,        /* a file or a folder appears in a folder */
    DISK_REMOVE,      /* a name disappears */
    DISK_RENAME,      /* a name becomes another one of the same folder */
    DISK_WRITE,       /* bytes of a file are written */
    DISK_TRUNCATE,    /* the length of a file changes */
    DISK_SYNC,        /* a file or a folder is synced */
    DISK_ACKNOWLEDGED /* the program acknowledges all operations up to here */
} disk_kind;

enum { DISK_NAME = 64, DISK_NODES = 4096, DISK_OPS = 65536 };

typedef struct disk_op {
    disk_kind kind;
    int node;  /* folder whose names change, or the file; -1 for an acknowledgement */
    int child; /* node of the new file or folder; DISK_MAKE only */
    char name[DISK_NAME], to[DISK_NAME];
    int64_t offset, bytes; /* DISK_TRUNCATE: offset is the new length */
    unsigned char *data;   /* (bytes) */
    int64_t value;         /* value that the program acknowledged; DISK_ACKNOWLEDGED only */
} disk_op;

static struct {
    char folder[600]; /* absolute path without links */
    bool recording;
    pthread_mutex_t lock;
    disk_op ops[DISK_OPS];
    int n_ops;
    ino_t inodes[DISK_NODES]; /* inode of each node, 0 if it was reused; node 0 is `folder` */
    bool folders[DISK_NODES];
    int n_nodes;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- recording ------------------------------------------------------------------------------- */

static inline int disk_node_of(ino_t inode)
{
    for (int i = disk.n_nodes - 1; i >= 0; i--)
        if (disk.inodes[i] == inode)
            return i;
    return -1;
}

static inline disk_op *disk_add(disk_kind kind, int node)
{
    disk_op *op = &disk.ops[disk.n_ops++];

    if (disk.n_ops == DISK_OPS)
        abort();
    *op = (disk_op){.kind = kind, .node = node};
    return op;
}

static inline int disk_new_node(ino_t inode, bool is_folder)
{
    int old = disk_node_of(inode);

    if (disk.n_nodes == DISK_NODES)
        abort();
    if (old >= 0)
        disk.inodes[old] = 0; // the file is gone, and its inode number is used again
    disk.inodes[disk.n_nodes] = inode;
    disk.folders[disk.n_nodes] = is_folder;
    return disk.n_nodes++;
}

/*
 * Returns the node of the folder that contains a path and writes the name there; -1 if the path is
 * not recorded.
 */
static inline int disk_parent_of(char name[DISK_NAME], const char *path)
{
    const char *slash = strrchr(path, '/');
    char above[700];
    struct stat info;

    if (!disk.recording || !slash || strlen(slash + 1) >= DISK_NAME || slash - path >= 700 ||
        strncmp(path, disk.folder, strlen(disk.folder)) != 0)
        return -1;
    snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
    snprintf(name, DISK_NAME, "%s", slash + 1);
    return stat(above, &info) == 0 ? disk_node_of(info.st_ino) : -1;
}

/* Returns the node of an open file; -1 if the file is not recorded. */
static inline int disk_file(int fd)
{
    struct stat info;

    return disk.recording && fstat(fd, &info) == 0 ? disk_node_of(info.st_ino) : -1;
}

static inline void disk_made(const char *path, bool is_folder)
{
    char name[DISK_NAME];
    int above = disk_parent_of(name, path);
    struct stat info;
    disk_op *op;

    if (above < 0 || stat(path, &info) != 0)
        return;
    op = disk_add(DISK_MAKE, above);
    op->child = disk_new_node(info.st_ino, is_folder);
    memcpy(op->name, name, DISK_NAME);
}

static inline void disk_removed(const char *path)
{
    char name[DISK_NAME];
    int above = disk_parent_of(name, path);

    if (above >= 0)
        memcpy(disk_add(DISK_REMOVE, above)->name, name, DISK_NAME);
}

static inline void disk_renamed(const char *from, const char *to)
{
    char name[DISK_NAME], other[DISK_NAME];
    int above = disk_parent_of(name, from);
    disk_op *op;

    if (above < 0)
        return;
    if (disk_parent_of(other, to) != above)
        abort(); // a rename between folders is not supported
    op = disk_add(DISK_RENAME, above);
    memcpy(op->name, name, DISK_NAME);
    memcpy(op->to, other, DISK_NAME);
}

static inline void disk_wrote(int fd, const void *data, int64_t bytes, int64_t offset)
{
    int node = disk_file(fd);
    disk_op *op;

    if (node < 0 || bytes <= 0)
        return;
    op = disk_add(DISK_WRITE, node);
    op->offset = offset;
    op->bytes = bytes;
    op->data = malloc((size_t)bytes);
    if (!op->data)
        abort();
    memcpy(op->data, data, (size_t)bytes);
}

static inline void disk_changed(int fd, disk_kind kind, int64_t length)
{
    int node = disk_file(fd);

    if (node >= 0)
        disk_add(kind, node)->offset = length;
}

/*
 * Records that the program acknowledges everything so far; `value` is up to the program, such
 * as a step.
 */
static inline void disk_acknowledge(int64_t value)
{
    disk_add(DISK_ACKNOWLEDGED, -1)->value = value;
}

/* Starts recording in `folder`, which must be empty. */
static inline void disk_record(const char *folder)
{
    struct stat info;

    for (int i = 0; i < disk.n_ops; i++)
        free(disk.ops[i].data);
    disk.n_ops = disk.n_nodes = 0;
    if (!realpath(folder, disk.folder) || stat(folder, &info) != 0)
        abort();
    disk_new_node(info.st_ino, true);
    disk.recording = true;
}

/* ---- replaced system calls ------------------------------------------------------------------- */

#define DISK_CALL __attribute__((visibility("default")))

static inline int disk_open(int at, const char *path, int flags, mode_t mode)
{
    bool existed;
    long fd;

    pthread_mutex_lock(&disk.lock);
    existed = !(flags & O_CREAT) || faccessat(at, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    fd = syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && !existed)
        disk_made(path, false);
    else if (fd >= 0 && (flags & O_TRUNC))
        disk_changed((int)fd, DISK_TRUNCATE, 0);
    pthread_mutex_unlock(&disk.lock);
    return (int)fd;
}

#define DISK_OPEN(name)                                                                            \
    DISK_CALL int name(const char *path, int flags, ...)                                           \
    {                                                                                              \
        va_list rest;                                                                              \
        mode_t mode;                                                                               \
        va_start(rest, flags);                                                                     \
        mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                         \
        va_end(rest);                                                                              \
        return disk_open(AT_FDCWD, path, flags, mode);                                             \
    }
DISK_OPEN(open)
DISK_OPEN(open64)

DISK_CALL ssize_t write(int fd, const void *data, size_t bytes)
{
    off_t offset;
    ssize_t written;

    pthread_mutex_lock(&disk.lock);
    offset = disk_file(fd) >= 0 ? lseek(fd, 0, SEEK_CUR) : 0;
    written = syscall(SYS_write, fd, data, bytes);
    disk_wrote(fd, data, written, offset);
    pthread_mutex_unlock(&disk.lock);
    return written;
}

#define DISK_PWRITE(name)                                                                          \
    DISK_CALL ssize_t name(int fd, const void *data, size_t bytes, off_t offset)                   \
    {                                                                                              \
        ssize_t written;                                                                           \
        pthread_mutex_lock(&disk.lock);                                                            \
        written = syscall(SYS_pwrite64, fd, data, bytes, offset);                                  \
        disk_wrote(fd, data, written, offset);                                                     \
        pthread_mutex_unlock(&disk.lock);                                                          \
        return written;                                                                            \
    }
DISK_PWRITE(pwrite)
DISK_PWRITE(pwrite64)

#define DISK_FTRUNCATE(name)                                                                       \
    DISK_CALL int name(int fd, off_t length)                                                       \
    {                                                                                              \
        long rc;                                                                                   \
        pthread_mutex_lock(&disk.lock);                                                            \
        rc = syscall(SYS_ftruncate, fd, length);                                                   \
        if (rc == 0)                                                                               \
            disk_changed(fd, DISK_TRUNCATE, length);                                               \
        pthread_mutex_unlock(&disk.lock);                                                          \
        return (int)rc;                                                                            \
    }
DISK_FTRUNCATE(ftruncate)
DISK_FTRUNCATE(ftruncate64)

/* Records a sync only. The real disk keeps its power, so nothing waits for it. */
#define DISK_FSYNC(name)                                                                           \
    DISK_CALL int name(int fd)                                                                     \
    {                                                                                              \
        pthread_mutex_lock(&disk.lock);                                                            \
        disk_changed(fd, DISK_SYNC, 0);                                                            \
        pthread_mutex_unlock(&disk.lock);                                                          \
        return 0;                                                                                  \
    }
DISK_FSYNC(fsync)
DISK_FSYNC(fdatasync)

DISK_CALL int mkdir(const char *path, mode_t mode)
{
    long rc;

    pthread_mutex_lock(&disk.lock);
    rc = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (rc == 0)
        disk_made(path, true);
    pthread_mutex_unlock(&disk.lock);
    return (int)rc;
}

static inline int disk_unlink(const char *path, int flags)
{
    long rc;

    pthread_mutex_lock(&disk.lock);
    rc = syscall(SYS_unlinkat, AT_FDCWD, path, flags);
    if (rc == 0)
        disk_removed(path);
    pthread_mutex_unlock(&disk.lock);
    return (int)rc;
}

DISK_CALL int unlink(const char *path)
{
    return disk_unlink(path, 0);
}

DISK_CALL int rmdir(const char *path)
{
    return disk_unlink(path, AT_REMOVEDIR);
}

DISK_CALL int rename(const char *from, const char *to)
{
    long rc;

    pthread_mutex_lock(&disk.lock);
    rc = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (rc == 0)
        disk_renamed(from, to);
    pthread_mutex_unlock(&disk.lock);
    return (int)rc;
}

/* ---- losing power ---------------------------------------------------------------------------- */

typedef enum disk_trust {
    DISK_HONEST,
    DISK_LYING,        /* no sync has an effect */
    DISK_LYING_FOLDERS /* syncs of folders have no effect */
} disk_trust;

typedef struct disk_loss {
    int n;         /* power goes after n operations */
    uint64_t seed; /* 0: all that was not synced is lost; 1: nothing is lost; else a part of it
                      is lost */
    uint64_t drawn;
    int synced[DISK_NODES]; /* (n_nodes) index of the last sync of each node; earlier operations
                               are durable */
    int kept[DISK_NODES];   /* (n_nodes) number of operations whose changes of a folder arrived;
                               used for folders only */
} disk_loss;

/*
 * Draws whether an unsynced write arrives: never, always, or with probability 1/2, as `seed` says.
 */
static inline bool disk_arrives(disk_loss *l)
{
    return l->seed == 1 || (l->seed > 1 && invar_test_random(l->seed, l->drawn++) % 2);
}

typedef struct disk_bytes {
    unsigned char *at;
    int64_t size, capacity;
} disk_bytes;

static inline void disk_resize(disk_bytes *b, int64_t size)
{
    if (size > b->capacity) {
        b->capacity = size * 2;
        b->at = realloc(b->at, (size_t)b->capacity);
        if (!b->at)
            abort();
    }
    if (size > b->size)
        memset(b->at + b->size, 0, (size_t)(size - b->size));
    b->size = size;
}

static inline void disk_put(disk_bytes *b, const disk_op *op, int64_t from, int64_t bytes)
{
    if (op->offset + from + bytes > b->size)
        disk_resize(b, op->offset + from + bytes);
    memcpy(b->at + op->offset + from, op->data + from, (size_t)bytes);
}

/* Computes the bytes of a file after the loss. Sectors begin at multiples of their size. */
static inline void disk_content(disk_bytes *out, disk_loss *l, int node)
{
    out->size = 0;
    for (int i = 0; i < l->n; i++) {
        const disk_op *op = &disk.ops[i];
        bool safe = i < l->synced[node];

        if (op->node != node)
            continue;
        if (op->kind == DISK_TRUNCATE && (safe || disk_arrives(l)))
            disk_resize(out, op->offset);
        for (int64_t at = 0; op->kind == DISK_WRITE && at < op->bytes;) {
            int64_t bytes = DISK_SECTOR - (op->offset + at) % DISK_SECTOR;
            bytes = bytes > op->bytes - at ? op->bytes - at : bytes;
            if (safe || disk_arrives(l))
                disk_put(out, op, at, bytes);
            at += bytes;
        }
    }
}

static inline void disk_write_file(const char *path, disk_loss *l, int node)
{
    static disk_bytes content;
    FILE *file = fopen(path, "wb");

    disk_content(&content, l, node);
    if (!file ||
        (content.size > 0 &&
         fwrite(content.at, 1, (size_t)content.size, file) != (size_t)content.size) ||
        fclose(file) != 0)
        abort();
}

typedef struct disk_entry {
    char name[DISK_NAME];
    int node;
} disk_entry;

static inline int disk_find(const disk_entry *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return i;
    return -1;
}

/* Applies one change of a folder's names. Returns the new number of names. */
static inline int disk_change(disk_entry *list, int count, const disk_op *op)
{
    int at = disk_find(list, count, op->name), over;

    switch (op->kind) {
    case DISK_MAKE:
        memcpy(list[count].name, op->name, DISK_NAME);
        list[count].node = op->child;
        return count + 1;
    case DISK_RENAME:
        over = disk_find(list, count, op->to);
        memcpy(list[at].name, op->to, DISK_NAME);
        if (over >= 0)
            list[over] = list[count - 1];
        return over >= 0 ? count - 1 : count;
    case DISK_REMOVE: list[at] = list[count - 1]; return count - 1;
    default: return count;
    }
}

static inline void disk_write_folder(const char *path, disk_loss *l, int node)
{
    disk_entry list[256];
    char below[900];
    int count = 0;

    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        abort();
    for (int i = 0; i < l->kept[node]; i++)
        if (disk.ops[i].node == node)
            count = disk_change(list, count, &disk.ops[i]);
    for (int i = 0; i < count; i++) {
        snprintf(below, sizeof below, "%.800s/%.63s", path, list[i].name);
        if (disk.folders[list[i].node])
            disk_write_folder(below, l, list[i].node);
        else
            disk_write_file(below, l, list[i].node);
    }
}

/*
 * Writes to the folder `to`, which must be empty or absent, what the disk holds when power goes
 * after n operations.
 */
static inline void disk_lose(const char *to, int n, uint64_t seed, disk_trust trust)
{
    static disk_loss l;

    memset(&l, 0, sizeof l);
    l.n = n;
    l.seed = seed;
    disk.recording = false;
    for (int i = 0; i < n; i++) {
        const disk_op *op = &disk.ops[i];
        bool names = op->node >= 0 && disk.folders[op->node];
        if (op->kind == DISK_SYNC && trust != DISK_LYING && !(names && trust == DISK_LYING_FOLDERS))
            l.synced[op->node] = i;
    }
    for (int node = 0; node < disk.n_nodes; node++)
        l.kept[node] = l.synced[node];
    // The changes of a folder arrive in order, up to the first that does not.
    for (int i = 0; i < n; i++) {
        int node = disk.ops[i].node;
        if (node < 0 || !disk.folders[node] || i < l.synced[node] || l.kept[node] < 0)
            continue;
        if (seed == 1 || (seed > 1 && invar_test_random(seed, (uint64_t)i) % 4))
            l.kept[node] = i + 1;
        else
            l.kept[node] = -1 - l.kept[node]; // negative: no later change of this folder arrives
    }
    for (int node = 0; node < disk.n_nodes; node++)
        if (l.kept[node] < 0)
            l.kept[node] = -1 - l.kept[node];
    disk_write_folder(to, &l, 0);
}

#endif
