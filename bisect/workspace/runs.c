/*
 * runs.c - runs a program on a recipe, or takes the result from the cache of runs.
 *
 * A run is `PROGRAM train RECIPE --run FOLDER ...` in runs/KEY.TAG.tmp, renamed to runs/KEY when it
 * has an outcome. Keys that would read or write outside the folder, or need several ranks, are
 * turned off. The key covers binary, recipe, flags, environment, current folder and the state of
 * the named files. A run without a step in its ledger has failed, whatever its exit code.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/process/process.h"
#include "base/recipe/flatten.h"
#include "bisect/workspace/workspace.h"
#include "bisect/workspace/workspace_internal.h"
#include "ledger/ledger.h"

#include "base/invar_banned.h"

#define LOOK_MS 100 /* smallest interval between two reads of the ledger */
#define RUN_GRACE                                                                                  \
    10.0 /* seconds that a run has to end after SIGTERM; its ledger is valid even
                          after SIGKILL */

typedef struct run_job {
    const invar_run_request *request;
    invar_run_result *out;
    const char *recipe;   /* text of the recipe */
    int64_t last_read_ms; /* time of the last read of the ledger, in ms */
    int64_t step;         /* newest known step, or -1 */
    invar_status status;
} run_job;

/* ---- the outcome file ------------------------------------------------------------------------ */

static invar_status write_outcome(const invar_run_result *ran)
{
    char path[INVAR_PATH_SIZE], seconds[INVAR_NUMBER_SIZE], text[256];
    int bytes;

    INVAR_TRY(invar_number_format(seconds, ran->seconds));
    bytes = snprintf(text, sizeof text,
                     "[run]\nenough = %s\nexit-code = %d\nseconds = %s\npeak-bytes = %" PRId64 "\n",
                     ran->enough ? "true" : "false", ran->exit_code, seconds, ran->peak_bytes);
    INVAR_TRY(invar_path_join(path, sizeof path, ran->folder, "outcome"));
    return invar_file_write(path, text, (size_t)bytes);
}

/* *out is false if the folder has no valid outcome file. */
static invar_status read_outcome(bool *out, invar_run_result *ran, const char *folder)
{
    char *text, enough[8];
    double code = 0, peak = 0;

    INVAR_TRY(invar_workspace_record_read(&text, folder, "outcome", 5));
    *out = text && invar_workspace_value_copy(enough, sizeof enough, NULL, text, "enough") &&
           invar_workspace_record_number(&code, text, "exit-code") &&
           invar_workspace_record_number(&ran->seconds, text, "seconds") &&
           invar_workspace_record_number(&peak, text, "peak-bytes");
    ran->enough = *out && strcmp(enough, "true") == 0;
    *out = *out && (ran->enough || strcmp(enough, "false") == 0);
    ran->exit_code = (int)code;
    ran->peak_bytes = (int64_t)peak;
    if (!*out)
        invar_error_clear();
    invar_free(text);
    return INVAR_OK;
}

static invar_status set_paths(invar_run_result *out, const char *folder)
{
    (void)snprintf(out->folder, sizeof out->folder, "%s", folder);
    return invar_path_join(out->ledger, sizeof out->ledger, folder, "ledger.db");
}

/*
 * Loads the run in `folder`. *out is false unless it is complete, or was ended early at a point
 * that is enough for this request as well.
 */
static invar_status load_cached_run(bool *out, invar_run_result *ran, const char *folder,
                                    const invar_run_request *q)
{
    INVAR_TRY(read_outcome(out, ran, folder));
    if (!*out)
        return INVAR_OK;
    INVAR_TRY(set_paths(ran, folder));
    ran->state = INVAR_RUN_DONE;
    *out = invar_path_exists(ran->ledger) &&
           (!ran->enough || (q->should_stop && q->should_stop(q->payload, ran->ledger)));
    return INVAR_OK;
}

/* ---- the command line ------------------------------------------------------------------------ */

/*
 * Keys with which a run would read or write outside its folder or need several ranks, and the
 * values that turn them off. Programs of other versions may lack keys, so all except the first two
 * are set only if the recipe sets them.
 */
