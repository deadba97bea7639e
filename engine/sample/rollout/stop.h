/*
 * stop.h - finds stop strings in the text of a response.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_STOP_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_STOP_H

#include <stddef.h>
#include <stdint.h>

/*
 * Returns the index of the first stop string that has an occurrence ending beyond offset `from`; -1
 * if no string does. Called with the previous length whenever the text has grown, it scans each
 * byte a bounded number of times.
 */
int64_t invar_stop_find(const char *text, size_t bytes, size_t from, const char *const *stop,
                        int64_t n_stop);

#endif
