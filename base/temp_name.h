/*
 * temp_name.h - names for what is written beside its place until it is whole.
 *
 * "report.html.new-4711" has the number of the process that writes it. What a killed process left
 * is found by that number, and removed when the same thing is written again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_TEMP_NAME_H
#define INVAR_BASE_TEMP_NAME_H

#include "base/file.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * PATH.WORD-PID of this process, for a file or a folder. Those of processes that are gone are
 * removed, folders with all in them; links are not followed. What cannot be removed stays.
 */
invar_status invar_temp_name(char out[INVAR_PATH_SIZE], const char *path,
                             const char *word) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
