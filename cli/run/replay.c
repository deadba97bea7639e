/*
 * replay.c - invar replay: executes recorded steps again and compares every bit with the ledger.
 *
 * The steps come from a run or from a file of `invar pack`, which is unpacked into a scratch
 * folder. A difference is located by comparing the two executions of the step in the new ledger.
 * The exit code tells whether the bits are equal.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/console/term.h"
#include "base/text.h"
#include "cli/ledger/ledger.h"
#include "cli/recipe_flags.h"
#include "cli/safe_text.h"
#include "engine/config/choices.h"
#include "engine/files/tar.h"
#include "engine/run/replay/pack.h"
#include "ledger/view/diff/diff.h"

#include "base/invar_banned.h"

typedef struct settings {
    int64_t step, from;
    invar_option_choice level; /* negative value to keep the recorded level */
    const char *keep;
    bool json;
} settings;

static settings asked = {.step = -1, .from = -1, .level = {&invar_probe_level_choices, -1}};

/* ---- inputs ---------------------------------------------------------------------------------- */

static invar_status open_pack(invar_replay_context *context, const settings *s, const char *word,
                              const invar_config *flags)
{
    char folder[INVAR_PATH_SIZE];
    invar_pack pack;

    INVAR_TRY(invar_path_join(folder, sizeof folder, context->scratch, "pack"));
    INVAR_TRY(invar_held_folder_make(folder));
    INVAR_TRY(invar_pack_read(&pack, word, folder));
    context->keys = pack.keys; // ownership of the keys moves to the context
    if (s->step >= 0 && s->step != pack.step)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--step %" PRId64 ": the pack is of step %" PRId64,
                          s->step, pack.step);
    INVAR_TRY(invar_locate_run(&context->located, pack.ledger, NULL));
    if (strcmp(context->located.run.uuid, pack.uuid) != 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%.1000s: its ledger is of another run", word);
    if (pack.step > context->located.run.last_step)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%.1000s: its ledger has no step %" PRId64, word,
                          pack.step);
    return invar_replay_context_set(context, flags, pack.step);
}

static invar_status prepare_context(invar_replay_context *context, const settings *s,
                                    const char *word, const invar_config *flags)
{
    INVAR_TRY(invar_replay_context_open(context, s->keep));
    if (invar_tar_is_archive(word))
        INVAR_TRY(open_pack(context, s, word, flags));
    else
        INVAR_TRY(invar_replay_context_run(context, word, flags, s->step));
    if (s->from >= 0)
        context->replay.first_step = s->from;
    if (s->level.value >= 0)
        return invar_recorded_keys_put(&context->keys, INVAR_KEY_DEBUG_DETERMINISM,
                                       invar_probe_level_choices.words[s->level.value]);
    return INVAR_OK;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Formats the first step and point at which the two executions diverge. */
static invar_status format_divergence(char out[INVAR_DIFF_HEADLINE_SIZE],
                                      const invar_replay_result *r)
{
    invar_ledger_summary run;
    invar_ledger *copy = NULL;
    invar_diff *diff = NULL;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&copy, r->ledger, &(invar_ledger_options){0}));
    status = invar_ledger_find(&run, copy, NULL);
    if (status == INVAR_OK)
        status = invar_diff_runs(&diff, copy, run.run, copy, run.run);
    if (status == INVAR_OK)
        invar_diff_headline(out, diff);
    invar_diff_free(diff);
    invar_ledger_close(copy);
    return status;
}

static const char *verdict_name(const invar_replay_result *r)
{
    return r->differs >= 0 ? "different" : r->compared ? "identical" : "nothing";
}

#define RESULT                                                                                     \
    "{verdict identical|different|nothing, run text, name text, after int, first int, last int,"   \
    " compared int, differs int (the first step that differs; -1: none does), corrected int"       \
    " (steps of version 0.1.0 whose bits are the same and whose false metrics are gone),"          \
    " headline text, chain hex32}"

static invar_status print_json(const invar_replay_context *context, const invar_replay_result *r,
                               const char *headline)
{
    return invar_json_write(stdout, INVAR_RESULT(RESULT, verdict_name(r), context->located.run.uuid,
                                                 context->located.run.name, r->checkpoint_step,
                                                 r->first, r->last, r->compared, r->differs,
                                                 r->corrected, headline, &r->chain));
}

