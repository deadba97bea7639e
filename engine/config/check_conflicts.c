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

static invar_status fail_any(const invar_config *c, const conflict *others, size_t count,
                             const char *why)
{
    for (size_t i = 0; i < count; i++)
        if (others[i].is_set)
            return invar_config_fail(c, others[i].key, why);
    return INVAR_OK;
}

/*
 * Rejects keys that need to know the requests beforehand, because agents decide what they request.
 */
static invar_status check_agents(const invar_config_derived *f)
{
    static const char offered[] = "does not go with custom-agent-path yet: leave one of them out";
    const invar_config *c = f->config;
    const conflict others[] = {
        {INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH, c->custom_generate_function_path[0]},
        {INVAR_KEY_ROLLOUT_LAG, c->rollout_lag > 0},
        {INVAR_KEY_OVER_SAMPLING_KEEP_SURPLUS, c->over_sampling_keep_surplus},
        {INVAR_KEY_USE_ROLLOUT_ROUTING_REPLAY, c->use_rollout_routing_replay},
        {INVAR_KEY_OPD_TEACHER_URL, c->opd_teacher_url[0]},
        {INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA, c->save_debug_rollout_data[0]},
        {INVAR_KEY_DEBUG_DETERMINISM, c->debug_determinism > INVAR_PROBE_STEP},
        {INVAR_KEY_DEBUG_DUMP, c->debug_dump[0]},
    };

    if (!c->custom_agent_path[0])
        return INVAR_OK;
    if (invar_config_is_object(c->custom_agent_path))
        return invar_config_fail(c, INVAR_KEY_CUSTOM_AGENT_PATH,
                                 "is a shared object; an agent is a program");
    return fail_any(c, others, sizeof others / sizeof *others, offered);
}

bool invar_config_is_recorded_schedule(const invar_config *c)
{
    return c->rollout_schedule == INVAR_ROLLOUT_SCHEDULE_RECORDED;
}

/*
 * Rejects keys that conflict with a recorded schedule: all groups are trained on as they are
 * completed, and samples may be interrupted at any token.
 */
static invar_status check_recorded(const invar_config_derived *f)
{
    static const char offered[] =
        "does not go with rollout-schedule = recorded yet: leave one of them out";
    const invar_config *c = f->config;
    const conflict others[] = {
        {INVAR_KEY_ROLLOUT_SEGMENT_TOKENS, c->rollout_segment_tokens > 0},
        {INVAR_KEY_DYNAMIC_SAMPLING_FILTER, c->dynamic_sampling_filter != INVAR_GROUP_FILTER_NONE},
        {INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH, c->dynamic_sampling_filter_path[0]},
        {INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH, c->rollout_sample_filter_path[0]},
        {INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH, c->custom_generate_function_path[0]},
    };

    if (!invar_config_is_recorded_schedule(c))
        return INVAR_OK;
    if (c->rollout_lag + c->rollout_max_delay > INVAR_CONFIG_MAX_LAG)
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_MAX_DELAY,
                                 "and rollout-lag are more than 64 together");
    return fail_any(c, others, sizeof others / sizeof *others, offered);
}

invar_status invar_config_check_conflicts(const invar_config_derived *f)
{
    INVAR_TRY(check_agents(f));
    return check_recorded(f);
}
