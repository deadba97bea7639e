/*
 * stop.h - the strings that end a response.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_STOP_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_STOP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The first of `stop` that occurs in the text and ends behind its byte `from`; -1: none. Called as
 * the text grows, with its former length, this looks at every byte a bounded number of times.
 */
int64_t invar_stop_find(const char *text, size_t bytes, size_t from, const char *const *stop,
                        int64_t n_stop);

#ifdef __cplusplus
}
#endif
#endif
