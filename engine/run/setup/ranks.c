/*
 * ranks.c - how the ranks of a run divide it, and what they are refused for together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/config/check.h"
#include "engine/run/setup/inside.h"

#include "base/invar_banned.h"

invar_status invar_setup_find_together(invar_loop *loop, invar_status status)
{
    invar_agree_odd who;
    invar_digest said = {{0}};
    invar_error own;

    if (!loop->world || (status != INVAR_OK && status != INVAR_E_INVALID))
        return status;
    if (status == INVAR_OK)
        return invar_agree_compare(&who, loop->world, "what was found", &said);
    invar_error_take(&own);
    invar_hash_bytes(&said, own.message, strlen(own.message));
    loop->agreed =
        invar_agree_compare(&who, loop->world, "what was found", &said) == INVAR_OK && who.odd < 0;
    invar_error_put(&own);
    return status;
}

invar_session_crowd invar_setup_crowd(const invar_loop *loop)
{
    return (invar_session_crowd){loop->options->threads_for > 1 ? loop->options->threads_for : 1,
                                 invar_agree_here(loop->world), invar_agree_place(loop->world),
                                 loop->ranks};
}

/* Between the sums of a layer these ranks have columns or rows of values: nobody has them whole. */
static bool divides_values(const invar_layout_sizes *sizes)
{
    return sizes->tensor > 1 || sizes->context > 1;
}

/* Of the names between commas, none can be that of a value between the sums of a layer. */
static bool names_whole_points(const char *points)
{
    static const char *const begins[] = {
        "grad.", "weight.",  "batch.",       "rollout.",       "train.",       "score.",
        "ref.",  "teacher.", "critic.grad.", "critic.weight.", "critic.values"};

    for (const char *at = points; *at; at += strspn(at, ",")) {
        size_t i = 0, count = sizeof begins / sizeof *begins;
        while (i < count && strncmp(at, begins[i], strlen(begins[i])) != 0)
            i++;
        if (i == count)
            return false;
        at += strcspn(at, ",");
    }
    return true;
}

static invar_status check_watched(const invar_recipe *r, const invar_sides_sizes *sizes)
{
    bool apart = sizes->rollout_ranks > 0;

    if (apart && invar_recipe_int(r, INVAR_KEY_AUDIT) > 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "audit needs ranks that train on what they sample, and here some ranks "
                          "only sample: leave out rollout-num-gpus, or replay the run on one rank, "
                          "which has the same bits");
    if (!divides_values(&sizes->train) && !(apart && divides_values(&sizes->rollout)))
        return INVAR_OK;
    if (!names_whole_points(invar_recipe_string(r, INVAR_KEY_DEBUG_DUMP)))
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "debug-dump: here ranks divide layers or rows: name points that begin with "
            "grad., weight., batch., rollout., train., score., ref., teacher., "
            "critic.grad. or critic.weight., or replay the run on one rank, which "
            "has the same bits");
    if (INVAR_RECIPE_ENUM(invar_probe_level, r, INVAR_KEY_DEBUG_DETERMINISM) > INVAR_PROBE_POINT)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "debug-determinism: finer points than those of \"point\" need whole "
                          "values, and here ranks divide layers or rows: replay the run on one "
                          "rank, which has the same bits");
    return INVAR_OK;
}

/* The least number of ranks that the recipe can have. */
static int least_ranks(const invar_sides_sizes *sizes)
{
    return invar_layout_parts(&sizes->train) + sizes->rollout_ranks;
}

/* One rank is none of several, whatever a recorded run had. */
static invar_status check_alone(const invar_loop *loop, const invar_sides_sizes *sizes)
{
    int least = least_ranks(sizes);

    if (least == 1 || loop->options->replay)
        return INVAR_OK;
    if (sizes->rollout_ranks > 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout-num-gpus = %d of the ranks only sample, and this is one: start "
                          "with --ranks %d or with mpirun (docs/scale-out.md)",
                          sizes->rollout_ranks, least);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "the recipe cuts the model into %d parts, for as many ranks, and this is "
                      "one: start with --ranks %d or with mpirun (docs/scale-out.md)",
                      least, least);
}

static invar_status open_sides(invar_loop *loop, const invar_sides_sizes *sizes)
{
    double seconds = loop->layout.seconds;

    if (invar_recipe_string(loop->recipe, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA)[0])
        return invar_config_refuse(loop->recipe, INVAR_KEY_ROLLOUT_NUM_GPUS,
                                   "is 0 where rollouts come from files: leave out one of them");
    INVAR_TRY(invar_sides_open(&loop->sides, &loop->layout, loop->options->comm, seconds, sizes));
    loop->ranks = invar_comm_size(loop->sides.own) > 1 ? &loop->layout : NULL;
    loop->world = &loop->sides.world;
    return INVAR_OK;
}

static invar_status divide_model(invar_loop *loop)
{
    invar_sides_sizes sizes;

    INVAR_TRY(invar_settings_sides(&sizes, loop->recipe));
    if (!loop->world)
        return check_alone(loop, &sizes);
    if (invar_config_recorded(loop->recipe) &&
        !invar_config_filled(loop->recipe, INVAR_KEY_ROLLOUT_RECORD))
        return invar_config_refuse(loop->recipe, INVAR_KEY_ROLLOUT_SCHEDULE,
                                   "= recorded needs a run of one rank, whose clock decides; "
                                   "several obey a record: give rollout-record");
    INVAR_TRY(check_watched(loop->recipe, &sizes));
    if (sizes.rollout_ranks > 0)
        return open_sides(loop, &sizes);
    return invar_layout_divide(&loop->layout, &sizes.train);
}

/* Until it is known how they divide the work. */
static void join_world(invar_loop *loop)
{
    invar_comm *comm = loop->options->comm;

    if (!comm || invar_comm_size(comm) == 1)
        return;
    invar_layout_init(
        &loop->layout, comm,
        60.0 * (double)invar_recipe_int(loop->recipe, INVAR_KEY_DISTRIBUTED_TIMEOUT_MINUTES));
    loop->world = loop->ranks = &loop->layout;
}

invar_status invar_setup_open_layout(invar_loop *loop)
{
    join_world(loop);
    INVAR_TRY(invar_loop_compare_words(loop));
    return invar_setup_find_together(loop, divide_model(loop));
}

invar_status invar_loop_renew_layout(invar_loop *loop)
{
    if (!loop->world || loop->layout.data.comm == loop->options->comm)
        return INVAR_OK;
    invar_layout_close_transport(&loop->layout, &loop->session.dev);
    invar_layout_release(&loop->layout);
    invar_sides_close(&loop->sides);
    join_world(loop);
    return divide_model(loop);
}
