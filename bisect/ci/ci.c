/*
 * ci.c - runs CI cases and compares them bit for bit with their goldens.
 *
 * Each case is a task of a thread pool and runs `invar train` as a child process through a
 * workspace, with its cache disabled. A changed case runs a second time, which tells a changed
 * program from a nondeterministic one. If a chaos run differs, its variations are repeated one by
 * one. ci_context.mutex serializes the events; a task writes only its own result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/ci/ci.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "base/process/process.h"
#include "base/text.h"
#include "bisect/ci/ci_internal.h"

#include "base/invar_banned.h"

/* State shared by all runs. */
typedef struct ci_context {
    const invar_ci_options *options;
    invar_workspace *workshops[2]; /* [0] for normal runs; [1] in a folder with another name, for
                                      chaos */
    invar_revision_build programs[2];
    invar_chaos_locales locales;
    char folder[INVAR_PATH_SIZE];
    bool temporary;
    bool recording;        /* goldens are recorded instead of compared */
    pthread_mutex_t mutex; /* serializes calls of options->event */
    int64_t done, total;   /* number of runs */
    invar_ci_result *results;
    const invar_ci_case *cases;
} ci_context;

static void send_event(ci_context *s, invar_ci_event event, const invar_ci_result *result,
                       int64_t runs)
{
    pthread_mutex_lock(&s->mutex);
    s->done += runs;
    if (s->done > s->total) // repeated runs are not part of the plan
        s->done = s->total;
    if (s->options->event)
        s->options->event(s->options->payload, event, result, s->done, s->total);
    pthread_mutex_unlock(&s->mutex);
}

static bool is_stopped(const ci_context *s)
{
    return s->options->stop && *s->options->stop;
}

/* ---- one run --------------------------------------------------------------------------------- */

/*
 * Reads a row of the commit and dirty facts of the program. The ledger is untrusted, so the texts
 * are quoted.
 */
static invar_status read_build_row(void *payload, const invar_ledger_value *values)
{
    invar_ci_result *out = payload;

    if (values[0].type != INVAR_LEDGER_TYPE_TEXT || values[1].type != INVAR_LEDGER_TYPE_TEXT)
        return INVAR_OK;
    invar_text_quote(out->commit, sizeof out->commit, values[0].data, values[0].bytes);
    invar_text_quote(out->dirty, sizeof out->dirty, values[1].data, values[1].bytes);
    return INVAR_OK;
}

static invar_status read_build(invar_ci_result *out, invar_ledger *ledger, int64_t run)
{
    const invar_ledger_argument argument = {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}};

    return invar_workspace_ledger_select(
        ledger,
        "SELECT c.value, d.value FROM fact c JOIN fact d USING(run, seg, scope)"
        " WHERE run = :run AND scope = 'build' AND c.key = 'commit' AND d.key = 'dirty'"
        " ORDER BY seg",
        &argument, 1, read_build_row, out);
}

static invar_status read_run(invar_ci_side *out, invar_ci_result *result, const char *path,
                             const char *generator)
{
    invar_ledger_summary run;
    invar_ledger *ledger;
    invar_status status;

    status = invar_workspace_ledger_open(&ledger, &run, path);
    if (status == INVAR_OK)
        status = read_build(result, ledger, run.run);
    if (status == INVAR_OK)
        status = invar_golden_from_run(&out->golden, ledger, run.run, generator);
    if (status == INVAR_OK)
        status = invar_golden_points_of_run(&out->points, ledger, run.run);
    invar_ledger_close(ledger);
    return status;
}

/* Returns the last step to run as the user limits it; -1 for the recipe's last step. */
static int64_t last_step(const ci_context *s)
{
    return s->options->steps ? s->options->steps - 1 : -1;
}

/*
 * Runs a case up to step `until`, varied by `chaos` (NULL for no variation). If the run gave no
 * result, *out is empty and the verdict is TROUBLE or STOPPED.
 */
