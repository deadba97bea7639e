/*
 * dump_names.c - checks the point names of debug-dump before a run starts.
 *
 * Names within a layer and names of parameters depend on the model, and all of them are known only
 * in a step. A name is rejected here only if no model has a point that it could match.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine/model/probe/dump.h"
#include "engine/record/recorder.h"

#include "base/invar_banned.h"

/* Returns the layer that the pattern names; -1 if it does not name exactly one. */
static int64_t layer_of(const char *pattern, size_t length)
{
    static const char *const begins[] = {"layer.", "rollout.layer.", "critic.layer."};
    int64_t layer = -1;

    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        size_t at = strlen(begins[i]), first = at;

        if (length <= at || strncmp(pattern, begins[i], at) != 0)
            continue;
        for (; at < length && at - first < 9 && pattern[at] >= '0' && pattern[at] <= '9'; at++)
            layer = (layer < 0 ? 0 : layer) * 10 + (pattern[at] - '0');
        return at < length && pattern[at] == '.' ? layer : -1; // "layer.1*" is also layer 10
    }
    return -1;
}

/* Returns false if no point of any model can match the pattern of `length` bytes. */
static bool may_be_point(const char *pattern, size_t length)
{
    static const char *const names[] = {
        "batch.tokens", "batch.reward", "batch.advantage", "rollout.logp",  "score.logp",
        "ref.logp",     "teacher.logp", "train.logp",      "critic.values", "grad_norm"};
    static const char *const families[] = {
        "grad.",   "weight.",        "layer.",        "embed",         "head.",
        "critic.", "rollout.layer.", "rollout.embed", "rollout.head.", "rollout.token"};
    const char *star = memchr(pattern, '*', length);
    const size_t literal = star ? (size_t)(star - pattern) : length;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (invar_dump_matches(pattern, length, names[i]))
            return true;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        size_t bytes = strlen(families[i]);
        if (literal >= bytes ? strncmp(pattern, families[i], bytes) == 0
                             : star && strncmp(pattern, families[i], literal) == 0)
            return true;
    }
    return false;
}

invar_status invar_recorder_check_dump(const char *points, int64_t layers)
{
    for (const char *at = points; *at; at += strspn(at, ",")) {
        size_t length = strcspn(at, ",");
        int shown = length < 100 ? (int)length : 100;

        if (!may_be_point(at, length))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "debug-dump: no point of the step is called \"%.*s\"; try "
                              "train.logp, grad.*, layer.0.*, or * for all",
                              shown, at);
        if (layers > 0 && layer_of(at, length) >= layers)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "debug-dump: \"%.*s\": the model has layers 0 to %" PRId64, shown, at,
                              layers - 1);
        at += length;
    }
    return INVAR_OK;
}
