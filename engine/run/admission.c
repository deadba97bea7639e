/*
 * admission.c - the rules about ranks, models and data that refuse a run before it starts.
 *
 * Rules of the recipe alone are in engine/config. A rule belongs here if it needs the number of
 * ranks, the model or the data. Checks of files, such as an output folder that exists already, are
 * made by the code that opens them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/admission.h"

#include <inttypes.h>
#include <string.h>

#include "engine/config/check_internal.h"
#include "engine/record/recorder.h"
#include "engine/run/context/run_context.h"
#include "engine/run/evaluate.h"
#include "engine/run/run_dir/disk.h"
#include "engine/run/train_settings.h"

#include "base/invar_banned.h"

/* ---- ranks ----------------------------------------------------------------------------------- */

/* True if values between the sums of a layer are spread over several ranks. */
static bool divides_values(const invar_layout_sizes *sizes)
{
    return sizes->tensor > 1 || sizes->context > 1;
}

/* True if no name of the comma-separated list can belong to a value inside a layer. */
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

/* Fails if audits, dumps or fine points need complete values that no rank has. */
static invar_status check_probes(const invar_config *c, const invar_rank_role_sizes *sizes)
{
    bool apart = sizes->rollout_ranks > 0;

    if (apart && c->audit > 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "audit needs ranks that train on what they sample, and here some ranks "
                          "only sample: leave out rollout-num-gpus, or replay the run on one rank, "
                          "which has the same bits");
    if (!divides_values(&sizes->train) && !(apart && divides_values(&sizes->rollout)))
        return INVAR_OK;
    if (!names_whole_points(c->debug_dump))
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "debug-dump: here ranks divide layers or rows: name points that begin with "
            "grad., weight., batch., rollout., train., score., ref., teacher., "
            "critic.grad. or critic.weight., or replay the run on one rank, which "
            "has the same bits");
    if (c->debug_determinism > INVAR_PROBE_POINT)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "debug-determinism: finer points than those of \"point\" need whole "
                          "values, and here ranks divide layers or rows: replay the run on one "
                          "rank, which has the same bits");
    return INVAR_OK;
}

/*
 * Fails if the recipe divides the model, and there is only one rank. A replay always runs on one
 * rank, whatever the layout of the recorded run was.
 */
static invar_status check_one_rank(const invar_admission *a, const invar_rank_role_sizes *sizes)
{
    int least = invar_layout_model_ranks(&sizes->train) + sizes->rollout_ranks;

    if (least == 1 || a->replay)
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

static invar_status check_several_ranks(const invar_admission *a,
                                        const invar_rank_role_sizes *sizes)
{
    const invar_config *c = a->config;

    if (invar_config_is_recorded_schedule(c) && !c->rollout_record[0])
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_SCHEDULE,
                                 "= recorded needs a run of one rank, whose clock decides; "
                                 "several obey a record: give rollout-record");
    INVAR_TRY(check_probes(c, sizes));
    if (sizes->rollout_ranks > 0 && c->load_debug_rollout_data[0])
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_NUM_GPUS,
                                 "is 0 where rollouts come from files: leave out one of them");
    return INVAR_OK;
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Checks the other models with the layout of the ranks that train, which alone hold them. */
static invar_status check_other_models(const invar_admission *a, invar_format format,
                                       const invar_layout *layout)
{
    const struct {
        const invar_model_spec *spec;
        const char *which;
    } models[] = {{a->teacher, INVAR_MODEL_SET_IS_TEACHER},
                  {a->reference, INVAR_MODEL_SET_IS_REFERENCE},
                  {a->critic, INVAR_MODEL_SET_IS_CRITIC}};

    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (models[i].spec)
            INVAR_TRY(invar_error_advise(invar_model_check(models[i].spec, format, layout),
                                         INVAR_E_INVALID, models[i].which));
    return INVAR_OK;
}

/* Checks the actor with the layout of the ranks that train, and with that of those that sample. */
static invar_status check_divided_models(const invar_admission *a, const invar_rank_roles *sides)
{
    const invar_format format = a->config->dtype;
    const invar_format sampled = invar_train_settings_rollout_format(a->config);
    const bool apart = sides->first_rollout_rank < a->ranks;

    INVAR_TRY(invar_model_check(a->actor, format, &sides->train));
    INVAR_TRY(check_other_models(a, format, &sides->train));
    return apart || sampled != format
               ? invar_model_check(a->actor, sampled, apart ? &sides->rollout : &sides->train)
               : INVAR_OK;
}

static invar_status check_models(const invar_admission *a)
{
    if (!a->actor)
        return INVAR_OK;
    INVAR_TRY(invar_run_context_check_actor(a->config, a->actor));
    if (a->reference && a->config->ref_update_interval > 0)
        return invar_config_fail(a->config, INVAR_KEY_REF_UPDATE_INTERVAL,
                                 "would copy the actor into a reference of another shape "
                                 "(ref-load)");
    return INVAR_OK;
}

static invar_status check_layout(const invar_admission *a)
{
    static const invar_layout_sizes one = {1, 1, 1, 1, 1, 1, false};
    invar_rank_role_sizes sizes;
    invar_rank_roles sides;

    INVAR_TRY(invar_train_settings_roles(&sizes, a->config));
    if (a->ranks == 0)
        return INVAR_OK;
    INVAR_TRY(a->ranks == 1 ? check_one_rank(a, &sizes) : check_several_ranks(a, &sizes));
    if (a->ranks == 1) // includes a replay of a run of several ranks
        sizes = (invar_rank_role_sizes){.train = one, .rollout = one};
    INVAR_TRY(invar_rank_roles_init_sizes(&sides, &sizes, a->ranks));
    return a->actor ? check_divided_models(a, &sides) : INVAR_OK;
}

