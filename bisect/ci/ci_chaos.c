/*
 * ci_chaos.c - runs made otherwise: every free key and circumstance that must not move a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "bisect/ci/ci_internal.h"

#include "base/invar_banned.h"

/* ---- the draw -------------------------------------------------------------------------------- */

typedef struct drawing {
    invar_chaos *out;
    int64_t seed, number;
    const char *name;
} drawing;

/* From 0 to below `count`. */
static int64_t drawing_draw(const drawing *d, const char *what, int64_t count)
{
    char text[512];
    invar_digest digest;
    uint64_t value = 0;

    (void)snprintf(text, sizeof text, "%" PRId64 " %" PRId64 " %s %s", d->seed, d->number, what,
                   d->name);
    invar_hash_bytes(&digest, text, strlen(text));
    for (int i = 0; i < 8; i++)
        value = value << 8 | digest.bytes[i];
    return (int64_t)(value % (uint64_t)count);
}

static invar_chaos_item *drawing_add(const drawing *d, invar_chaos_kind kind)
{
    invar_chaos_item *item = &d->out->items[d->out->count++];

    INVAR_CHECK(d->out->count <= INVAR_CHAOS_ITEMS);
    *item = (invar_chaos_item){.kind = kind};
    return item;
}

static void drawing_flag(const drawing *d, const char *key, const char *value)
{
    invar_chaos_item *item = drawing_add(d, INVAR_CHAOS_FLAGS);

    (void)snprintf(item->words[0], sizeof item->words[0], "--%s=%s", key, value);
    (void)snprintf(item->description, sizeof item->description, "%s %s", key, value);
}

static void flag_number(const drawing *d, const char *key, int64_t low, int64_t high)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%" PRId64, low + drawing_draw(d, key, high - low + 1));
    drawing_flag(d, key, text);
}

/* What the key before needs beside it. */
static void together_with(const drawing *d, const char *word)
{
    invar_chaos_item *item = &d->out->items[d->out->count - 1];

    (void)snprintf(item->words[1], sizeof item->words[1], "%s", word);
}

static void drawing_variable(const drawing *d, const char *name, const char *value)
{
    invar_chaos_item *item = drawing_add(d, INVAR_CHAOS_VARIABLE);

    (void)snprintf(item->words[0], sizeof item->words[0], "%s=%s", name, value);
    (void)snprintf(item->description, sizeof item->description, "%s=%.40s", name, value);
}

/* ---- what is varied -------------------------------------------------------------------------- */

/* How the work is divided and how much of it is done at a time. */
static void vary_keys(const drawing *d)
{
    flag_number(d, "threads", 1, 6);
    if (drawing_draw(d, "dynamic", 2)) {
        flag_number(d, "max-tokens-per-gpu", 8, 200);
        together_with(d, "--use-dynamic-batch-size=true");
    } else {
        flag_number(d, "micro-batch-size", 1, 9);
        together_with(d, "--use-dynamic-batch-size=false");
    }
    flag_number(d, "rollout-concurrency", 1, 16);
    flag_number(d, "chunked-prefill-size", 0, 9);
    flag_number(d, "log-probs-chunk-size", 0, 9);
    flag_number(d, "page-size", 1, 8);
    together_with(d, "--kv-pages=0"); // as many as these pages need
    drawing_flag(d, "disable-prefix-sharing", drawing_draw(d, "prefix", 2) ? "true" : "false");
    drawing_flag(d, "recompute-granularity", drawing_draw(d, "recompute", 2) ? "full" : "none");
}

static void vary_environment(const drawing *d, const invar_chaos_locales *locales)
{
    static const char *const zones[] = {"UTC", "Asia/Kathmandu", "Pacific/Chatham",
                                        "America/St_Johns"};
    static const char filler[] = "0123456789abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ";
    char text[32];

    drawing_variable(d, "TZ", zones[drawing_draw(d, "zone", 4)]);
    if (locales->count)
        drawing_variable(d, "LC_ALL",
                         locales->names[drawing_draw(d, "locale", (int64_t)locales->count)]);
    (void)snprintf(text, sizeof text, "%" PRId64, 1 + drawing_draw(d, "perturb", 255));
    drawing_variable(d, "MALLOC_PERTURB_", text);
    // moves the stack
    drawing_variable(d, "CHAOS_FILLER",
                     filler + drawing_draw(d, "filler", (int64_t)sizeof filler - 1));
}

