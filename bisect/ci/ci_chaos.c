/*
 * ci_chaos.c - generates chaos runs: variations of free keys and environment that must not change a
 * bit.
 *
 * The variations of a run are a pure function of seed, case name and run number, so a failing chaos
 * run can be repeated. They cover batching and memory keys, time zone, locale, malloc fill, stack
 * position, niceness, address layout and the folder of the run.
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

/* ---- random choices -------------------------------------------------------------------------- */

typedef struct chaos_generator {
    invar_chaos *out;
    int64_t seed, number;
    const char *name;
} chaos_generator;

/* Returns a number from 0 to `count` - 1 that depends only on the seed, run, case and `what`. */
static int64_t choose_number(const chaos_generator *d, const char *what, int64_t count)
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

static invar_chaos_item *add_item(const chaos_generator *d, invar_chaos_kind kind)
{
    invar_chaos_item *item = &d->out->items[d->out->count++];

    INVAR_CHECK(d->out->count <= INVAR_CHAOS_ITEMS);
    *item = (invar_chaos_item){.kind = kind};
    return item;
}

static void add_flag(const chaos_generator *d, const char *key, const char *value)
{
    invar_chaos_item *item = add_item(d, INVAR_CHAOS_FLAGS);

    (void)snprintf(item->words[0], sizeof item->words[0], "--%s=%s", key, value);
    (void)snprintf(item->description, sizeof item->description, "%s %s", key, value);
}

static void add_number_flag(const chaos_generator *d, const char *key, int64_t low, int64_t high)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%" PRId64, low + choose_number(d, key, high - low + 1));
    add_flag(d, key, text);
}

/* Adds a second word, which the key of the last item requires. */
static void add_required_flag(const chaos_generator *d, const char *word)
{
    invar_chaos_item *item = &d->out->items[d->out->count - 1];

    (void)snprintf(item->words[1], sizeof item->words[1], "%s", word);
}

static void add_variable(const chaos_generator *d, const char *name, const char *value)
{
    invar_chaos_item *item = add_item(d, INVAR_CHAOS_VARIABLE);

    (void)snprintf(item->words[0], sizeof item->words[0], "%s=%s", name, value);
    (void)snprintf(item->description, sizeof item->description, "%s=%.40s", name, value);
}

/* ---- variations ------------------------------------------------------------------------------ */

/* Varies how work is partitioned and how much is processed at a time. */
static void vary_keys(const chaos_generator *d)
{
    add_number_flag(d, "threads", 1, 6);
    if (choose_number(d, "dynamic", 2)) {
        add_number_flag(d, "max-tokens-per-gpu", 8, 200);
        add_required_flag(d, "--use-dynamic-batch-size=true");
    } else {
        add_number_flag(d, "micro-batch-size", 1, 9);
        add_required_flag(d, "--use-dynamic-batch-size=false");
    }
    add_number_flag(d, "rollout-concurrency", 1, 16);
    add_number_flag(d, "chunked-prefill-size", 0, 9);
    add_number_flag(d, "log-probs-chunk-size", 0, 9);
    add_number_flag(d, "page-size", 1, 8);
    add_required_flag(d, "--kv-pages=0"); // 0 allocates as many pages as are needed
    add_flag(d, "disable-prefix-sharing", choose_number(d, "prefix", 2) ? "true" : "false");
    add_flag(d, "recompute-granularity", choose_number(d, "recompute", 2) ? "full" : "none");
}

static void vary_environment(const chaos_generator *d, const invar_chaos_locales *locales)
{
    static const char *const zones[] = {"UTC", "Asia/Kathmandu", "Pacific/Chatham",
                                        "America/St_Johns"};
    static const char filler[] = "0123456789abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ";
    char text[32];

    add_variable(d, "TZ", zones[choose_number(d, "zone", 4)]);
    if (locales->count)
        add_variable(d, "LC_ALL",
                     locales->names[choose_number(d, "locale", (int64_t)locales->count)]);
    (void)snprintf(text, sizeof text, "%" PRId64, 1 + choose_number(d, "perturb", 255));
    add_variable(d, "MALLOC_PERTURB_", text);
    // a string of random length moves the stack
    add_variable(d, "CHAOS_FILLER",
                 filler + choose_number(d, "filler", (int64_t)sizeof filler - 1));
}

static void vary_process(const chaos_generator *d)
{
    int64_t nice = choose_number(d, "nice", 11);
    invar_chaos_item *item;

    if (nice) {
        item = add_item(d, INVAR_CHAOS_PREFIX);
        (void)snprintf(item->words[0], sizeof item->words[0], "nice -n %" PRId64, nice);
        (void)snprintf(item->description, sizeof item->description, "niceness %" PRId64, nice);
    }
    if (choose_number(d, "addresses", 2)) {
        item = add_item(d, INVAR_CHAOS_ADDRESSES);
        (void)snprintf(item->description, sizeof item->description, "fixed addresses");
    }
    if (choose_number(d, "folder", 2)) {
        item = add_item(d, INVAR_CHAOS_FOLDER);
        (void)snprintf(item->description, sizeof item->description, "another folder");
    }
}

void invar_chaos_generate(invar_chaos *out, const invar_chaos_locales *locales, int64_t seed,
                          const char *name, int64_t number)
{
    chaos_generator d = {.out = out, .seed = seed, .name = name, .number = number};

    out->count = 0;
    vary_keys(&d);
    vary_environment(&d, locales);
    vary_process(&d);
}

/* ---- composition ----------------------------------------------------------------------------- */

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
        if (used < sizeof out->description)
            used += (size_t)snprintf(out->description + used, sizeof out->description - used,
                                     "%s%s", used ? ", " : "", it->description);
    }
}

/* ---- locales --------------------------------------------------------------------------------- */

static void add_locale(invar_chaos_locales *out, const char *name, size_t length)
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
        return INVAR_OK; // without the list, locales are not varied
    INVAR_TRY(invar_file_read(&text, &bytes, log, INVAR_CHILD_LOG_BYTES));
    for (char *at = text, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, "\n");
        add_locale(out, at, (size_t)(end - at));
    }
    invar_free(text);
    (void)unlink(log);
    return INVAR_OK;
}
