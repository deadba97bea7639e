/*
 * no_sync.h - replaces fsync and fdatasync of a test program by functions that do nothing.
 *
 * SQLite in the same process uses them, too. The tests need no protection against a power loss,
 * and on a busy disk they would wait for syncs most of their time. Include this header in one file
 * of a program only. Programs that the test starts still sync.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_NO_SYNC_H
#define INVAR_TESTS_NO_SYNC_H

int fsync(int fd);
int fdatasync(int fd);

__attribute__((visibility("default"))) int fsync(int fd)
{
    (void)fd;
    return 0;
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    (void)fd;
    return 0;
}

#endif