static void vary_process(const drawing *d)
{
    int64_t nice = drawing_draw(d, "nice", 11);
    invar_chaos_item *item;

    if (nice) {
        item = drawing_add(d, INVAR_CHAOS_PREFIX);
        (void)snprintf(item->words[0], sizeof item->words[0], "nice -n %" PRId64, nice);
        (void)snprintf(item->description, sizeof item->description, "niceness %" PRId64, nice);
    }
    if (drawing_draw(d, "addresses", 2)) {
        item = drawing_add(d, INVAR_CHAOS_ADDRESSES);
        (void)snprintf(item->description, sizeof item->description, "fixed addresses");
    }
    if (drawing_draw(d, "folder", 2)) {
        item = drawing_add(d, INVAR_CHAOS_FOLDER);
        (void)snprintf(item->description, sizeof item->description, "another folder");
    }
}

void invar_chaos_generate(invar_chaos *out, const invar_chaos_locales *locales, int64_t seed,
                          const char *name, int64_t number)
{
    drawing d = {.out = out, .seed = seed, .name = name, .number = number};

    out->count = 0;
    vary_keys(&d);
    vary_environment(&d, locales);
    vary_process(&d);
}

/* ---- for a run ------------------------------------------------------------------------------- */

void invar_chaos_compose(invar_chaos_run *out, const invar_chaos *chaos, int item)
{
    size_t flags = 0, variables = 0, used = 0;

    *out = (invar_chaos_run){0};
    for (size_t i = 0; i < chaos->count; i++) {
        const invar_chaos_item *it = &chaos->items[i];
        if (item != INVAR_CHAOS_ALL && (size_t)item != i)
            continue;
        switch (it->kind) {
        case INVAR_CHAOS_FLAGS:
            for (int k = 0; k < 2; k++)
                if (it->words[k][0])
                    out->flags[flags++] = it->words[k];
            break;
        case INVAR_CHAOS_VARIABLE: out->environment[variables++] = it->words[0]; break;
        case INVAR_CHAOS_PREFIX: out->prefix = it->words[0]; break;
        case INVAR_CHAOS_ADDRESSES: out->same_addresses = true; break;
        case INVAR_CHAOS_FOLDER: out->other_folder = true; break;
        }
        if (used < sizeof out->told)
            used += (size_t)snprintf(out->told + used, sizeof out->told - used, "%s%s",
                                     used ? ", " : "", it->description);
    }
}

/* ---- locales --------------------------------------------------------------------------------- */

static void take_locale(invar_chaos_locales *out, const char *name, size_t length)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_.@-";

    if (length == 0 || length >= sizeof out->names[0] || out->count == INVAR_CHAOS_LOCALES ||
        strspn(name, allowed) < length)
        return;
    memcpy(out->names[out->count], name, length);
    out->names[out->count++][length] = '\0';
}

invar_status invar_chaos_list_locales(invar_chaos_locales *out, const char *folder)
{
    static const char *const words[] = {"locale", "-a", NULL};
    char log[INVAR_PATH_SIZE], *text;
    invar_child_request request = {.words = words, .log = log, .lock = -1, .timeout = 10};
    invar_child_result result;
    size_t bytes;

    *out = (invar_chaos_locales){0};
    INVAR_TRY(invar_path_join(log, sizeof log, folder, "locales.log"));
    INVAR_TRY(invar_child_run(&result, &request));
    if (result.end != INVAR_CHILD_EXITED || result.code != 0)
        return INVAR_OK; // then it is not varied
    INVAR_TRY(invar_file_read(&text, &bytes, log, INVAR_CHILD_LOG_BYTES));
    for (char *at = text, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, "\n");
        take_locale(out, at, (size_t)(end - at));
    }
    invar_free(text);
    (void)unlink(log);
    return INVAR_OK;
}