static invar_status run_case(invar_ci_side *out, invar_ci_result *result, ci_context *s,
                             const invar_chaos_run *chaos, int64_t until)
{
    const invar_ci_options *o = s->options;
    int place = chaos && chaos->other_folder;
    char name[64];
    invar_run_request request = {.program = s->programs[place].path,
                                 .binary = s->programs[place].binary,
                                 .recipe = result->item->recipe,
                                 .name = name,
                                 .until = until,
                                 .timeout = o->timeout,
                                 .stop = o->stop,
                                 .record_mismatch = !s->recording,
                                 .no_cache = true};
    invar_run_result ran;
    invar_status status;

    *out = (invar_ci_side){0};
    // two cases may have the same recipe
    (void)snprintf(name, sizeof name, "%td %" PRId64, result->item - s->cases, result->runs);
    if (chaos) {
        request.flags = chaos->flags;
        request.environment = chaos->environment;
        request.prefix = chaos->prefix;
        request.same_addresses = chaos->same_addresses;
    }
    INVAR_TRY(invar_workspace_run(&ran, s->workshops[place], -1, &request));
    result->runs++;
    send_event(s, INVAR_CI_RAN, result, 1);
    // log-probs that differ give exit code 1; such a run was cut short
    if (ran.state != INVAR_RUN_DONE || ran.exit_code != 0) {
        if (ran.state == INVAR_RUN_STOPPED) {
            result->verdict = INVAR_CI_STOPPED;
            return INVAR_OK;
        }
        result->verdict = INVAR_CI_TROUBLE;
        (void)snprintf(result->reason, sizeof result->reason, "it could not be run: %s",
                       ran.failure_reason);
        if (chaos)
            memcpy(result->varied, chaos->description, sizeof result->varied);
        return INVAR_OK;
    }
    status = read_run(out, result, ran.ledger, o->generator);
    if (status != INVAR_OK)
        invar_ci_side_free(out);
    // the results are in memory; only a folder chosen by the user keeps the runs for inspection
    if (status == INVAR_OK && s->temporary)
        status = invar_held_folder_remove(ran.folder);
    return status;
}

/* ---- one case -------------------------------------------------------------------------------- */

/* Appends a line with the variations of a chaos run. */
static invar_status add_variation(invar_ci_result *out, const invar_chaos_run *chaos)
{
    size_t used = out->variations ? strlen(out->variations) : 0, bytes = strlen(chaos->description);
    char *longer;

    INVAR_TRY(INVAR_ALLOC(longer, used + bytes + 2, "what was varied"));
    (void)snprintf(longer, used + bytes + 2, "%s%s\n", used ? out->variations : "",
                   chaos->description);
    invar_free(out->variations);
    out->variations = longer;
    out->chaos++;
    return INVAR_OK;
}

/*
 * Runs a case again, with or without chaos. A difference from `first` gives the verdict
 * NONDETERMINISTIC.
 */
static invar_status run_again(invar_ci_result *out, ci_context *s, const invar_ci_side *first,
                              const invar_chaos_run *chaos)
{
    invar_ci_result other = {.item = out->item, .verdict = INVAR_CI_SAME, .runs = out->runs};
    invar_ci_side again;
    invar_status status;

    if (chaos)
        INVAR_TRY(add_variation(out, chaos));
    INVAR_TRY(run_case(&again, &other, s, chaos, last_step(s)));
    out->runs = other.runs;
    if (!again.golden) {
        out->verdict = other.verdict;
        memcpy(out->reason, other.reason, sizeof out->reason);
        memcpy(out->varied, other.varied, sizeof out->varied);
        return INVAR_OK;
    }
    status = invar_ci_compare(&other, first, &again);
    if (other.verdict == INVAR_CI_SAME && again.golden->n_steps != first->golden->n_steps) {
        other.verdict = INVAR_CI_CHANGED;
        (void)snprintf(other.headline, sizeof other.headline,
                       "one has %" PRId64 " steps, the other %" PRId64, first->golden->n_steps,
                       again.golden->n_steps);
    }
    invar_ci_side_free(&again);
    if (status != INVAR_OK || other.verdict == INVAR_CI_SAME)
        return status;
    other.chaos = out->chaos;
    other.variations = out->variations;
    other.pending = out->pending;
    *out = other;
    out->verdict = INVAR_CI_NONDETERMINISTIC;
    out->line = 1; // no line of the golden
    (void)snprintf(out->reason, sizeof out->reason, "%s",
                   chaos ? "a run that was made otherwise has other bits"
                         : "two runs of the same program and recipe have different bits");
    if (chaos)
        memcpy(out->varied, chaos->description, sizeof out->varied);
    return INVAR_OK;
}

