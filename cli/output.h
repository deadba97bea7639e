/*
 * output.h - writes files atomically: a file appears complete or not at all.
 *
 * The file is written in the same folder under a temporary name, synced and renamed; temporary
 * files of killed writers are removed (base/temp_name.h). "-" is standard output. A device, a pipe
 * with a reader, and anything below /dev and /proc is written directly. Any other link is rejected:
 * neither the link nor its target is replaced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_OUTPUT_H
#define INVAR_CLI_OUTPUT_H

#include <stdio.h>

#include "base/file.h"
#include "base/status.h"

typedef struct invar_output {
    FILE *stream;
    char path[INVAR_PATH_SIZE];
    char temp_path[INVAR_PATH_SIZE]; /* temporary path until the file is complete; empty if the file
                                        is written directly */
} invar_output;

/*
 * Opens a file that the user names. An existing file is replaced only if it is empty or begins with
 * `mark`, the first bytes of all files of this kind.
 */
invar_status invar_output_open(invar_output *out, const char *path,
                               const char *mark) INVAR_MUST_USE;

/* Fails if invar_output_open would fail, as far as that is known before a long computation. */
invar_status invar_output_check(const char *path, const char *mark) INVAR_MUST_USE;

/*
 * Opens a file in a folder that may be untrusted: it is always written under a temporary name. With
 * a `mark`, links, pipes and devices of that name are rejected, and files as in invar_output_open.
 * With a NULL mark everything except a database is replaced.
 */
invar_status invar_output_replace(invar_output *out, const char *path,
                                  const char *mark) INVAR_MUST_USE;

/*
 * Ends the output: keeps the file if `status` is INVAR_OK, and removes it otherwise. Returns the
 * first failure.
 */
invar_status invar_output_close(invar_output *out, invar_status status) INVAR_MUST_USE;

#endif
