/*
 * ab.c - runs an A/B experiment: two programs on one recipe, or two recipes, over several seeds.
 *
 * Stages: read the sides and resolve revisions, build both programs, pin the recipes, check that A
 * repeats itself (A/A check), run all seeds, compare pair by pair. If the sides differ, B is
 * checked against itself too before the divergence is located. All runs go through the cache of the
 * workspace, so the same call after a kill runs only what is missing. flock on the experiment keeps
 * other processes out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/ab/ab.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/alloc.h"
#include "bisect/ab/ab_internal.h"

#include "base/invar_banned.h"

#define SEED 1234 /* defaults of the keys seed and rollout-seed */
#define ROLLOUT_SEED 42
#define LARGEST_SEED INT64_C(4294967295)

const char *const invar_ab_letters[INVAR_AB_SIDES] = {"a", "b"};
const char *const invar_ab_capitals[INVAR_AB_SIDES] = {"A", "B"};

void invar_ab_say(invar_ab_context *context, const char *format, ...)
{
    char line[512];
    va_list list;

    if (!context->options->say)
        return;
    va_start(list, format);
    (void)vsnprintf(line, sizeof line, format, list);
    va_end(list);
    (void)pthread_mutex_lock(&context->mutex);
    context->options->say(context->options->payload, line);
    (void)pthread_mutex_unlock(&context->mutex);
}

/* ---- programs -------------------------------------------------------------------------------- */

static bool needs_repo(const invar_ab_result *answer)
{
    return answer->sides[INVAR_AB_A].kind == INVAR_AB_COMMIT ||
           answer->sides[INVAR_AB_B].kind == INVAR_AB_COMMIT;
}

static invar_status open_repo(invar_ab_context *context)
{
    invar_status status = invar_repo_open(&context->repo, context->what->repo);

    if (status != INVAR_OK && !needs_repo(context->result)) {
        invar_error_clear();
        context->repo = NULL;
        return INVAR_OK;
    }
    return status;
}

/* Opens a workspace outside all trees that are read. */
static invar_status open_workshop(invar_ab_context *context)
{
    const char *outside[INVAR_AB_SIDES + 3], *subject = context->what->repo;
    size_t count = 0;

    if (context->repo)
        subject = invar_repo_folder(context->repo);
    if (needs_repo(context->result)) {
        outside[count++] = subject;
        outside[count++] = invar_repo_work_tree(context->repo);
        count -= !outside[count - 1]; // a bare repository has no work tree
    }
    for (int i = 0; i < INVAR_AB_SIDES; i++)
        if (context->result->sides[i].kind == INVAR_AB_FOLDER)
            outside[count++] = context->result->sides[i].given;
    outside[count] = NULL;
    return invar_workspace_open(&context->workspace, context->options->work, subject, outside);
}

/* Returns true if the program of the side cannot be used, and stores the reason in the result. */
static bool program_is_unusable(invar_ab_context *context, int side)
{
    const invar_revision_build *build = &context->result->sides[side].built;

    if (build->state == INVAR_REVISION_BUILD_READY)
        return false;
    context->result->verdict =
        build->state == INVAR_REVISION_BUILD_STOPPED ? INVAR_AB_STOPPED : INVAR_AB_UNTESTABLE;
    context->result->side = side;
    (void)snprintf(context->result->failure_reason, sizeof context->result->failure_reason, "%s",
                   build->failure_reason);
    (void)snprintf(context->result->log, sizeof context->result->log, "%s", build->log);
    return true;
}

static invar_status build_side(invar_ab_context *context, int i, invar_worktree *slot)
{
    invar_ab_side *side = &context->result->sides[i];
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, side->given);
    if (side->kind == INVAR_AB_COMMIT)
        invar_ab_say(context, "%s is %s, commit %.12s %.80s", invar_ab_capitals[i], shown,
                     side->commit.id, side->commit.subject);
    else
        invar_ab_say(context, "%s is the %s %s", invar_ab_capitals[i],
                     side->kind == INVAR_AB_FOLDER ? "folder" : "program", shown);
    INVAR_TRY(invar_ab_side_build(side, context->workspace, slot, context->repo, context->what,
                                  context->options));
    if (side->built.state == INVAR_REVISION_BUILD_READY && side->kind != INVAR_AB_FILE)
        invar_ab_say(context, side->built.cached ? "%s was built before" : "%s is built, in %.1f s",
                     invar_ab_capitals[i], side->built.seconds);
    return INVAR_OK;
}