/*
 * *out is true if a run with this chaos differs from `first`. It runs up to the first differing
 * step if that is known.
 */
static invar_status differs_with_chaos(bool *out, invar_ci_result *result, ci_context *s,
                                       const invar_ci_side *first, const invar_chaos_run *chaos)
{
    invar_ci_result other = {.item = result->item, .runs = result->runs};
    invar_golden_comparison c = {0};
    invar_ci_side again;

    INVAR_TRY(
        run_case(&again, &other, s, chaos, result->first >= 0 ? result->first : last_step(s)));
    result->runs = other.runs;
    if (again.golden)
        invar_golden_compare(&c, first->golden, again.golden);
    *out = again.golden && c.verdict == INVAR_GOLDEN_CHANGED;
    invar_ci_side_free(&again);
    return INVAR_OK;
}

/*
 * Finds the cause after a chaos run gave other bits: plain nondeterminism, or a single variation.
 */
static invar_status find_cause(invar_ci_result *out, ci_context *s, const invar_ci_side *first,
                               const invar_chaos *chaos)
{
    bool other;
    invar_chaos_run one;

    INVAR_TRY(differs_with_chaos(&other, out, s, first, NULL));
    if (other) {
        out->varied[0] = '\0';
        (void)snprintf(out->reason, sizeof out->reason,
                       "two runs of the same program and recipe have different bits");
        return INVAR_OK;
    }
    for (int i = 0; i < (int)chaos->count && !is_stopped(s); i++) {
        invar_chaos_compose(&one, chaos, i);
        INVAR_TRY(differs_with_chaos(&other, out, s, first, &one));
        if (!other)
            continue;
        memcpy(out->varied, one.description, sizeof out->varied);
        (void)snprintf(out->reason, sizeof out->reason, "this variation alone changes the bits");
        return INVAR_OK;
    }
    return INVAR_OK;
}

static invar_status run_chaos(invar_ci_result *out, ci_context *s, const invar_ci_side *first)
{
    invar_chaos_run all;
    invar_chaos chaos;

    for (int64_t i = 0; i < s->options->chaos; i++) {
        if (out->verdict != INVAR_CI_SAME && out->verdict != INVAR_CI_CHANGED)
            return INVAR_OK;
        invar_chaos_generate(&chaos, &s->locales, s->options->chaos_seed, out->item->name, i);
        invar_chaos_compose(&all, &chaos, INVAR_CHAOS_ALL);
        INVAR_TRY(run_again(out, s, first, &all));
        if (out->verdict == INVAR_CI_NONDETERMINISTIC)
            INVAR_TRY(find_cause(out, s, first, &chaos));
    }
    return INVAR_OK;
}

static invar_status write_pending(invar_ci_result *out, const ci_context *s,
                                  const invar_ci_side *is)
{
    const invar_ci_case *item = out->item;

    if (!s->options->write || s->options->steps) // a golden covers the complete recipe
        return INVAR_OK;
    if (out->verdict == INVAR_CI_SAME && invar_ci_pending(item))
        return invar_ci_reject(item); // the bits equal those of the golden again
    if (out->verdict != INVAR_CI_CHANGED && out->verdict != INVAR_CI_OBSOLETE)
        return INVAR_OK;
    INVAR_TRY(invar_golden_points_write(item->new_points, is->points));
    INVAR_TRY(invar_golden_write(item->new_golden, is->golden));
    out->pending = true;
    return INVAR_OK;
}

static invar_status compare_case(invar_ci_result *out, ci_context *s, const invar_ci_side *was)
{
    invar_ci_side is;
    invar_status status;

    INVAR_TRY(run_case(&is, out, s, NULL, last_step(s)));
    if (!is.golden)
        return INVAR_OK;
    if (was->golden) {
        status = invar_ci_compare(out, was, &is);
        invar_ci_check_length(out, is.golden->n_steps, s->options->steps);
        if (!s->options->identity_is_result)
            invar_ci_check_identity(out);
    } else {
        // the version of the golden is unsupported, so nothing can be compared
        out->verdict = INVAR_CI_OBSOLETE;
        status = INVAR_OK;
    }
    if (status == INVAR_OK && out->verdict == INVAR_CI_CHANGED)
        status = run_again(out, s, &is, NULL);
    if (status == INVAR_OK)
        status = run_chaos(out, s, &is);
    if (status == INVAR_OK)
        status = write_pending(out, s, &is);
    invar_ci_side_free(&is);
    return status;
}

