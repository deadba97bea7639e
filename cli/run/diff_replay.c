/*
 * diff_replay.c - invar diff --replay: executes the diverging step of both runs with every op
 * recorded.
 *
 * Each run executes in a child process `invar replay`, possibly of another program version, into a
 * scratch folder. The two new ledgers are then compared. If the first difference is in the sampled
 * tokens, B runs once more with the samples of A, which exposes the op that caused it. A child that
 * does not reproduce its recorded bits is an error, because it proves nothing about the run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/diff_replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bisect/workspace/child.h"
#include "cli/command.h"
#include "cli/interactive.h"
#include "cli/run/replay.h"

#include "base/invar_banned.h"

typedef struct diff_replay_context {
    const invar_diff_replay *replay;
    const invar_diff *coarse; /* diff of the recorded runs */
    char scratch[INVAR_PATH_SIZE];
    const volatile sig_atomic_t *stop;
} diff_replay_context;

// words of a child's command in addition to the user's keys
enum { OWN_WORDS = 10, MORE_WORDS = 2 };

/* ---- children -------------------------------------------------------------------------------- */

static invar_status run_child(invar_child_result *out, const diff_replay_context *s, int i,
                              const char *folder, const char *const more[MORE_WORDS])
{
    static const char *const environment[] = {"INVAR_LEDGER", NULL};
    const char *program = s->replay->programs[i] ? s->replay->programs[i] : "/proc/self/exe";
    char run[INVAR_PATH_SIZE + 64], step[24], here[INVAR_PATH_SIZE];
    const char **words;
    size_t flags = 0, used = 0;
    invar_status status;

    while (s->replay->flags[flags])
        flags++;
    INVAR_TRY(INVAR_ALLOC(words, flags + OWN_WORDS + MORE_WORDS + 1, "a command"));
    // a path in the current folder, which is not to be searched in PATH
    if (!strchr(program, '/') && invar_path_exists(program)) {
        snprintf(here, sizeof here, "./%s", program);
        program = here;
    }
    snprintf(run, sizeof run, "%s:%s", s->replay->ledgers[i],
             i ? s->coarse->b.uuid : s->coarse->a.uuid);
    snprintf(step, sizeof step, "%" PRId64, s->coarse->step);
    const char *const own[OWN_WORDS] = {
        program,   "replay", run,      "--step", step,
        "--level", "full",   "--keep", folder,   "--on-mismatch=record"};
    memcpy(words, own, sizeof own);
    used = OWN_WORDS;
    memcpy(words + used, s->replay->flags, flags * sizeof *words);
    used += flags;
    for (int j = 0; j < MORE_WORDS && more[j]; j++)
        words[used++] = more[j];
    words[used] = NULL;
    status = invar_child_run(out, &(invar_child_request){.words = words,
                                                         .environment = environment,
                                                         .lock = -1,
                                                         .stop = s->stop,
                                                         .kill_grace_s = 60});
    invar_free((void *)words);
    if (status == INVAR_OK && out->end == INVAR_CHILD_STOPPED)
        return INVAR_FAIL(INVAR_E_STATE, 0, "stopped by a signal");
    return status;
}

/* Maps the exit code of a child to a status with the same exit code. */
static invar_status status_of(const invar_child_result *ran)
{
    int code = ran->end == INVAR_CHILD_EXITED ? ran->code : INVAR_EXIT_TROUBLE;

    return code == INVAR_EXIT_UNTESTABLE ? INVAR_E_NODEVICE
           : code == INVAR_EXIT_USAGE    ? INVAR_E_INVALID
                                         : INVAR_E_STATE;
}

/* Executes the recorded step into the ledger of `folder`. */
static invar_status execute_step(const diff_replay_context *s, int i, const char *folder)
{
    char line[128], story[INVAR_CHILD_REASON_SIZE], copy[INVAR_PATH_SIZE];
    invar_child_result ran;
    bool answered;

    snprintf(line, sizeof line, "executing step %" PRId64 " of %c again", s->coarse->step, "AB"[i]);
    invar_interactive_print(NULL, line);
    INVAR_TRY(invar_path_join(copy, sizeof copy, folder, "run"));
    INVAR_TRY(run_child(&ran, s, i, folder, (const char *const[MORE_WORDS]){NULL}));
    answered = ran.end == INVAR_CHILD_EXITED &&
               (ran.code == INVAR_EXIT_OK || ran.code == INVAR_EXIT_DIFFERENT);
    if (answered && !invar_path_exists(copy))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "--replay: %c was not executed again: %s recorded nothing; give an invar "
                          "(--program-%c)",
                          "AB"[i],
                          s -> replay -> programs[i] ? s -> replay -> programs[i] : "this program",
                          "ab"[i]);
    if (answered && ran.code == INVAR_EXIT_OK)
        return INVAR_OK;
    if (answered)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "--replay: executed again, %c has other bits than recorded; give the "
                          "program that made it (--program-%c): %.1000s",
                          "AB"[i], "ab"[i], ran.last_words);
    invar_child_describe(story, &ran, 0);
    return INVAR_FAIL(status_of(&ran), ran.code, "--replay: %c cannot be executed again: %s",
                      "AB"[i], story);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static invar_status open_copy(invar_located *out, const char *folder)
{
    char run[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(run, sizeof run, folder, "run"));
    return invar_locate_run(out, run, NULL);
}

