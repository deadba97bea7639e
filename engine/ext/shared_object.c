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

#include "engine/ext/shared_object.h"

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
#include "engine/ext/plugin_kinds.h"

#include "base/invar_banned.h"

#define SYMBOL "invar_plugin_v1"
#define PATH_BYTES 4096

struct invar_shared_object {
    const char *name;
    void *library;
    void *self;
    bool opened;
    invar_plugin_table table; /* functions that the object does not know are NULL */
    char title[INVAR_PLUGIN_TITLE_SIZE];
};

/* ---- restored state -------------------------------------------------------------------------- */

typedef struct saved_environment {
    fenv_t rounding;
    int folder; /* -1 if the current folder cannot be opened */
} saved_environment;

static void save_environment(saved_environment *s)
{
    fegetenv(&s->rounding);
    s->folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static void restore_environment(saved_environment *s)
{
    fesetenv(&s->rounding);
    if (s->folder < 0)
        return;
    INVAR_CHECK(fchdir(s->folder) == 0);
    close(s->folder);
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

static invar_status load_library(invar_shared_object *object, const char *path)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char file[PATH_BYTES], quote[INVAR_TEXT_QUOTE_SIZE * 3];
    const char *why;
    saved_environment before;
    int bytes = snprintf(file, sizeof file, "%s%s", strchr(path, '/') ? "" : "./", path);

    if (bytes < 0 || (size_t)bytes >= sizeof file)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %.1000s: the path is too long",
                          object->name);
    pthread_once(&once, install_exit_handler);
    atomic_fetch_add(&n_loaded_objects, 1);
    save_environment(&before);
    object->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    restore_environment(&before);
    if (object->library)
        return INVAR_OK;
    atomic_fetch_sub(&n_loaded_objects, 1);
    why = dlerror();
    why = why ? why : "unknown reason";
    invar_text_quote(quote, sizeof quote, why, strlen(why));
    return INVAR_FAIL(INVAR_E_IO, 0, "plug-in %.1000s: cannot load it: %s", object->name, quote);
}

static invar_status read_table(invar_shared_object *object)
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
    invar_text_quote(object->title, sizeof object->title, table->name, strlen(table->name));
    return INVAR_OK;
}

static invar_status fail_refused(const invar_shared_object *object, int rc,
                                 char error[INVAR_PLUGIN_ERROR_SIZE])
{
    char quote[INVAR_TEXT_QUOTE_SIZE * 3];

    error[INVAR_PLUGIN_ERROR_SIZE - 1] = '\0';
    invar_text_quote(quote, sizeof quote, error, strlen(error));
    return INVAR_FAIL(INVAR_E_STATE, rc, "plug-in %.1000s: it refuses: %s", object->name,
                      quote[0] ? quote : "it does not say why");
}

static invar_status call_open(invar_shared_object *object)
{
    char error[INVAR_PLUGIN_ERROR_SIZE] = "";
    saved_environment before;
    int rc = 0;

    save_environment(&before);
    if (object->table.open)
        rc = object->table.open(&object->self, error);
    restore_environment(&before);
    if (rc)
        return fail_refused(object, rc, error);
    object->opened = true;
    return INVAR_OK;
}

invar_status invar_shared_object_open(invar_shared_object **out, const char *name, const char *path)
{
    invar_shared_object *object;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(object, 1, "a plug-in"));
    object->name = name;
    status = load_library(object, path);
    if (status == INVAR_OK)
        status = read_table(object);
    if (status == INVAR_OK)
        status = call_open(object);
    if (status != INVAR_OK) {
        invar_shared_object_close(object);
        return status;
    }
    *out = object;
    return INVAR_OK;
}

void invar_shared_object_close(invar_shared_object *object)
{
    saved_environment before;

    if (!object)
        return;
    save_environment(&before);
    if (object->opened && object->table.close)
        object->table.close(object->self);
    if (object->library)
        dlclose(object->library);
    restore_environment(&before);
    if (object->library)
        atomic_fetch_sub(&n_loaded_objects, 1);
    invar_free(object);
}

uint32_t invar_shared_object_kinds(const invar_shared_object *object)
{
    const invar_plugin_table *t = &object->table;

    return (t->reward ? INVAR_PLUGIN_KIND_REWARD : 0) |
           (t->group_reward ? INVAR_PLUGIN_KIND_GROUP_REWARD : 0) |
           (t->filter ? INVAR_PLUGIN_KIND_FILTER : 0) | (t->loss ? INVAR_PLUGIN_KIND_LOSS : 0) |
           (t->hook || t->report ? INVAR_PLUGIN_KIND_HOOK : 0) |
           (t->generate ? INVAR_PLUGIN_KIND_GENERATE : 0) |
           (t->buffer_filter ? INVAR_PLUGIN_KIND_BUFFER_FILTER : 0) |
           (t->prompts ? INVAR_PLUGIN_KIND_PROMPTS : 0);
}

const char *invar_shared_object_title(const invar_shared_object *object)
{
    return object->title;
}