static const char *const disabled_keys[][2] = {{"save", ""},
                                               {"load", ""},
                                               {"save-interval", "0"},
                                               {"save-interval-minutes", "0"},
                                               {"save-hf", ""},
                                               {"no-save-optim", "false"},
                                               {"keep-checkpoints", "0"},
                                               {"ckpt-step", "-1"},
                                               {"skip-damaged", "false"},
                                               {"ledger", ""},
                                               {"save-debug-rollout-data", ""},
                                               {"debug-dump", ""},
                                               {"debug-dump-dir", ""},
                                               {"trace", ""},
                                               {"tensorboard-dir", ""},
                                               {"prometheus-port", "0"},
                                               {"prometheus-file", ""},
                                               {"sink", ""},
                                               {"sink-timeout", "30"},
                                               {"tensor-model-parallel-size", "1"},
                                               {"expert-model-parallel-size", "1"},
                                               {"context-parallel-size", "1"},
                                               {"expert-tensor-parallel-size", "0"},
                                               {"pipeline-model-parallel-size", "1"},
                                               {"num-virtual-stages-per-pipeline-rank", "1"},
                                               {"rollout-num-gpus", "0"},
                                               {"rollout-num-gpus-per-engine", "1"}};

#define N_DISABLED_KEYS (sizeof disabled_keys / sizeof disabled_keys[0])
#define ALWAYS 2
#define FLAG_SIZE 40

/* Returns true if the line that begins here sets the key. */
static bool line_sets_key(const char *command_line, const char *key)
{
    size_t length = strlen(key);

    return strncmp(command_line, key, length) == 0 &&
           command_line[length + strspn(command_line + length, " ")] == '=';
}

static bool has_flag(const char *const *flags, const char *flag)
{
    size_t length = strlen(flag);

    for (; flags && *flags; flags++) {
        if (strncmp(*flags, flag, length) == 0 && (!(*flags)[length] || (*flags)[length] == '='))
            return true;
    }
    return false;
}

/* Command line under construction. The words point to texts owned elsewhere. */
typedef struct command_line {
    const char **words;
    size_t used;
    char *prefix; /* copy of the prefix, split at blanks */
    char flags[N_DISABLED_KEYS][FLAG_SIZE];
    char until[24];
    char name[INVAR_LEDGER_NAME_BYTES + 1];
} command_line;

static void add_word(command_line *l, const char *word)
{
    l->words[l->used++] = word;
}

static void add_key(command_line *l, const char *key, const char *value)
{
    add_word(l, key);
    add_word(l, value);
}

/* Names the run after its recipe instead of its cache folder. */
static void add_name(command_line *l, const run_job *r)
{
    const invar_run_request *q = r->request;
    const char *slash = strrchr(q->recipe, '/'), *file = slash ? slash + 1 : q->recipe;
    size_t bytes = 0;
    const char *value = invar_workspace_value(&bytes, q->flags, r->recipe, "name");

    if (has_flag(q->flags, "--name"))
        return;
    if (!value || bytes == 0) {
        const char *dot = strrchr(file, '.');
        value = file;
        bytes = dot && dot > file ? (size_t)(dot - file) : strlen(file);
    }
    (void)snprintf(l->name, sizeof l->name, "%.*s", (int)bytes, value);
    add_key(l, "--name", l->name);
}

/* PREFIX PROGRAM train RECIPE --run FOLDER --name NAME --save "" --load "" --no-report FLAGS */
static void build_words(command_line *l, const run_job *r)
{
    const invar_run_request *q = r->request;
    char *rest = NULL;
    size_t bytes;

    for (char *word = strtok_r(l->prefix, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest))
        add_word(l, word);
    add_word(l, q->program);
    add_word(l, "train");
    add_word(l, q->recipe);
    add_key(l, "--run", r->out->folder);
    add_name(l, r);
    for (size_t i = 0; i < N_DISABLED_KEYS; i++) {
        (void)snprintf(l->flags[i], FLAG_SIZE, "--%s", disabled_keys[i][0]);
        if (has_flag(q->flags, l->flags[i]) ||
            (i >= ALWAYS && !invar_workspace_value(&bytes, NULL, r->recipe, disabled_keys[i][0])))
            continue;
        add_key(l, l->flags[i], disabled_keys[i][1]);
    }
    add_word(l, "--no-report");
    if (q->record_mismatch && !has_flag(q->flags, "--on-mismatch")) {
        add_key(l, "--on-mismatch", "record");
    }
    if (q->until >= 0) {
        (void)snprintf(l->until, sizeof l->until, "%" PRId64, q->until);
        add_key(l, "--until", l->until);
    }
    for (const char *const *flag = q->flags; flag && *flag; flag++)
        add_word(l, *flag);
    add_word(l, NULL);
}

