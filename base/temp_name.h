/*
 * temp_name.h - temporary names beside an output that is being written.
 *
 * "report.html.new-4711" contains the number of the process that writes it. Files that a killed
 * process left are recognized by that number and removed when the same output is written again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_TEMP_NAME_H
#define INVAR_BASE_TEMP_NAME_H

#include "base/file.h"
#include "base/status.h"

/*
 * Writes the temporary name PATH.WORD-PID of this process to `out`, for a file or a folder. Removes
 * files and folders PATH.WORD-PID of this process and of processes that do not exist any more,
 * without following links; those that cannot be removed stay.
 */
invar_status invar_temp_name(char out[INVAR_PATH_SIZE], const char *path,
                             const char *word) INVAR_MUST_USE;

#endif
