/*
 * dry_run.c - invar train --dry-run: prints keys, memory, disk space and identity without writing.
 *
 * The checks are those of a run. With several ranks each one reads its data and weights, and they
 * compare the result; the memory is that of the training rank with the largest need.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/dry_run.h"

#include <stdio.h>
#include <string.h>

#include "cli/interactive.h"
#include "cli/memory_table.h"
#include "cli/safe_text.h"
#include "engine/config/config.h"
#include "engine/run/admission.h"
#include "engine/run/memory_workload.h"
#include "engine/run/run_dir/paths.h"
#include "engine/run/train.h"
#include "engine/run/train_settings.h"

#include "base/invar_banned.h"

static bool is_changed(const invar_recipe_entry *e)
{
    return !e->key->default_text || strcmp(e->text, e->key->default_text) != 0;
}

/* Prints the keys that differ from their defaults, or all others, in the format of a recipe. */
static void print_keys(const invar_config *config, bool changed)
{
    const char *section = "";
    invar_recipe_entry e;

    printf("# %s\n", changed ? "keys that differ from their defaults" : "all other keys");
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry_get(&e, config->recipe, i);
        if (is_changed(&e) != changed)
            continue;
        if (strcmp(section, e.key->section) != 0)
            printf("[%s]\n", e.key->section);
        section = e.key->section;
        printf("%s =%s", e.key->name, e.text[0] ? " " : "");
        invar_safe_text_print(stdout, e.text);
        putchar('\n');
    }
    putchar('\n');
}

/*
 * Plans the memory. With several ranks the plan is that of the training rank with the largest need.
 */
static invar_status plan_memory(invar_memory_planning *out, const invar_config *config, int ranks)
{
    invar_rank_role_sizes sides;
    invar_memory_plan most = {.need = 0};
    int train;

    INVAR_TRY(invar_memory_planning_open(out, config, 0));
    if (ranks == 1)
        return invar_memory_plan_make(&out->plan, &out->workload, out->available);
    INVAR_TRY(invar_train_settings_roles(&sides, config));
    train = ranks - sides.rollout_ranks;
    out->split_roles = sides.rollout_ranks ? &sides : NULL;
    out->world = ranks;
    for (int stage = 0; stage < sides.train.pipeline; stage++) {
        INVAR_TRY(invar_memory_planning_plan_stage(out, &sides.train, train, stage));
        most = out->plan.need > most.need ? out->plan : most;
    }
    out->plan = most;
    printf("# memory of the rank that needs most, of %d that train\n", train);
    return INVAR_OK;
}

static invar_status print_memory(const invar_config *config, const char *path, int ranks)
{
    invar_memory_planning view = {.world = 0};
    invar_status status = plan_memory(&view, config, ranks);
    invar_disk disk;

    if (status == INVAR_OK)
        status = invar_memory_table_disk(&disk, &view, path);
    if (status == INVAR_OK)
        status = invar_memory_table_show(&view.plan);
    if (status == INVAR_OK)
        status = invar_disk_show(&disk);
    putchar('\n');
    if (status == INVAR_OK && fflush(stdout) == 0)
        status = invar_memory_plan_check_fits(&view.plan, &view.workload);
    invar_memory_planning_release(&view);
    return status;
}

static void print_digest(const char *what, const invar_digest *digest)
{
    static const invar_digest none;
    char hex[INVAR_DIGEST_HEX_SIZE];

    if (invar_digest_equal(digest, &none))
        return;
    invar_digest_format(hex, digest);
    printf("%-9s %s\n", what, hex);
}

typedef struct dry_run_context {
    const invar_config *config;
    const char *path;
    invar_train_inputs given; /* inputs of rank 0 */
} dry_run_context;

static invar_status check_rank(void *payload, invar_comm *comm, int threads)
{
    dry_run_context *s = payload;
    const bool leads = !comm || invar_comm_rank(comm) == 0;
    const invar_train_options options = {.recipe_path = s->path,
                                         .until = -1,
                                         .comm = comm,
                                         .threads_for = threads,
                                         .say = leads ? invar_interactive_print : NULL};
    invar_train_inputs given;

    return invar_train_check(leads ? &s->given : &given, s->config, &options);
}

invar_status invar_dry_run(invar_launch *launch, const invar_config *config, const char *path)
{
    const int ranks = launch->comms ? invar_comm_size(launch->comms[0]) : 1;
    const bool leads = invar_launch_has_rank0(launch);
    dry_run_context s = {.config = config, .path = path};
    invar_train_inputs given;
    invar_run_paths at;

    INVAR_TRY(invar_run_paths_find(&at, config, path));
    INVAR_TRY(invar_admission_check(&(invar_admission){.config = config, .ranks = ranks}));
    if (leads) {
        print_keys(config, true);
        print_keys(config, false);
        INVAR_TRY(print_memory(config, path, ranks));
    }
    INVAR_TRY(invar_launch_run(launch, check_rank, &s));
    if (!leads)
        return INVAR_OK;
    given = s.given;
    printf("run       ");
    invar_safe_text_print(stdout, at.run);
    puts(" (nothing is written)");
    print_digest("data", &given.data);
    print_digest("weights", &given.weights);
    print_digest("identity", &given.identity);
    return INVAR_OK;
}