static invar_status build_command_line(command_line *l, const run_job *r)
{
    const char *prefix = r->request->prefix ? r->request->prefix : "";
    size_t bytes = strlen(prefix) + 1;

    INVAR_TRY(INVAR_ALLOC(l->prefix, bytes, "a command"));
    memcpy(l->prefix, prefix, bytes);
    INVAR_TRY(INVAR_ALLOC(l->words,
                          bytes / 2 + invar_workspace_count_words(r->request->flags) +
                              2 * N_DISABLED_KEYS + 14,
                          "a command's words"));
    build_words(l, r);
    return INVAR_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Progress of a run. */
typedef struct run_progress {
    int64_t step; /* newest step; -1 without a step or a readable ledger */
    bool stopped; /* a signal stopped the run, in order and before its last step */
} run_progress;

static invar_status read_finish_reason(void *payload, const invar_ledger_value *values)
{
    run_progress *p = payload;

    p->stopped = strcmp(values[0].data, "stopped") == 0;
    return INVAR_OK;
}

static invar_status read_progress(run_progress *out, const char *path)
{
    invar_ledger *ledger = NULL;
    invar_ledger_summary run;
    invar_status status;

    *out = (run_progress){.step = -1};
    if (!invar_path_exists(path))
        return INVAR_OK;
    status = invar_workspace_ledger_open(&ledger, &run, path);
    if (status == INVAR_OK)
        out->step = run.last_step;
    if (status == INVAR_OK && run.finished)
        status = invar_workspace_ledger_select(
            ledger, "SELECT reason FROM finish ORDER BY seg DESC LIMIT 1", NULL, 0,
            read_finish_reason, out);
    invar_ledger_close(ledger);
    if (status == INVAR_E_NOMEM)
        return status;
    if (status != INVAR_OK)
        invar_error_clear();
    return INVAR_OK;
}

static bool poll_run(void *payload)
{
    run_job *r = payload;
    int64_t now = invar_process_clock_ms();
    run_progress p;

    if (now - r->last_read_ms < LOOK_MS || r->status != INVAR_OK)
        return r->status != INVAR_OK;
    r->last_read_ms = now;
    r->status = read_progress(&p, r->out->ledger);
    if (r->status != INVAR_OK)
        return true;
    if (p.step <= r->step)
        return false;
    r->step = p.step;
    return r->request->should_stop(r->request->payload, r->out->ledger);
}

/*
 * Classifies the end of the child. A program that leaves no step has not run the recipe, whatever
 * its exit code.
 */
static invar_status classify_exit(run_job *r, const invar_child_result *result)
{
    invar_run_result *out = r->out;
    bool finished = result->end == INVAR_CHILD_EXITED && (result->code == 0 || result->code == 1);
    run_progress p;

    out->seconds = result->seconds;
    out->peak_bytes = result->peak_bytes;
    out->enough = result->end == INVAR_CHILD_ENDED_EARLY;
    if (!out->enough) // the exit code of a run that was ended early has no meaning
        out->exit_code = result->code + (result->end == INVAR_CHILD_SIGNALLED ? 128 : 0);
    out->state = INVAR_RUN_FAILED;
    if (result->end == INVAR_CHILD_STOPPED) {
        out->state = INVAR_RUN_STOPPED;
        return INVAR_OK;
    }
    INVAR_TRY(read_progress(&p, out->ledger));
    if (result->end == INVAR_CHILD_EXITED && p.stopped)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a run was ended after step %" PRId64 " by a signal that came from "
                          "elsewhere: run the same command again to continue",
                          p.step);
    invar_child_describe(out->failure_reason, result, r->request->timeout);
    if (p.step >= 0 && (finished || out->enough)) {
        out->state = INVAR_RUN_DONE;
        if (out->enough || out->exit_code == 0)
            out->failure_reason[0] = '\0';
        if (r->request->should_stop && !out->enough)
            (void)r->request->should_stop(r->request->payload, out->ledger);
        return INVAR_OK;
    }
    if (result->end == INVAR_CHILD_EXITED && result->code == 0)
        (void)snprintf(out->failure_reason, sizeof out->failure_reason,
                       "it ended well, but left no ledger with a step");
    return INVAR_OK;
}