/*
 * Builds programs and reads recipes, in a worktree. If *ready_out is false, the result has the
 * reason.
 */
static invar_status build_sides(bool *ready_out, invar_ab_context *context)
{
    invar_worktree slot;
    invar_status status = INVAR_OK;
    bool ready = true;

    INVAR_TRY(invar_worktree_acquire(&slot, context->workspace));
    for (int i = 0; i < INVAR_AB_SIDES && status == INVAR_OK; i++)
        status = invar_ab_side_recipe(
            &context->recipes[i], &context->recipe_bytes[i], &context->result->sides[i],
            invar_ab_side_names(context->what, i), context->what->own_recipe, &slot, context->repo);
    for (int i = 0; i < INVAR_AB_SIDES && status == INVAR_OK && ready; i++) {
        status = build_side(context, i, &slot);
        ready = status == INVAR_OK && !program_is_unusable(context, i);
    }
    invar_worktree_release(&slot);
    *ready_out = ready;
    return status;
}

/* ---- the experiment -------------------------------------------------------------------------- */

static void compute_experiment_id(invar_ab_context *context)
{
    invar_hasher hasher;
    invar_digest id;
    char steps[32];

    invar_hasher_init(&hasher);
    for (int i = 0; i < INVAR_AB_SIDES; i++) {
        uint64_t bytes = context->recipe_bytes[i];
        invar_hasher_update(&hasher, &context->result->sides[i].built.binary, sizeof(invar_digest));
        invar_hasher_update(&hasher, &bytes, sizeof bytes);
        invar_hasher_update(&hasher, context->recipes[i], context->recipe_bytes[i]);
    }
    for (const char *const *flag = context->what->flags; flag && *flag; flag++)
        invar_hasher_update(&hasher, *flag, strlen(*flag) + 1);
    (void)snprintf(steps, sizeof steps, "%" PRId64, context->what->steps);
    invar_hasher_update(&hasher, steps, strlen(steps));
    invar_hasher_final(&id, &hasher);
    invar_digest_format(context->result->id, &id);
    context->result->id[16] = '\0';
}

/* Locks the experiment for this process. Returns INVAR_E_BUSY if another process holds the lock. */
static invar_status lock_experiment(invar_ab_context *context)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, context->result->folder, "lock"));
    context->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (context->lock < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: %s", path, strerror(errno));
    if (flock(context->lock, LOCK_EX | LOCK_NB) != 0)
        return INVAR_FAIL(INVAR_E_BUSY, errno, "another process is at this experiment, %s",
                          context->result->id);
    return INVAR_OK;
}

static invar_status pin_recipe(invar_ab_context *context, int i)
{
    const char *named = invar_ab_side_names(context->what, i), *slash = strrchr(named, '/');
    char folder[INVAR_PATH_SIZE];
    invar_ab_side *side = &context->result->sides[i];

    INVAR_TRY(invar_path_join(folder, sizeof folder, context->result->folder, invar_ab_letters[i]));
    INVAR_TRY(invar_held_folder_make(folder));
    if (context->what->recipe_b)
        (void)snprintf(side->recipe_path, sizeof side->recipe_path, "%s", named);
    INVAR_TRY(
        invar_path_join(side->recipe, sizeof side->recipe, folder, slash ? slash + 1 : named));
    return invar_file_write(side->recipe, context->recipes[i], context->recipe_bytes[i]);
}

/*
 * Reads a seed from the recipe of side A. Fails if the recipe of side B sets another one: both
 * sides run on the same seeds, and the other value would be ignored silently.
 */
static invar_status read_seed(int64_t *out, const invar_ab_context *context, const char *key,
                              int64_t fallback)
{
    int64_t b;

    INVAR_TRY(invar_ab_number(out, context->what->flags, context->recipes[0], key, fallback));
    b = *out;
    if (context->what->recipe_b)
        INVAR_TRY(invar_ab_number(&b, context->what->flags, context->recipes[1], key, fallback));
    if (*out == b)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: A's recipe has %" PRId64 ", B's has %" PRId64
                      "; both sides run on the same seeds: give --%s, or make them equal",
                      key, *out, b, key);
}