static size_t count_names(const invar_plugin_table *t)
{
    size_t count = 0;

    while (t->part_names && t->part_names[count] && count <= INVAR_REWARD_PARTS)
        count++;
    return count;
}

/* Calls the parts function for the rewards that were given just now. */
static invar_status call_parts(invar_shared_object *object, const invar_plugin_call *call,
                               size_t names, double *values)
{
    const invar_plugin_table *t = &object->table;
    char error[INVAR_PLUGIN_ERROR_SIZE] = "", where[INVAR_PLUGIN_ERROR_SIZE];
    saved_environment before;
    int rc;

    save_environment(&before);
    rc = t->parts(object->self, call->samples, call->count, values, error);
    restore_environment(&before);
    if (rc)
        return fail_refused(object, rc, error);
    (void)snprintf(where, sizeof where, "plug-in %.100s", object->name);
    for (size_t i = 0; i < call->count * names; i++)
        INVAR_TRY(invar_reward_parts_add(&call->parts[i / names], t->part_names[i % names],
                                         strlen(t->part_names[i % names]), values[i], where));
    return INVAR_OK;
}

static invar_status add_parts(invar_shared_object *object, const invar_plugin_call *call)
{
    size_t names = call->reward && object->table.parts ? count_names(&object->table) : 0;
    double *values = NULL;
    invar_status status;

    if (names == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(values, call->count * names, "parts of rewards"));
    for (size_t i = 0; i < call->count * names; i++)
        values[i] = (double)NAN; // detects values that were not set
    status = call_parts(object, call, names, values);
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

invar_status invar_shared_object_call(invar_shared_object *object, const invar_plugin_call *call)
{
    char error[INVAR_PLUGIN_ERROR_SIZE] = "";
    saved_environment before;
    int rc;

    save_environment(&before);
    rc = call_function(&object->table, object->self, call, error);
    restore_environment(&before);
    return rc ? fail_refused(object, rc, error) : add_parts(object, call);
}

/* ---- hooks ----------------------------------------------------------------------------------- */

/* Rejects values that JSON cannot represent. */
static invar_status check_report(const invar_shared_object *object,
                                 const invar_plugin_report *report)
{
    bool finite = isfinite(report->loss_factor);

    if (report->count > INVAR_REWARD_PARTS ||
        (report->count > 0 && (!report->names || !report->values)))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in %.1000s: a hook reports %zu values; at most %d, with names",
                          object->name, report->count, INVAR_REWARD_PARTS);
    for (size_t i = 0; i < report->count; i++)
        finite = finite && isfinite(report->values[i]);
    if (!finite)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in %.1000s: a value or factor of a hook is not finite",
                          object->name);
    return INVAR_OK;
}

static void write_report(invar_json_text *line, const invar_plugin_report *report)
{
    invar_json_text_open(line, '{');
    invar_json_text_key(line, "metrics");
    invar_json_text_open(line, '{');
    for (size_t i = 0; i < report->count; i++) {
        invar_json_text_key(line, report->names[i]);
        invar_json_text_f64(line, report->values[i]);
    }
    invar_json_text_close(line, '}');
    if (report->loss_factor != 1.0) {
        invar_json_text_key(line, "loss_factor");
        invar_json_text_f64(line, report->loss_factor);
    }
    invar_json_text_close(line, '}');
}

invar_status invar_shared_object_report(invar_json_text *line_out, invar_shared_object *object,
                                        const invar_plugin_call *call)
{
    invar_plugin_report report = {.loss_factor = 1.0};
    char error[INVAR_PLUGIN_ERROR_SIZE] = "";
    saved_environment before;
    int rc = 0;

    save_environment(&before);
    if (object->table.report)
        rc = object->table.report(object->self, call->event, &report, error);
    restore_environment(&before);
    if (rc)
        return fail_refused(object, rc, error);
    INVAR_TRY(check_report(object, &report));
    write_report(line_out, &report);
    return line_out->status;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Rejects values that JSON cannot represent. */
static invar_status check_next(const invar_shared_object *object, const invar_plugin_next *next,
                               size_t i, size_t names)
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

static invar_status call_generate(invar_shared_object *object, const invar_plugin_call *call,
                                  invar_plugin_next *next)
{
    char error[INVAR_PLUGIN_ERROR_SIZE] = "";
    size_t names = count_names(&object->table);
    saved_environment before;
    int rc;

    save_environment(&before);
    rc = object->table.generate(object->self, call->turns, call->count, next, error);
    restore_environment(&before);
    if (rc)
        return fail_refused(object, rc, error);
    for (size_t i = 0; i < call->count; i++)
        INVAR_TRY(check_next(object, &next[i], i, names));
    return INVAR_OK;
}

invar_status invar_shared_object_turns(invar_json_text *line_out, invar_shared_object *object,
                                       const invar_plugin_call *call)
{
    invar_plugin_next *next = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(next, call->count, "what follows turns"));
    status = call_generate(object, call, next);
    if (status == INVAR_OK) {
        invar_turn_actions_write(line_out, next, call->count, object->table.part_names);
        status = line_out->status;
    }
    invar_free(next);
    return status;
}
