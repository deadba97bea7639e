/*
 * reward_parts.c - named components of a reward: a sorted list that is copied on each insertion.
 *
 * The order of names is part of the sum, so the list must stay sorted. Names come from plug-ins and
 * are untrusted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward_parts.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/rl/sample.h"

#include "base/invar_banned.h"

void invar_reward_parts_release(invar_reward_parts *parts)
{
    invar_free(parts->items);
    *parts = (invar_reward_parts){NULL, 0};
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_-.@", c));
}

static invar_status check_name(const char *name, size_t bytes, const char *where)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];
    size_t good = 0;

    while (good < bytes && is_name_char(name[good]))
        good++;
    if (good == bytes && bytes > 0 && bytes < INVAR_REWARD_NAME_SIZE)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, name, bytes);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: \"%s\" cannot name a part of a reward; use 1 to %d letters, digits, _, "
                      "-, . or @",
                      where, quoted, INVAR_REWARD_NAME_SIZE - 1);
}

/* Returns the index of the name, or the index at which it would be inserted. */
static int64_t find_index(const invar_reward_parts *parts, const char *name)
{
    int64_t at = 0;

    while (at < parts->count && strcmp(parts->items[at].name, name) < 0)
        at++;
    return at;
}

static bool has_part_at(const invar_reward_parts *parts, int64_t at, const char *name)
{
    return at < parts->count && strcmp(parts->items[at].name, name) == 0;
}

static invar_status insert_part(invar_reward_parts *parts, int64_t at,
                                const invar_reward_part *part, const char *where)
{
    invar_reward_part *grown = NULL;

    if (parts->count == INVAR_REWARD_PARTS)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: rewards have more than %d named parts", where,
                          INVAR_REWARD_PARTS);
    INVAR_TRY(INVAR_ALLOC(grown, (size_t)parts->count + 1, "parts of a reward"));
    for (int64_t i = 0; i <= parts->count; i++)
        grown[i] = i == at ? *part : parts->items[i < at ? i : i - 1];
    invar_free(parts->items);
    parts->items = grown;
    parts->count++;
    return INVAR_OK;
}

invar_status invar_reward_parts_add(invar_reward_parts *parts, const char *name, size_t bytes,
                                    double value, const char *where)
{
    invar_reward_part part = {.value = value};
    int64_t at;

    INVAR_TRY(check_name(name, bytes, where));
    memcpy(part.name, name, bytes);
    if (!isfinite(value))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: the part \"%s\" of a reward is not finite",
                          where, part.name);
    at = find_index(parts, part.name);
    if (has_part_at(parts, at, part.name))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a reward has two parts \"%s\"", where,
                          part.name);
    return insert_part(parts, at, &part, where);
}

double invar_reward_parts_sum(const invar_reward_parts *parts)
{
    double sum = 0.0;

    for (int64_t i = 0; i < parts->count; i++)
        sum += parts->items[i].value;
    return sum;
}

const invar_reward_part *invar_reward_parts_find(const invar_reward_parts *parts, const char *name)
{
    int64_t at = find_index(parts, name);

    return has_part_at(parts, at, name) ? &parts->items[at] : NULL;
}

bool invar_reward_parts_equal(const invar_reward_parts *a, const invar_reward_parts *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->items, b->items, (size_t)a->count * sizeof *a->items) == 0);
}

invar_status invar_reward_parts_mean(invar_reward_parts *out, const invar_rl_sample *samples,
                                     int64_t count)
{
    int64_t seen[INVAR_REWARD_PARTS] = {0};

    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < samples[i].parts.count; j++) {
            invar_reward_part part = samples[i].parts.items[j];
            int64_t at = find_index(out, part.name);
            part.value = 0.0;
            if (!has_part_at(out, at, part.name))
                INVAR_TRY(insert_part(out, at, &part, "rewards of a batch"));
        }
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < samples[i].parts.count; j++) {
            int64_t at = find_index(out, samples[i].parts.items[j].name);
            out->items[at].value += samples[i].parts.items[j].value;
            seen[at]++;
        }
    for (int64_t j = 0; j < out->count; j++)
        out->items[j].value /= (double)seen[j];
    return INVAR_OK;
}