static invar_status create_pairs(invar_ab_context *context)
{
    invar_ab_result *answer = context->result;
    int64_t seed, rollout_seed;
    size_t count = (size_t)context->what->seeds;

    INVAR_TRY(read_seed(&seed, context, "seed", SEED));
    INVAR_TRY(read_seed(&rollout_seed, context, "rollout-seed", ROLLOUT_SEED));
    if (seed > LARGEST_SEED + 1 - context->what->seeds ||
        rollout_seed > LARGEST_SEED + 1 - context->what->seeds)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the seeds of %" PRId64 " runs would go beyond %" PRId64
                          ": begin lower with --seed or --rollout-seed",
                          context->what->seeds, LARGEST_SEED);
    INVAR_TRY(INVAR_ALLOC_ZEROED(answer->pairs, count, "pairs of runs"));
    answer->n_pairs = count;
    for (size_t i = 0; i < count; i++) {
        answer->pairs[i].seed = seed + (int64_t)i;
        answer->pairs[i].rollout_seed = rollout_seed + (int64_t)i;
    }
    return INVAR_OK;
}

static invar_status create_experiment(invar_ab_context *context)
{
    char folder[INVAR_PATH_SIZE];

    compute_experiment_id(context);
    INVAR_TRY(invar_path_join(folder, sizeof folder, invar_workspace_folder(context->workspace),
                              "experiments"));
    INVAR_TRY(invar_path_join(context->result->folder, sizeof context->result->folder, folder,
                              context->result->id));
    INVAR_TRY(invar_held_folder_make(context->result->folder));
    INVAR_TRY(lock_experiment(context));
    for (int i = 0; i < INVAR_AB_SIDES; i++)
        INVAR_TRY(pin_recipe(context, i));
    return create_pairs(context);
}

/* ---- A/A check ------------------------------------------------------------------------------- */

/* Returns true if the run cannot be used, and stores the reason in the result. */
static bool run_is_unusable(invar_ab_context *context, int side, int64_t seed,
                            const invar_run_result *ran)
{
    if (ran->state == INVAR_RUN_DONE)
        return false;
    context->result->verdict =
        ran->state == INVAR_RUN_STOPPED ? INVAR_AB_STOPPED : INVAR_AB_UNTESTABLE;
    context->result->side = side;
    (void)snprintf(context->result->failure_reason, sizeof context->result->failure_reason,
                   "seed %" PRId64 ": %.1000s", seed, ran->failure_reason);
    if (invar_path_join(context->result->log, sizeof context->result->log, ran->folder,
                        "run.log") != INVAR_OK)
        invar_error_clear();
    return true;
}

/* Chooses free keys and values that differ from those of the first run. */
static invar_status choose_varied_keys(invar_ab_varied_key out[2], const invar_ab_context *context,
                                       int side)
{
    int64_t threads, size;

    INVAR_TRY(
        invar_ab_number(&threads, context->what->flags, context->recipes[side], "threads", 0));
    INVAR_TRY(invar_ab_number(&size, context->what->flags, context->recipes[side],
                              "micro-batch-size", 0));
    out[0] = (invar_ab_varied_key){"threads", threads == 1 ? 2 : 1};
    out[1] = (invar_ab_varied_key){"micro-batch-size", size == 2 ? 3 : 2};
    return INVAR_OK;
}

/*
 * Runs one side of the pair a second time with other free keys, and the first time if that is
 * missing.
 */
static invar_status run_aa_check(invar_ab_context *context, int side, const invar_ab_pair *pair,
                                 invar_run_result *first, invar_run_result *second)
{
    invar_ab_run_job jobs[2] = {{.side = side, .pair = pair, .again = "", .ran = first},
                                {.side = side, .pair = pair, .again = "-again", .ran = second}};
    invar_aa_check *gate = &context->result->aa_checks[side];

    INVAR_TRY(choose_varied_keys(jobs[1].free, context, side));
    (void)snprintf(gate->varied_keys, sizeof gate->varied_keys,
                   "threads %" PRId64 ", micro-batch-size %" PRId64, jobs[1].free[0].value,
                   jobs[1].free[1].value);
    gate->varied = true;
    INVAR_TRY(first->ledger[0] ? invar_ab_jobs_run(context, &jobs[1], 1)
                               : invar_ab_jobs_run(context, jobs, 2));
    if (first->state != INVAR_RUN_DONE || second->state != INVAR_RUN_FAILED)
        return INVAR_OK;
    // the program lacks these keys, or the recipe cannot use them
    jobs[1].free[0] = jobs[1].free[1] = (invar_ab_varied_key){0};
    jobs[1].again = "-again-plain";
    gate->varied = false;
    (void)snprintf(gate->varied_keys, sizeof gate->varied_keys, "the same keys");
    return invar_ab_jobs_run(context, &jobs[1], 1);
}

