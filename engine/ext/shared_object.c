/*
 * shared_object.c - loads plug-ins that are C shared objects, and calls them safely.
 *
 * Foreign code can silently change results by changing the rounding mode of this thread: code built
 * with -ffast-math does so when it is loaded. It can also change the current folder, and relative
 * paths with it. Both are restored after loading and after every call. An exit() in a plug-in would
 * look like a completed run: as long as an object is loaded, the process ends with a message and
 * exit code 2 instead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // O_PATH

#include <dlfcn.h>
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/ext/plugin_backend.h"

#include "base/invar_banned.h"

#define SYMBOL "invar_plugin_v1"
#define PATH_BYTES 4096

typedef struct shared_object {
    const char *name;
    void *library;
    void *self;
    bool opened;
    invar_plugin_table table; /* functions that the object does not know are NULL */
} shared_object;

/* ---- foreign code ---------------------------------------------------------------------------- */

/* State that foreign code may change, and the reason that it gives for a failure. */
typedef struct foreign_call {
    fenv_t rounding;
    int folder; /* -1 if the current folder cannot be opened */
    char error[INVAR_PLUGIN_ERROR_SIZE];
} foreign_call;

static void begin_foreign(foreign_call *f)
{
    *f = (foreign_call){0};
    fegetenv(&f->rounding);
    f->folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Restores the state; fails if the function has returned another code than 0. */
static invar_status end_foreign(foreign_call *f, const shared_object *object, int rc)
{
    char quote[INVAR_TEXT_QUOTE_SIZE * 3];

    fesetenv(&f->rounding);
    if (f->folder >= 0) {
        INVAR_CHECK(fchdir(f->folder) == 0);
        close(f->folder);
    }
    if (!rc)
        return INVAR_OK;
    f->error[INVAR_PLUGIN_ERROR_SIZE - 1] = '\0';
    invar_text_quote(quote, sizeof quote, f->error, strlen(f->error));
    return INVAR_FAIL(INVAR_E_STATE, rc, "plug-in %.1000s: it refuses: %s", object->name,
                      quote[0] ? quote : "it does not say why");
}

/* ---- exit by a plug-in ----------------------------------------------------------------------- */

static atomic_int n_loaded_objects; /* number of loaded objects */

static void exit_with_error(void)
{
    static const char message[] = "invar: a plug-in that is a shared object has ended the process "
                                  "with exit(); the run is not "
                                  "finished, start it again to continue\n";

    if (atomic_load(&n_loaded_objects) == 0)
        return;
    (void)fflush(NULL);
    (void)fputs(message, stderr);
    _exit(2);
}

static void install_exit_handler(void)
{
    INVAR_CHECK(atexit(exit_with_error) == 0 && at_quick_exit(exit_with_error) == 0);
}

/* ---- opening --------------------------------------------------------------------------------- */

static invar_status load_library(shared_object *object, const char *path)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char file[PATH_BYTES], quote[INVAR_TEXT_QUOTE_SIZE * 3];
    const char *why;
    foreign_call f;
    int bytes = snprintf(file, sizeof file, "%s%s", strchr(path, '/') ? "" : "./", path);

    if (bytes < 0 || (size_t)bytes >= sizeof file)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %.1000s: the path is too long",
                          object->name);
    pthread_once(&once, install_exit_handler);
    atomic_fetch_add(&n_loaded_objects, 1);
    begin_foreign(&f);
    object->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    INVAR_TRY(end_foreign(&f, object, 0));
    if (object->library)
        return INVAR_OK;
    atomic_fetch_sub(&n_loaded_objects, 1);
    why = dlerror();
    why = why ? why : "unknown reason";
    invar_text_quote(quote, sizeof quote, why, strlen(why));
    return INVAR_FAIL(INVAR_E_IO, 0, "plug-in %.1000s: cannot load it: %s", object->name, quote);
}

