/*
 * pack.c - invar pack: writes everything that a recorded step needs into one file.
 *
 * The file is what `invar replay` accepts on another machine. If the run has no checkpoint at the
 * step, the steps since the last checkpoint are executed again first (engine/run/replay/pack.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/pack.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/ledger/ledger.h"
#include "cli/recipe_flags.h"
#include "cli/run/replay.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

typedef struct settings {
    int64_t step;
    const char *output;
} settings;

static settings asked = {.step = -1};

static void print_pack(const invar_replay_context *context, const invar_pack_result *r,
                       const char *path)
{
    printf("run       ");
    invar_safe_text_print(stdout, context->located.run.name);
    printf(" (%.8s), step %" PRId64 "\nstate     ", context->located.run.uuid,
           context->replay.step);
    if (r->checkpoint_step < 0)
        puts("none: the step is of the first rollout");
    else
        printf("after step %" PRId64 "%s\n", r->checkpoint_step,
               r->made ? ", made by executing the steps before it again"
                       : ", the run's checkpoint");
    printf("pack      ");
    invar_safe_text_print(stdout, path);
    printf(", %" PRId64 " members, %" PRId64 " bytes\n\n", r->members, r->bytes);
    invar_print_next(stdout, "replay", path, NULL, NULL);
}

static invar_status pack_step(const settings *s, const char *word, const invar_config *flags)
{
    invar_replay_context context = {.kept = false};
    char path[INVAR_PATH_SIZE];
    invar_pack_result result;
    invar_status status = invar_replay_context_open(&context, NULL);

    if (status == INVAR_OK)
        status = invar_replay_context_run(&context, word, flags, s->step);
    if (status == INVAR_OK) {
        (void)snprintf(path, sizeof path, "%.8s-%" PRId64 ".invar-pack", context.located.run.uuid,
                       s->step);
        if (s->output)
            (void)snprintf(path, sizeof path, "%s", s->output);
        status = invar_pack_write(&result, &context.replay, path);
    }
    invar_progress_free(context.progress);
    context.progress = NULL;
    if (status == INVAR_OK)
        print_pack(&context, &result, path);
    invar_replay_context_close(&context);
    return status;
}

static const invar_option options[] = {
    {"step", INVAR_OPTION_INT, &asked.step, "S", "step to pack", 0, INT64_MAX},
    {"output", INVAR_OPTION_TEXT, &asked.output, "FILE", "file to write (UUID-STEP.invar-pack)", 0,
     0},
    INVAR_RECIPE_FLAGS_END};

static int cmd_pack(int argc, char **argv)
{
    invar_config flags = {.recipe = NULL};
    int words;
    invar_status status = invar_recipe_flags_keys(&flags, &argc, argv);

    if (status == INVAR_OK)
        status = invar_options_parse_words(&words, options, argc, argv, "RUN", 1, 1);
    if (status == INVAR_OK)
        status = pack_step(&asked, argv[0], &flags);
    invar_recipe_free(flags.recipe);
    return invar_replay_exit(status, INVAR_EXIT_OK);
}

const invar_cli_command invar_cmd_pack = {
    .name = "pack",
    .summary = "pack a recorded step and all that it needs into one file",
    .run = cmd_pack,
    .about =
        "Writes everything that one recorded step needs into one file, a plain tar archive: the\n"
        "state before its rollout, the ledger, the recipe, the data, the tokenizer, and the\n"
        "initial weights unless a seed generates them. If the run has no checkpoint at that step,\n"
        "the steps since the last one are executed again first. 'invar replay FILE' then executes\n"
        "the step on any machine.\n"
        "\n"
        "RUN is a folder, a ledger, FILE:RUN, at least 4 digits of a uuid, or @last. The options\n"
        "of 'invar replay' work here too.\n",
    .options = options,
    .arguments = "RUN --step S [--output FILE]"};