static invar_status execute_run(run_job *r, int lock)
{
    // a compared run needs no checkpoints; --save "" has the same effect in older programs
    static const char *const common[] = {INVAR_WORKTREE_WITHOUT, "INVAR_SAVE=none"};
    const size_t n_common = sizeof common / sizeof common[0];
    const invar_run_request *q = r->request;
    size_t extra = invar_workspace_count_words(q->environment);
    char log[INVAR_PATH_SIZE];
    command_line l = {0};
    const char **environment = NULL;
    invar_child_result result;
    invar_status status = invar_path_join(log, sizeof log, r->out->folder, "run.log");

    if (status == INVAR_OK)
        status = build_command_line(&l, r);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(environment, n_common + extra + 1, "a run's environment");
    if (status == INVAR_OK) {
        invar_child_request request = {.words = l.words,
                                       .environment = environment,
                                       .log = log,
                                       .lock = lock,
                                       .timeout = q->timeout,
                                       .stop = q->stop,
                                       .should_stop = q->should_stop ? poll_run : NULL,
                                       .payload = r,
                                       .kill_grace_s = RUN_GRACE,
                                       .same_addresses = q->same_addresses};

        memcpy(environment, common, sizeof common);
        if (extra)
            memcpy(environment + n_common, q->environment, extra * sizeof *environment);
        environment[n_common + extra] = NULL;
        status = invar_child_run(&result, &request);
    }
    if (status == INVAR_OK)
        status = r->status;
    if (status == INVAR_OK)
        status = classify_exit(r, &result);
    invar_free(environment);
    invar_free(l.words);
    invar_free(l.prefix);
    return status;
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* Adds the files that recipe and flags name, except those of keys that are turned off. */
static void hash_inputs(invar_hasher *hasher, const char *recipe, const char *const *flags)
{
    for (const char *at = recipe, *end; *at; at = *end ? end + 1 : end) {
        const char *sign = strchr(at, '=');
        bool apart = false;

        end = at + strcspn(at, "\n");
        for (size_t i = 0; i < N_DISABLED_KEYS && !apart; i++)
            apart = line_sets_key(at, disabled_keys[i][0]);
        if (*at != '#' && *at != ';' && !apart && sign && sign < end)
            invar_workspace_key_add_inputs(hasher, sign + 1, (size_t)(end - sign - 1));
    }
    for (const char *const *word = flags; word && *word; word++) {
        const char *sign = strncmp(*word, "--", 2) == 0 ? strchr(*word, '=') : NULL;
        const char *value = sign ? sign + 1 : *word;
        invar_workspace_key_add_inputs(hasher, value, strlen(value));
    }
}

void invar_workspace_inputs(invar_digest *out, const char *recipe, const char *const *flags)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    hash_inputs(&hasher, recipe, flags);
    invar_hasher_final(out, &hasher);
}

static invar_status make_key(invar_digest *out, const run_job *r)
{
    const invar_run_request *q = r->request;
    char current[INVAR_PATH_SIZE];
    invar_hasher hasher;

    if (!getcwd(current, sizeof current))
        return INVAR_FAIL(INVAR_E_IO, errno, "the current folder cannot be found: %s",
                          strerror(errno));
    invar_hasher_init(&hasher);
    invar_workspace_key_add(&hasher, "run");
    invar_hasher_update(&hasher, &q->binary, sizeof q->binary);
    invar_workspace_key_add(&hasher, r->recipe);
    invar_workspace_key_add(&hasher, current);
    invar_workspace_key_add(&hasher, q->prefix);
    invar_workspace_key_add(&hasher, q->name);
    invar_hasher_update(&hasher, &q->until, sizeof q->until);
    invar_workspace_key_add(&hasher, q->same_addresses ? "same addresses" : NULL);
    invar_workspace_key_add(&hasher, q->record_mismatch ? "record mismatch" : NULL);
    for (const char *const *word = q->flags; word && *word; word++)
        invar_workspace_key_add(&hasher, *word);
    invar_workspace_key_add(&hasher, NULL);
    for (const char *const *word = q->environment; word && *word; word++)
        invar_workspace_key_add(&hasher, *word);
    hash_inputs(&hasher, r->recipe, q->flags);
    invar_hasher_final(out, &hasher);
    return INVAR_OK;
}