/* Runs the A/A check of a side. If *passed_out is false, the result has the reason. */
static invar_status check_repeatability(bool *passed_out, invar_ab_context *context, int side,
                                        invar_ab_pair *pair)
{
    invar_aa_check *gate = &context->result->aa_checks[side];
    invar_run_result *first = &pair->ran[side], second = {0};

    *passed_out = false;
    INVAR_TRY(run_aa_check(context, side, pair, first, &second));
    if (run_is_unusable(context, side, pair->seed, first) ||
        run_is_unusable(context, side, pair->seed, &second))
        return INVAR_OK;
    gate->ran = true;
    gate->seed = pair->seed;
    (void)snprintf(gate->ledger, sizeof gate->ledger, "%s", first->ledger);
    (void)snprintf(gate->second_ledger, sizeof gate->second_ledger, "%s", second.ledger);
    INVAR_TRY(invar_ab_compare_aa_check(gate));
    *passed_out = gate->same;
    if (!gate->same) {
        context->result->verdict = INVAR_AB_NONDETERMINISTIC;
        context->result->side = side;
    }
    return INVAR_OK;
}

/* ---- A against B ----------------------------------------------------------------------------- */

static invar_status run_pairs(invar_ab_context *context)
{
    invar_ab_result *answer = context->result;
    size_t count = 0;
    invar_status status;
    invar_ab_run_job *jobs;

    INVAR_TRY(INVAR_ALLOC(jobs, 2 * answer->n_pairs, "runs"));
    for (size_t i = 0; i < answer->n_pairs; i++)
        for (int side = 0; side < INVAR_AB_SIDES; side++)
            if (i > 0 || side == INVAR_AB_B) // the A/A check has run side A of the first pair
                jobs[count++] = (invar_ab_run_job){.side = side,
                                                   .pair = &answer->pairs[i],
                                                   .again = "",
                                                   .ran = &answer->pairs[i].ran[side]};
    status = invar_ab_jobs_run(context, jobs, (int64_t)count);
    invar_free(jobs);
    return status;
}

static bool any_run_is_unusable(invar_ab_context *context)
{
    for (size_t i = 0; i < context->result->n_pairs; i++)
        for (int side = 0; side < INVAR_AB_SIDES; side++)
            if (run_is_unusable(context, side, context->result->pairs[i].seed,
                                &context->result->pairs[i].ran[side]))
                return true;
    return false;
}

static bool is_one_recipe(const invar_ab_context *context)
{
    return context->recipe_bytes[INVAR_AB_A] == context->recipe_bytes[INVAR_AB_B] &&
           memcmp(context->recipes[INVAR_AB_A], context->recipes[INVAR_AB_B],
                  context->recipe_bytes[INVAR_AB_A]) == 0;
}

static invar_status compare_pairs(invar_ab_context *context)
{
    invar_ab_result *answer = context->result;
    const bool one_program =
        is_one_recipe(context) && invar_digest_equal(&answer->sides[INVAR_AB_A].built.binary,
                                                     &answer->sides[INVAR_AB_B].built.binary);

    for (size_t i = 0; i < answer->n_pairs; i++) {
        invar_ab_pair *pair = &answer->pairs[i];
        INVAR_TRY(invar_ab_compare_pair(pair, i == 0 ? answer : NULL)); // facts of the first seed
        answer->n_different += !pair->same;
        for (int side = 0; side < INVAR_AB_SIDES; side++) {
            invar_ab_side *s = &answer->sides[side];
            s->seconds += pair->ran[side].seconds;
            s->cached += pair->ran[side].cached;
            if (pair->ran[side].peak_bytes > s->peak_bytes)
                s->peak_bytes = pair->ran[side].peak_bytes;
        }
    }
    answer->verdict = answer->n_different == 0 ? INVAR_AB_IDENTICAL
                      : one_program            ? INVAR_AB_NONDETERMINISTIC
                                               : INVAR_AB_DIFFERENT;
    return INVAR_OK;
}