static void set_verdict_from_error(invar_ci_result *out, invar_ci_verdict verdict)
{
    out->verdict = verdict;
    (void)snprintf(out->reason, sizeof out->reason, "%s", invar_error_last()->message);
    invar_error_clear();
}

static invar_status check_case(invar_ci_result *out, ci_context *s)
{
    const char *path = s->options->golden ? s->options->golden : out->item->golden;
    invar_ci_side was;
    invar_status status;

    if (is_stopped(s)) {
        out->verdict = INVAR_CI_STOPPED;
        return INVAR_OK;
    }
    if (!invar_path_exists(out->item->recipe)) {
        out->verdict = invar_path_exists(path) ? INVAR_CI_OBSOLETE : INVAR_CI_TROUBLE;
        (void)snprintf(out->reason, sizeof out->reason, "there is no recipe %.300s%s",
                       out->item->recipe,
                       out->verdict == INVAR_CI_OBSOLETE ? " any more: remove the golden" : "");
        return INVAR_OK;
    }
    status = invar_ci_side_read(&was, path);
    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        out->verdict = INVAR_CI_MISSING;
        (void)snprintf(out->reason, sizeof out->reason, "no golden yet");
        return INVAR_OK;
    }
    if (status == INVAR_E_UNSUPPORTED) {
        set_verdict_from_error(out, INVAR_CI_OBSOLETE);
        if (!s->options->write)
            return INVAR_OK;
        status = INVAR_OK;
    }
    if (status == INVAR_OK)
        status = compare_case(out, s, &was);
    invar_ci_side_free(&was);
    return status;
}

/* ---- setup ----------------------------------------------------------------------------------- */

static invar_status make_folder(ci_context *s)
{
    const char *base = getenv("TMPDIR");

    if (s->options->work) {
        INVAR_TRY(invar_held_folder_make(s->options->work));
        (void)snprintf(s->folder, sizeof s->folder, "%s", s->options->work);
        return INVAR_OK;
    }
    INVAR_TRY(invar_path_join(s->folder, sizeof s->folder, base && *base ? base : "/tmp",
                              "invar-ci-XXXXXX"));
    if (!mkdtemp(s->folder))
        return INVAR_FAIL(INVAR_E_IO, errno,
                          "no temporary folder %.1000s: %s; --work DIR names one", s->folder,
                          strerror(errno));
    s->temporary = true;
    return INVAR_OK;
}

static invar_status open_workshop(ci_context *s, int i, const char *name)
{
    char folder[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(folder, sizeof folder, s->folder, name));
    INVAR_TRY(invar_workspace_open(&s->workshops[i], folder, NULL, (const char *const[]){NULL}));
    return invar_workspace_program_of_file(&s->programs[i], s->workshops[i],
                                           s->options->program ? s->options->program
                                                               : "/proc/self/exe");
}

static invar_status open_context(ci_context *s, bool chaos)
{
    INVAR_TRY(make_folder(s));
    INVAR_TRY(open_workshop(s, 0, "runs-here"));
    if (!chaos)
        return INVAR_OK;
    INVAR_TRY(open_workshop(s, 1, "runs-in-a-folder-with-a-longer-name"));
    return invar_chaos_list_locales(&s->locales, s->folder);
}

static invar_status close_context(ci_context *s, invar_status status)
{
    invar_error error;

    invar_workspace_close(s->workshops[0]);
    invar_workspace_close(s->workshops[1]);
    pthread_mutex_destroy(&s->mutex);
    if (!s->temporary)
        return status;
    if (status == INVAR_OK)
        return invar_held_folder_remove(s->folder);
    invar_error_take(&error); // the first failure is the one to report
    if (invar_held_folder_remove(s->folder) != INVAR_OK)
        invar_error_clear();
    invar_error_put(&error);
    return status;
}