/* Runs in the folder `made` and renames it to `path`, unless another process was faster. */
static invar_status run_and_store(run_job *r, int lock, const char *made, const char *path)
{
    invar_run_result *out = r->out;
    bool lost = false, there = false;

    INVAR_TRY(set_paths(out, made));
    INVAR_TRY(execute_run(r, lock));
    if (out->state == INVAR_RUN_STOPPED)
        return invar_held_folder_remove(made);
    if (out->state == INVAR_RUN_DONE)
        INVAR_TRY(write_outcome(out));
    INVAR_TRY(invar_workspace_entry_commit(&lost, made, path, r->request->no_cache));
    if (lost) {
        invar_run_result theirs = {0};
        INVAR_TRY(load_cached_run(&there, &theirs, path, r->request));
        if (there)
            INVAR_TRY(invar_held_folder_remove(made));
        else
            INVAR_TRY(invar_workspace_entry_commit(&lost, made, path, true));
    }
    return set_paths(out, path);
}

static invar_status load_or_run(run_job *r, const invar_workspace *workspace, int lock)
{
    char path[INVAR_PATH_SIZE], made[INVAR_PATH_SIZE];
    bool there = false;
    invar_digest key;
    invar_status status;

    INVAR_TRY(make_key(&key, r));
    INVAR_TRY(invar_workspace_path(path, workspace, "runs", &key));
    if (!r->request->no_cache)
        INVAR_TRY(load_cached_run(&there, r->out, path, r->request));
    r->out->cached = there;
    if (there)
        return INVAR_OK;
    *r->out = (invar_run_result){0};
    INVAR_TRY(invar_workspace_entry_new(made, workspace, "runs", &key));
    status = run_and_store(r, lock, made, path);
    if (status == INVAR_OK && r->out->state == INVAR_RUN_FAILED)
        status = invar_workspace_check_room(workspace);
    if (status != INVAR_OK)
        invar_workspace_entry_discard(made);
    return status;
}

/*
 * Fails if agents or a clock decide what happens in a run and no record is replayed: the result is
 * then not a function of the recipe, and comparing it means nothing. `word` is the value of `key`
 * that requires a record; NULL for any value.
 */
static invar_status require_record(const run_job *r, const char *key, const char *word,
                                   const char *record)
{
    const char *const *flags = r->request->flags, *value;
    size_t bytes, record_bytes; // 0 if the key is absent or empty

    value = invar_workspace_value(&bytes, flags, r->recipe, key);
    (void)invar_workspace_value(&record_bytes, flags, r->recipe, record);
    if (bytes == 0 || record_bytes > 0 ||
        (word && (bytes != strlen(word) || memcmp(value, word, bytes) != 0)))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s: with %s%s%s runs are compared by the record of one: set %s = RUN",
                      r->request->recipe, key, word ? " = " : "", word ? word : "", record);
}

invar_status invar_workspace_run(invar_run_result *out, invar_workspace *workspace, int lock,
                                 const invar_run_request *request)
{
    run_job r = {.request = request, .out = out, .step = -1};
    char *recipe;
    size_t bytes;
    invar_status status;

    *out = (invar_run_result){0};
    INVAR_TRY(invar_recipe_flatten(&recipe, &bytes, request->recipe));
    r.recipe = recipe;
    status = require_record(&r, "custom-agent-path", NULL, "agent-record");
    if (status == INVAR_OK)
        status = require_record(&r, "rollout-schedule", "recorded", "rollout-record");
    if (status == INVAR_OK)
        status = load_or_run(&r, workspace, lock);
    invar_free(recipe);
    return status;
}