/*
 * Returns the first pair with the earliest divergence. Pairs that differ only in their number of
 * steps come last.
 */
static invar_ab_pair *earliest_divergent_pair(invar_ab_result *answer)
{
    invar_ab_pair *found = NULL;

    for (size_t i = 0; i < answer->n_pairs; i++) {
        invar_ab_pair *pair = &answer->pairs[i];
        if (!pair->same &&
            (!found || (pair->diverged && (!found->diverged || pair->first < found->first))))
            found = pair;
    }
    return found;
}

/* Locates the divergence, after an A/A check of side B. */
static invar_status locate_difference(invar_ab_context *context)
{
    invar_ab_pair *pair = earliest_divergent_pair(context->result);
    bool passed;

    INVAR_TRY(check_repeatability(&passed, context, INVAR_AB_B, pair));
    if (!passed)
        return INVAR_OK;
    // points of models with different shapes are not comparable, even if some shapes agree
    context->result->two_models = context->result->two_models && !is_one_recipe(context);
    if (context->result->two_models)
        return INVAR_OK;
    INVAR_TRY(invar_divergence_compare(&context->result->divergence, pair->ran[INVAR_AB_A].ledger,
                                       pair->ran[INVAR_AB_B].ledger, -1));
    return context->result->divergence.known ? invar_ab_refine(context, pair) : INVAR_OK;
}

/* ---- run ------------------------------------------------------------------------------------- */

static invar_status run_experiment(invar_ab_context *context)
{
    invar_ab_result *answer = context->result;
    bool good;

    for (int i = 0; i < INVAR_AB_SIDES; i++)
        INVAR_TRY(invar_ab_side_read(&answer->sides[i], context->what->sides[i]));
    INVAR_TRY(open_repo(context));
    for (int i = 0; i < INVAR_AB_SIDES; i++)
        INVAR_TRY(invar_ab_side_resolve(&answer->sides[i], context->repo));
    INVAR_TRY(open_workshop(context));
    INVAR_TRY(build_sides(&good, context));
    if (!good)
        return INVAR_OK;
    INVAR_TRY(create_experiment(context));
    INVAR_TRY(check_repeatability(&good, context, INVAR_AB_A, &answer->pairs[0]));
    if (!good)
        return INVAR_OK;
    INVAR_TRY(run_pairs(context));
    if (any_run_is_unusable(context))
        return INVAR_OK;
    INVAR_TRY(compare_pairs(context));
    if (answer->verdict == INVAR_AB_DIFFERENT)
        INVAR_TRY(locate_difference(context));
    return answer->verdict == INVAR_AB_STOPPED ? INVAR_OK : invar_ab_measure(answer);
}

invar_status invar_ab_run(invar_ab_result **out, const invar_ab_case *what,
                          const invar_ab_options *options)
{
    invar_ab_context context = {
        .what = what, .options = options, .lock = -1, .mutex = PTHREAD_MUTEX_INITIALIZER};
    invar_status status;

    *out = NULL;
    INVAR_CHECK(what->seeds >= 1 && what->seeds <= INVAR_AB_SEEDS && what->steps >= 0);
    INVAR_TRY(INVAR_ALLOC_ZEROED(context.result, 1, "an answer"));
    status = run_experiment(&context);
    for (int i = 0; i < INVAR_AB_SIDES; i++)
        invar_free(context.recipes[i]);
    if (context.lock >= 0)
        close(context.lock); // this releases the lock
    invar_workspace_close(context.workspace);
    invar_repo_close(context.repo);
    if (status != INVAR_OK) {
        invar_ab_result_free(context.result);
        return status;
    }
    *out = context.result;
    return INVAR_OK;
}

void invar_ab_result_free(invar_ab_result *result)
{
    if (!result)
        return;
    invar_ab_effects_release(&result->effects);
    invar_free(result->pairs);
    invar_free(result);
}