static invar_status read_table(shared_object *object, char title_out[INVAR_PLUGIN_TITLE_SIZE])
{
    const invar_plugin_table *table = dlsym(object->library, SYMBOL);
    uint32_t size;

    if (!table)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "plug-in %.1000s: it does not export the symbol " SYMBOL, object->name);
    if (table->abi != INVAR_PLUGIN_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "plug-in %.1000s: it was built for version %u of the interface, this "
                          "engine has %d",
                          object->name, table->abi, INVAR_PLUGIN_ABI);
    size = table->size < sizeof object->table ? table->size : (uint32_t)sizeof object->table;
    if (size < offsetof(invar_plugin_table, open) || !table->name || !table->name[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %.1000s: its " SYMBOL " has no size or name",
                          object->name);
    memcpy(&object->table, table, size);
    invar_text_quote(title_out, INVAR_PLUGIN_TITLE_SIZE, table->name, strlen(table->name));
    return INVAR_OK;
}

static uint32_t find_kinds(const invar_plugin_table *t)
{
    uint32_t kinds = 0;

#define INVAR_PLUGIN_KIND(ID, bit, name, asked, answered, offered)                                 \
    if (offered)                                                                                   \
        kinds |= bit;
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_KIND
    return kinds;
}

static invar_status open_object(invar_plugin_peer *peer, uint32_t *offered_out,
                                const invar_plugin_options *options)
{
    shared_object *object;
    foreign_call f;

    INVAR_TRY(INVAR_ALLOC_ZEROED(object, 1, "a plug-in"));
    peer->self = object;
    object->name = peer->name;
    INVAR_TRY(load_library(object, options->spec));
    INVAR_TRY(read_table(object, peer->title));
    *offered_out = find_kinds(&object->table);
    begin_foreign(&f);
    INVAR_TRY(end_foreign(&f, object,
                          object->table.open ? object->table.open(&object->self, f.error) : 0));
    object->opened = true;
    return INVAR_OK;
}

static void close_object(invar_plugin_peer *peer)
{
    shared_object *object = peer->self;
    foreign_call f;

    if (!object)
        return;
    begin_foreign(&f);
    if (object->opened && object->table.close)
        object->table.close(object->self);
    if (object->library)
        dlclose(object->library);
    (void)end_foreign(&f, object, 0);
    if (object->library)
        atomic_fetch_sub(&n_loaded_objects, 1);
    invar_free(object);
}

/* ---- calls with values ----------------------------------------------------------------------- */

static size_t count_names(const invar_plugin_table *t)
{
    size_t count = 0;

    while (t->part_names && t->part_names[count] && count <= INVAR_REWARD_PARTS)
        count++;
    return count;
}

/* Calls the parts function for the rewards that were given just now. */
static invar_status add_parts(const shared_object *object, const invar_plugin_call *call)
{
    const invar_plugin_table *t = &object->table;
    size_t names = call->reward && t->parts ? count_names(t) : 0, count = call->count * names;
    char where[INVAR_PLUGIN_ERROR_SIZE];
    double *values = NULL;
    foreign_call f;
    invar_status status;

    if (names == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(values, count, "parts of rewards"));
    for (size_t i = 0; i < count; i++)
        values[i] = (double)NAN; // detects values that were not set
    begin_foreign(&f);
    status = end_foreign(&f, object,
                         t->parts(object->self, call->samples, call->count, values, f.error));
    (void)snprintf(where, sizeof where, "plug-in %.100s", object->name);
    for (size_t i = 0; i < count && status == INVAR_OK; i++)
        status = invar_reward_parts_add(&call->parts[i / names], t->part_names[i % names],
                                        strlen(t->part_names[i % names]), values[i], where);
    invar_free(values);
    return status;
}

static int call_function(const invar_plugin_table *t, void *self, const invar_plugin_call *call,
                         char *error)
{
    switch (call->kind) {
    case INVAR_PLUGIN_KIND_REWARD:
        return t->reward(self, call->samples, call->count, call->reward, error);
    case INVAR_PLUGIN_KIND_GROUP_REWARD:
        return t->group_reward(self, call->samples, call->count, call->reward, error);
    case INVAR_PLUGIN_KIND_FILTER:
        return t->filter(self, call->samples, call->count, call->verdict, error);
    case INVAR_PLUGIN_KIND_LOSS: return t->loss(self, call->tokens, call->dlogp, call->loss, error);
    case INVAR_PLUGIN_KIND_BUFFER_FILTER:
        return t->buffer_filter(self, call->buffer, call->samples, call->count, call->verdict,
                                error);
    case INVAR_PLUGIN_KIND_PROMPTS:
        return t->prompts(self, call->prompt_request, call->lines, error);
    default: return t->hook ? t->hook(self, call->event, error) : 0;
    }
}