static void print_text(const invar_replay_context *context, const invar_replay_result *r,
                       const char *headline)
{
    bool color = invar_term_has_color(stdout);
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, &r->chain);
    printf("run       ");
    invar_safe_text_print(stdout, context->located.run.name);
    printf(" (%.8s)\nsteps     %" PRId64 " to %" PRId64 " executed again, ",
           context->located.run.uuid, r->first, r->last);
    if (r->checkpoint_step >= 0)
        printf("after the checkpoint of step %" PRId64 "\n", r->checkpoint_step);
    else
        puts("from the start of the run");
    printf("chain     %s\n", hex);
    if (context->kept) {
        printf("ledger    ");
        invar_safe_text_print(stdout, r->ledger);
        puts(" has both executions");
    }
    if (r->differs >= 0)
        invar_safe_text_print(stdout, headline);
    else if (r->compared == 0)
        printf("nothing was compared: the ledger has none of these steps");
    else
        printf("%sidentical%s", invar_term_escape(color, INVAR_TERM_STYLE_GREEN),
               invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
    if (r->differs < 0 && r->corrected)
        printf(" in all bits; version 0.1.0 recorded false metrics for %" PRId64
               " step%s (docs/changelog.md)",
               r->corrected, invar_text_plural(r->corrected));
    putchar('\n');
}

static invar_status report_result(int *code_out, invar_replay_context *context, const settings *s,
                                  const invar_replay_result *r)
{
    char headline[INVAR_DIFF_HEADLINE_SIZE] = "";

    invar_progress_free(context->progress);
    context->progress = NULL;
    *code_out = r->differs >= 0 ? INVAR_EXIT_DIFFERENT
                : r->compared   ? INVAR_EXIT_OK
                                : INVAR_EXIT_NOTHING;
    if (r->what[0])
        (void)snprintf(headline, sizeof headline,
                       "different: step %" PRId64 " has the same bits, but another %s", r->differs,
                       r->what);
    else if (r->differs >= 0)
        INVAR_TRY(format_divergence(headline, r));
    if (s->json)
        return print_json(context, r, headline);
    print_text(context, r, headline);
    return INVAR_OK;
}

static invar_status replay_steps(int *code_out, const settings *s, const char *word,
                                 const invar_config *flags)
{
    invar_replay_context context = {.kept = false};
    invar_replay_result result;
    invar_status status = prepare_context(&context, s, word, flags);

    if (status == INVAR_OK)
        status = invar_replay_run(&result, &context.replay);
    if (status == INVAR_OK)
        status = report_result(code_out, &context, s, &result);
    invar_replay_context_close(&context);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static const invar_option options[] = {
    {"step", INVAR_OPTION_INT, &asked.step, "S", "step to execute again; not needed for a pack", 0,
     INT64_MAX},
    {"from", INVAR_OPTION_INT, &asked.from, "A", "execute all steps from A to S (default: only S)",
     0, INT64_MAX},
    {"level", INVAR_OPTION_WORD, &asked.level, "LEVEL",
     "how much detail to record, as debug-determinism", 0, 0},
    {"keep", INVAR_OPTION_TEXT, &asked.keep, "DIR",
     "keep the ledger with both executions in this new folder", 0, 0},
    INVAR_OPTION_JSON(&asked.json),
    INVAR_RECIPE_FLAGS_END};

static int cmd_replay(int argc, char **argv)
{
    invar_config flags = {.recipe = NULL};
    int words, code = INVAR_EXIT_TROUBLE;
    invar_status status = invar_recipe_flags_keys(&flags, &argc, argv);

    if (status == INVAR_OK)
        status = invar_options_parse_words(&words, options, argc, argv, "RUN or a pack", 1, 1);
    if (status == INVAR_OK)
        status = replay_steps(&code, &asked, argv[0], &flags);
    invar_recipe_free(flags.recipe);
    return invar_replay_exit(status, code);
}

const invar_cli_command invar_cmd_replay = {
    .name = "replay",
    .summary = "execute recorded steps again and compare every bit",
    .run = cmd_replay,
    .about =
        "Executes recorded steps again, starting at the newest checkpoint before them, and\n"
        "compares every bit with the ledger. The run's own files are only read. Plug-ins are not\n"
        "started; their recorded replies are used. Steps that were computed under other revisions\n"
        "of ops are refused; the message names the commit to build.\n"
        "\n"
        "RUN is a folder, a ledger, FILE:RUN, at least 4 digits of a uuid, @last, or a file made\n"
        "by 'invar pack'. Free (non-semantic) recipe keys, which cannot change bits, are options\n"
        "here too (--threads, --micro-batch-size, ...), and so are the paths of files that have\n"
        "moved: --load for the checkpoints, --prompt-data, --hf-checkpoint, ...\n"
        "\n"
        "Exit codes:\n"
        "  0    identical\n"
        "  1    different\n"
        "  2    could not be done\n"
        "  6    nothing was compared\n"
        "  125  no such device here\n",
    .options = options,
    .result = RESULT,
    .arguments = "RUN|FILE --step S [--option value ...]"};