/* ---- recording ------------------------------------------------------------------------------- */

/* Writes a golden and keeps the history of the previous one. */
static invar_status write_golden(const invar_ci_case *item, const invar_ci_side *is)
{
    invar_golden *before = NULL, *golden;
    invar_status status = invar_golden_read(&before, item->golden);

    if (status != INVAR_OK)
        invar_error_clear();
    status = invar_golden_accept(&golden, is->golden, before, NULL);
    invar_golden_free(before);
    INVAR_TRY(status);
    status = invar_golden_points_write(item->points, is->points);
    if (status == INVAR_OK)
        status = invar_golden_write(item->golden, golden);
    invar_golden_free(golden);
    if (status == INVAR_OK && invar_ci_pending(item))
        status = invar_ci_reject(item);
    return status;
}

static invar_status record_case(invar_ci_result *out, ci_context *s)
{
    invar_ci_side is;
    invar_status status;
    invar_chaos_run all;
    invar_chaos chaos;

    INVAR_TRY(run_case(&is, out, s, NULL, last_step(s)));
    if (!is.golden)
        return INVAR_OK;
    out->steps = is.golden->n_steps;
    out->verdict = out->steps ? INVAR_CI_SAME : INVAR_CI_NOTHING;
    invar_chaos_generate(&chaos, &s->locales, s->options->chaos_seed, out->item->name, 0);
    invar_chaos_compose(&all, &chaos, INVAR_CHAOS_ALL);
    status = out->steps ? run_again(out, s, &is, &all) : INVAR_OK;
    if (status == INVAR_OK && out->verdict == INVAR_CI_NONDETERMINISTIC)
        status = find_cause(out, s, &is, &chaos);
    if (status == INVAR_OK && out->verdict == INVAR_CI_SAME)
        status = write_golden(out->item, &is);
    invar_ci_side_free(&is);
    return status;
}

/* ---- all cases ------------------------------------------------------------------------------- */

static invar_status run_task(void *payload, int64_t task, int worker)
{
    ci_context *s = payload;
    invar_ci_result *out = &s->results[task];
    int64_t begin = invar_process_clock_ms(), left = 0;

    (void)worker;
    *out = (invar_ci_result){.item = &s->cases[task], .first = -1, .line = 1};
    send_event(s, INVAR_CI_BEGINS, out, 0);
    if (s->recording)
        INVAR_TRY(record_case(out, s));
    else if (check_case(out, s) != INVAR_OK)
        set_verdict_from_error(out, INVAR_CI_TROUBLE);
    out->seconds = (double)(invar_process_clock_ms() - begin) / 1000;
    if (!s->recording) // counts planned runs that are not needed as done
        left = 1 + s->options->chaos - out->runs;
    send_event(s, INVAR_CI_ENDED, out, left > 0 ? left : 0);
    return INVAR_OK;
}

static invar_status run_all(ci_context *s, size_t count, int64_t chaos, int64_t jobs)
{
    invar_pool *pool = NULL;
    invar_status status;

    s->total = (int64_t)count * (1 + chaos);
    pthread_mutex_init(&s->mutex, NULL);
    status = open_context(s, chaos > 0);
    if (status == INVAR_OK)
        status = invar_pool_new(&pool, (int)jobs);
    if (status == INVAR_OK)
        status = invar_pool_run(pool, (int64_t)count, run_task, s);
    invar_pool_free(pool);
    return close_context(s, status);
}

invar_status invar_ci_check(invar_ci_result *results, const invar_ci_case *cases, size_t count,
                            const invar_ci_options *options)
{
    ci_context s = {.options = options, .results = results, .cases = cases};

    return run_all(&s, count, options->chaos, options->jobs);
}

invar_status invar_ci_record(invar_ci_result *out, const invar_ci_case *item,
                             const invar_ci_options *options)
{
    ci_context s = {.options = options, .results = out, .cases = item, .recording = true};

    *out = (invar_ci_result){.item = item};
    return run_all(&s, 1, 1, 1);
}

void invar_ci_release(invar_ci_result *results, size_t count)
{
    for (size_t i = 0; i < count; i++)
        invar_free(results[i].variations);
}
