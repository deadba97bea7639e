/*
 * check_conflicts.c - what does not go together yet, refused by name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/check_internal.h"

#include "base/invar_banned.h"

typedef struct other {
    invar_key key;
    bool refused; /* it is set */
} other;

static invar_status refuse_any(const invar_recipe *r, const other *others, size_t count,
                               const char *why)
{
    for (size_t i = 0; i < count; i++)
        if (others[i].refused)
            return invar_config_fail(r, others[i].key, why);
    return INVAR_OK;
}

/* Agents decide what is asked: what needs to know that beforehand does not go with them. */
static invar_status check_agents(const invar_config_derived *f)
{
    static const char offered[] = "does not go with custom-agent-path yet: leave one of them out";
    const invar_recipe *r = f->recipe;
    const other others[] = {
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
    return refuse_any(r, others, sizeof others / sizeof *others, offered);
}

bool invar_config_recorded(const invar_recipe *r)
{
    return INVAR_RECIPE_ENUM(invar_rollout_schedule, r, INVAR_KEY_ROLLOUT_SCHEDULE) ==
           INVAR_ROLLOUT_SCHEDULE_RECORDED;
}

/* Groups are trained on as they come, all of them, and samples are left anywhere. */
static invar_status check_recorded(const invar_config_derived *f)
{
    static const char offered[] =
        "does not go with rollout-schedule = recorded yet: leave one of them out";
    const invar_recipe *r = f->recipe;
    const other others[] = {
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

    if (!invar_config_recorded(r))
        return INVAR_OK;
    if (lag + invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_DELAY) > INVAR_CONFIG_MAX_LAG)
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_MAX_DELAY,
                                 "and rollout-lag are more than 64 together");
    return refuse_any(r, others, sizeof others / sizeof *others, offered);
}

invar_status invar_config_check_together(const invar_config_derived *f)
{
    INVAR_TRY(check_agents(f));
    return check_recorded(f);
}