/* ---- hooks ----------------------------------------------------------------------------------- */

/* Writes a report as a line of JSON. Rejects values that JSON cannot represent. */
static invar_status write_report(invar_json_text *line, const shared_object *object,
                                 const invar_plugin_report *report)
{
    bool finite = isfinite(report->loss_factor);

    if (report->count > INVAR_REWARD_PARTS ||
        (report->count > 0 && (!report->names || !report->values)))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in %.1000s: a hook reports %zu values; at most %d, with names",
                          object->name, report->count, INVAR_REWARD_PARTS);
    invar_json_text_open(line, '{');
    invar_json_text_put_open(line, "metrics", '{');
    for (size_t i = 0; i < report->count; i++) {
        finite = finite && isfinite(report->values[i]);
        invar_json_text_put_f64(line, report->names[i], report->values[i]);
    }
    invar_json_text_close(line, '}');
    if (report->loss_factor != 1.0) {
        invar_json_text_put_f64(line, "loss_factor", report->loss_factor);
    }
    invar_json_text_close(line, '}');
    return finite ? INVAR_OK
                  : INVAR_FAIL(INVAR_E_CORRUPT, 0,
                               "plug-in %.1000s: a value or factor of a hook is not finite",
                               object->name);
}

static invar_status call_report(invar_json_text *line, const shared_object *object,
                                const invar_plugin_call *call)
{
    const invar_plugin_table *t = &object->table;
    invar_plugin_report report = {.loss_factor = 1.0};
    foreign_call f;

    begin_foreign(&f);
    INVAR_TRY(end_foreign(&f, object,
                          t->report ? t->report(object->self, call->event, &report, f.error) : 0));
    return write_report(line, object, &report);
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Rejects values that JSON cannot represent. */
static invar_status check_next(const shared_object *object, const invar_plugin_next *next, size_t i,
                               size_t names)
{
    bool finite = isfinite(next->reward);

    for (size_t k = 0; next->parts && k < names; k++)
        finite = finite && isfinite(next->parts[k]);
    if (next->end && next->rewarded && !finite)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in %.1000s: the reward of turn %zu is not finite", object->name, i);
    if (!next->end && (next->n_tokens < 0 || (next->n_tokens > 0 && !next->tokens)))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in %.1000s: turn %zu inserts %lld tokens that it does not pass",
                          object->name, i, (long long)next->n_tokens);
    return INVAR_OK;
}

/* Calls the generate function and writes its actions as the line that a program would send. */
static invar_status call_generate(invar_json_text *line, const shared_object *object,
                                  const invar_plugin_call *call)
{
    const invar_plugin_table *t = &object->table;
    invar_plugin_next *next = NULL;
    foreign_call f;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(next, call->count, "what follows turns"));
    begin_foreign(&f);
    status =
        end_foreign(&f, object, t->generate(object->self, call->turns, call->count, next, f.error));
    for (size_t i = 0; i < call->count && status == INVAR_OK; i++)
        status = check_next(object, &next[i], i, count_names(t));
    if (status == INVAR_OK)
        invar_turn_actions_write(line, next, call->count, t->part_names);
    invar_free(next);
    return status;
}

/* ---- back end -------------------------------------------------------------------------------- */

static invar_status ask_object(invar_plugin_peer *peer, const invar_plugin_call *call)
{
    const shared_object *object = peer->self;
    foreign_call f;

    invar_json_text_reset(&peer->text);
    if (call->kind == INVAR_PLUGIN_KIND_GENERATE) {
        INVAR_TRY(call_generate(&peer->text, object, call));
        return invar_plugin_call_read_text(call, &peer->text, false);
    }
    begin_foreign(&f);
    INVAR_TRY(end_foreign(&f, object, call_function(&object->table, object->self, call, f.error)));
    INVAR_TRY(add_parts(object, call));
    if (call->kind != INVAR_PLUGIN_KIND_HOOK)
        return invar_plugin_call_pack(&peer->text, call);
    INVAR_TRY(call_report(&peer->text, object, call));
    return invar_plugin_call_read_text(call, &peer->text, false);
}

const invar_plugin_backend invar_shared_object_backend = {open_object, ask_object, NULL,
                                                          close_object};