/* ---- data ------------------------------------------------------------------------------------ */

static invar_status check_data(const invar_admission *a)
{
    invar_train_settings set;

    if (!a->data_known)
        return INVAR_OK;
    invar_train_settings_read(&set, a->config, a->prompts, -1, false);
    if (set.run_schedule.rollouts == 0)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "num-epoch: all epochs together have fewer prompts than one rollout, %" PRId64
            " (rollout-batch-size); give num-rollout",
            a->config->rollout_batch_size);
    return INVAR_OK;
}

/*
 * A recorded schedule without a record lets the clock choose the batch. Fine points cannot be shown
 * then, but a replay follows the record.
 */
static invar_status check_recorded_schedule(const invar_admission *a)
{
    const invar_config *c = a->config;

    if (!invar_config_is_recorded_schedule(c) || c->rollout_record[0] ||
        c->debug_determinism <= INVAR_PROBE_STEP)
        return INVAR_OK;
    return invar_config_fail(c, INVAR_KEY_DEBUG_DETERMINISM,
                             "shows samples of a batch alone, and the clock does not say which "
                             "these are: give rollout-record, or replay the run");
}

/* Layers of the actor or of its critic, whichever has more; 0 if they are unknown. */
static int64_t layers_of(const invar_admission *a)
{
    int64_t actor = a->actor ? a->actor->layers : 0, critic = a->critic ? a->critic->layers : 0;

    return actor > critic ? actor : critic;
}

invar_status invar_admission_check(const invar_admission *admission)
{
    if (!admission->replay) { // the recipe of a record was checked when it was read
        INVAR_TRY(invar_config_check(admission->config));
        INVAR_TRY(check_recorded_schedule(admission));
        INVAR_TRY(invar_recorder_check_dump(admission->config->debug_dump, layers_of(admission)));
    }
    INVAR_TRY(check_models(admission));
    INVAR_TRY(check_layout(admission));
    INVAR_TRY(check_data(admission));
    return admission->disk && !admission->replay ? invar_disk_check(admission->disk) : INVAR_OK;
}

invar_status invar_admission_check_context(const invar_admission *known, const invar_run_context *s)
{
    invar_admission facts = *known;

    facts.actor = &s->spec;
    facts.reference = s->reference.own_spec ? &s->reference.spec : NULL;
    facts.teacher = s->teacher.own_spec ? &s->teacher.spec : NULL;
    facts.critic = s->critic.own_spec ? &s->critic.spec : NULL;
    facts.prompts = s->data ? invar_dataset_size(s->data) : 0;
    return invar_admission_check(&facts);
}

/* ---- prompts that rules judge ---------------------------------------------------------------- */

/* Number of rollouts of a process that begins with the first one; 0 if it is not known yet. */
static int64_t count_rollouts(const invar_train_settings *set)
{
    const int64_t steps = set->steps_per_rollout;
    const invar_run_progress start = {.rollout = 0};

    return set->run_schedule.rollouts == 0
               ? 0
               : invar_run_schedule_steps(&set->run_schedule, &start, steps) / steps;
}

/* Number of prompts of `rollouts` rollouts, at most `size`. */
static int64_t count_prompts(const invar_config *c, int64_t rollouts, int64_t size)
{
    return rollouts > size / c->rollout_batch_size ? size : rollouts * c->rollout_batch_size;
}

/*
 * Checks the prompts of training. Every rollout computes rewards of at least `prompts` groups that
 * no other rollout has.
 */
static invar_status check_training(const invar_admission_prompts *p,
                                   invar_reward_source_reach reach)
{
    const invar_config *c = p->session->config;
    const invar_train_settings *set = p->settings;
    const int64_t size = invar_dataset_size(p->session->data);
    const bool ordered = !c->data_source_path[0] && !c->rollout_shuffle;
    // more prompts are sampled than a rollout needs
    const bool drops_groups = c->dynamic_sampling_filter != INVAR_GROUP_FILTER_NONE ||
                              c->dynamic_sampling_filter_path[0] ||
                              c->rollout_sample_filter_path[0];

    reach.what = "the data set";
    reach.path = c->prompt_data;
    reach.possible = size;
    reach.certain = count_prompts(c, count_rollouts(set), size);
    if (p->forked || set->sampling.recorded || c->data_source_path[0] ||
        (!ordered && reach.certain < size))
        reach.certain = 0;
    if (ordered && !p->forked && !set->sampling.recorded && !drops_groups)
        reach.possible = count_prompts(c, set->run_schedule.rollouts, size);
    return invar_reward_source_check_data(c, p->session->data, &reach);
}

static invar_status check_evaluation(const invar_admission_prompts *p,
                                     invar_reward_source_reach reach)
{
    const int64_t interval = p->settings->run_schedule.eval_interval;

    if (interval == 0 || interval > p->settings->run_schedule.rollouts ||
        !invar_config_evaluates(p->session->config))
        return INVAR_OK;
    reach.eval = true;
    reach.possible = INT64_MAX;
    reach.certain = !p->forked && interval <= count_rollouts(p->settings) ? INT64_MAX : 0;
    return invar_evaluate_check(p->session, &reach);
}

invar_status invar_admission_check_prompts(const invar_admission_prompts *p)
{
    const invar_reward_source_reach reach = {.on_warning = p->say, .payload = p->payload};
    // rollout files have rewards, or got them by the same rules
    const bool judges = !p->settings->sft && !p->session->config->load_debug_rollout_data[0];

    if (!p->session->tokenizer)
        return INVAR_OK;
    if (p->session->data && judges)
        INVAR_TRY(check_training(p, reach));
    return check_evaluation(p, reach);
}