/* Compares the new executions. */
static invar_status compare_executions(invar_diff **out, const diff_replay_context *s,
                                       const char *folder_a, const char *folder_b)
{
    invar_located a = {.ledger = NULL}, b = {.ledger = NULL};
    invar_status status = open_copy(&a, folder_a);

    if (status == INVAR_OK)
        status = open_copy(&b, folder_b);
    if (status == INVAR_OK)
        status = invar_diff_step(out, a.ledger, a.run.run, b.ledger, b.run.run, s->coarse->step);
    invar_located_close(&b);
    invar_located_close(&a);
    return status;
}

/* Returns true if the step is from the newest segment, which the child has written. */
static bool is_new(const invar_diff_side *side)
{
    return side->seg == side->segments - 1;
}

/*
 * Repeats B with the samples of A: one differing number changes all later tokens, and no point
 * explains that. *fine is unchanged if a child fails or if only the samples differ.
 */
static invar_status refine_with_same_samples(invar_diff **fine, const diff_replay_context *s,
                                             const char *folder_a)
{
    char saved[INVAR_PATH_SIZE], given[INVAR_PATH_SIZE], samples[INVAR_PATH_SIZE];
    invar_child_result ran;
    invar_diff *behind = NULL;

    INVAR_TRY(invar_path_join(saved, sizeof saved, s->scratch, "a-saves"));
    INVAR_TRY(invar_path_join(given, sizeof given, s->scratch, "b-of-a"));
    INVAR_TRY(invar_path_join(samples, sizeof samples, s->scratch, "{rollout_id}.rollout"));
    invar_interactive_print(NULL, "the samples differ: executing B again with those of A");
    INVAR_TRY(run_child(&ran, s, 0, saved,
                        (const char *const[MORE_WORDS]){"--save-debug-rollout-data", samples}));
    if (ran.end != INVAR_CHILD_EXITED || ran.code != INVAR_EXIT_OK)
        return INVAR_OK;
    INVAR_TRY(run_child(&ran, s, 1, given,
                        (const char *const[MORE_WORDS]){"--load-debug-rollout-data", samples}));
    if (ran.end != INVAR_CHILD_EXITED || ran.code > INVAR_EXIT_DIFFERENT)
        return INVAR_OK;
    INVAR_TRY(compare_executions(&behind, s, folder_a, given));
    if (is_new(&behind->b) && behind->points.count) {
        invar_diff *before = *fine;
        *fine = behind;
        behind = before;
    }
    invar_diff_free(behind);
    return INVAR_OK;
}

static invar_status replay_both(invar_diff **out, const diff_replay_context *s)
{
    char a[INVAR_PATH_SIZE], b[INVAR_PATH_SIZE];
    const invar_diff_point *first;
    invar_diff *fine = NULL;
    invar_status status = INVAR_OK;

    INVAR_TRY(invar_path_join(a, sizeof a, s->scratch, "a"));
    INVAR_TRY(invar_path_join(b, sizeof b, s->scratch, "b"));
    INVAR_TRY(execute_step(s, 0, a));
    INVAR_TRY(execute_step(s, 1, b));
    INVAR_TRY(compare_executions(&fine, s, a, b));
    first = fine->culprit ? fine->culprit : fine->points.items;
    // other weights or random numbers are a sufficient explanation for other samples
    if (fine->points.count && strcmp(first->phase, "rollout") == 0 &&
        fine->same_rng != INVAR_TRISTATE_NO && fine->same_weights != INVAR_TRISTATE_NO)
        status = refine_with_same_samples(&fine, s, a);
    if (status == INVAR_OK)
        *out = fine;
    else
        invar_diff_free(fine);
    return status;
}

/* Reports the facts of the recorded runs instead of those of the copies. */
static void copy_facts(invar_diff *fine, const invar_diff *coarse)
{
    fine->replayed = true;
    fine->facts.items = coarse->facts.items;
    fine->facts.count = coarse->facts.count;
    fine->facts.equal = coarse->facts.equal;
    fine->a.segments = coarse->a.segments;
    fine->b.segments = coarse->b.segments;
}

invar_status invar_diff_replay_runs(invar_diff **out, const invar_diff *coarse,
                                    const invar_diff_replay *replay)
{
    diff_replay_context s = {.replay = replay, .coarse = coarse};
    invar_status status;

    *out = NULL;
    if (!coarse->roots_differ)
        return INVAR_OK;
    if (coarse->self_contradicting_side)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--replay: %c disagrees with itself; 'invar diff' without it says where",
                          coarse->self_contradicting_side);
    s.stop = invar_interactive_catch_signals("stopping");
    INVAR_TRY(invar_replay_scratch(s.scratch, replay->keep));
    status = replay_both(out, &s);
    if (status == INVAR_OK)
        copy_facts(*out, coarse);
    if (replay->keep)
        return status;
    invar_replay_scratch_remove(s.scratch);
    // the scratch ledgers are removed, so printed commands must name the recorded ones
    if (status == INVAR_OK) {
        (*out)->a.ledger = coarse->a.ledger;
        (*out)->b.ledger = coarse->b.ledger;
    }
    return status;
}
