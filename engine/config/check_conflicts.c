/*
 * check_conflicts.c - rejects combinations of keys that are not supported yet.
 *
 * Each feature lists the keys that it does not work with. The error names the first conflicting key
 * that is set, so that the user can remove it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/check_internal.h"

#include "base/invar_banned.h"

/* A key that conflicts with a feature. */
typedef struct conflict {
    invar_key key;
    bool is_set; /* the key is set to a conflicting value */
} conflict;

static invar_status fail_any(const invar_recipe *r, const conflict *others, size_t count,
                             const char *why)
{
    for (size_t i = 0; i < count; i++)
        if (others[i].is_set)
            return invar_config_fail(r, others[i].key, why);
    return INVAR_OK;
}

/*
 * Rejects keys that need to know the requests beforehand, because agents decide what they request.
 */
static invar_status check_agents(const invar_config_derived *f)
{
    static const char offered[] = "does not go with custom-agent-path yet: leave one of them out";
    const invar_recipe *r = f->recipe;
    const conflict others[] = {
        {INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH,
         invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH)},
        {INVAR_KEY_ROLLOUT_LAG, invar_recipe_int(r, INVAR_KEY_ROLLOUT_LAG) > 0},
        {INVAR_KEY_OVER_SAMPLING_KEEP_SURPLUS,
         invar_recipe_bool(r, INVAR_KEY_OVER_SAMPLING_KEEP_SURPLUS)},
        {INVAR_KEY_USE_ROLLOUT_ROUTING_REPLAY,
         invar_recipe_bool(r, INVAR_KEY_USE_ROLLOUT_ROUTING_REPLAY)},
        {INVAR_KEY_OPD_TEACHER_URL, invar_config_is_nonempty(r, INVAR_KEY_OPD_TEACHER_URL)},
        {INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA,
         invar_config_is_nonempty(r, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA)},
        {INVAR_KEY_DEBUG_DETERMINISM,
         INVAR_RECIPE_ENUM(invar_probe_level, r, INVAR_KEY_DEBUG_DETERMINISM) > INVAR_PROBE_STEP},
        {INVAR_KEY_DEBUG_DUMP, invar_config_is_nonempty(r, INVAR_KEY_DEBUG_DUMP)},
    };

    if (!invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_AGENT_PATH))
        return INVAR_OK;
    if (invar_config_is_object(r, INVAR_KEY_CUSTOM_AGENT_PATH))
        return invar_config_fail(r, INVAR_KEY_CUSTOM_AGENT_PATH,
                                 "is a shared object; an agent is a program");
    return fail_any(r, others, sizeof others / sizeof *others, offered);
}

bool invar_config_is_recorded_schedule(const invar_recipe *r)
{
    return INVAR_RECIPE_ENUM(invar_rollout_schedule, r, INVAR_KEY_ROLLOUT_SCHEDULE) ==
           INVAR_ROLLOUT_SCHEDULE_RECORDED;
}

/*
 * Rejects keys that conflict with a recorded schedule: all groups are trained on as they are
 * completed, and samples may be interrupted at any token.
 */
static invar_status check_recorded(const invar_config_derived *f)
{
    static const char offered[] =
        "does not go with rollout-schedule = recorded yet: leave one of them out";
    const invar_recipe *r = f->recipe;
    const conflict others[] = {
        {INVAR_KEY_ROLLOUT_SEGMENT_TOKENS,
         invar_recipe_int(r, INVAR_KEY_ROLLOUT_SEGMENT_TOKENS) > 0},
        {INVAR_KEY_DYNAMIC_SAMPLING_FILTER,
         INVAR_RECIPE_ENUM(invar_group_filter, r, INVAR_KEY_DYNAMIC_SAMPLING_FILTER) !=
             INVAR_GROUP_FILTER_NONE},
        {INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH,
         invar_config_is_nonempty(r, INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH)},
        {INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH,
         invar_config_is_nonempty(r, INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH)},
        {INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH,
         invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH)},
    };
    int64_t lag = invar_recipe_int(r, INVAR_KEY_ROLLOUT_LAG);

    if (!invar_config_is_recorded_schedule(r))
        return INVAR_OK;
    if (lag + invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_DELAY) > INVAR_CONFIG_MAX_LAG)
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_MAX_DELAY,
                                 "and rollout-lag are more than 64 together");
    return fail_any(r, others, sizeof others / sizeof *others, offered);
}

invar_status invar_config_check_conflicts(const invar_config_derived *f)
{
    INVAR_TRY(check_agents(f));
    return check_recorded(f);
}
