/*
 * output.h - a file that appears whole or not at all.
 *
 * It is written beside its place under another name, synced and renamed; what killed writers left
 * is removed (base/temp_name.h). "-" is standard output. A device, and a pipe that somebody reads,
 * is written where it stands; below /dev and /proc, where links are the system's, whatever is
 * there. Any other link is refused: neither it nor what it leads to is replaced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_OUTPUT_H
#define INVAR_CLI_OUTPUT_H

#include <stdio.h>

#include "base/file.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_output {
    FILE *stream;
    char path[INVAR_PATH_SIZE];
    char temp_path[INVAR_PATH_SIZE]; /* the name until it is whole; "": none */
} invar_output;

/*
 * A file that the user names. One that is there is replaced where it is empty or begins with
 * `mark`, as all of this kind do: what somebody else put there stays.
 */
invar_status invar_output_open(invar_output *out, const char *path,
                               const char *mark) INVAR_MUST_USE;

/* Before long work: fails where _open would, as far as that is known by then. */
invar_status invar_output_check(const char *path, const char *mark) INVAR_MUST_USE;

/*
 * A file of our own in a folder that may come from anybody: never written where it stands. With a
 * `mark` a link, a pipe or a device that has its name is refused, and a file as above; where it is
 * NULL the name is ours, and all but a database is replaced.
 */
invar_status invar_output_replace(invar_output *out, const char *path,
                                  const char *mark) INVAR_MUST_USE;

/* Ends it: keeps the file when `status` is INVAR_OK, else removes it. Yields the first failure. */
invar_status invar_output_close(invar_output *out, invar_status status) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
