/*
 * setup.c - a run's parts, from its recipe: where it writes, what it learns with, who is attached.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* ---- settings -------------------------------------------------------------------------------- */

static float real(const invar_recipe *r, invar_key key)
{
    return (float)invar_recipe_float(r, (int)key);
}

static void read_importance(invar_rl_options *o, const invar_recipe *r)
{
    o->use_tis = invar_recipe_bool(r, INVAR_KEY_USE_TIS);
    o->tis_clip = real(r, INVAR_KEY_TIS_CLIP);
    o->tis_clip_low = real(r, INVAR_KEY_TIS_CLIP_LOW);
    o->tis_icepop = invar_recipe_enum(r, INVAR_KEY_TIS_MODE) == 1;
    o->use_mis = invar_recipe_bool(r, INVAR_KEY_USE_MIS);
    o->mis_level = (invar_mis_level)invar_recipe_enum(r, INVAR_KEY_MIS_LEVEL);
    o->mis_mode = (invar_mis_mode)invar_recipe_enum(r, INVAR_KEY_MIS_MODE);
    o->mis_low = real(r, INVAR_KEY_MIS_LOWER_BOUND);
    o->mis_high = real(r, INVAR_KEY_MIS_UPPER_BOUND);
    o->mis_batch_normalize = invar_recipe_bool(r, INVAR_KEY_MIS_BATCH_NORMALIZE);
    o->mis_rs = invar_recipe_bool(r, INVAR_KEY_USE_RS);
    o->mis_rs_level = (invar_mis_level)invar_recipe_enum(r, INVAR_KEY_RS_LEVEL);
    o->mis_rs_low = real(r, INVAR_KEY_RS_LOWER_BOUND);
    o->mis_rs_high = real(r, INVAR_KEY_RS_UPPER_BOUND);
    o->mis_veto = real(r, INVAR_KEY_RS_VETO_THRESHOLD);
    o->use_opsm = invar_recipe_bool(r, INVAR_KEY_USE_OPSM);
    o->opsm_delta = real(r, INVAR_KEY_OPSM_DELTA);
}

/* The recipe's words stand in the order of the enums. */
static invar_loss_type loss_of(const invar_recipe *r)
{
    static const invar_loss_type types[] = {INVAR_LOSS_POLICY, INVAR_LOSS_SFT, INVAR_LOSS_CUSTOM};

    return types[invar_recipe_enum(r, INVAR_KEY_LOSS_TYPE)];
}

static void read_rl(invar_rl_options *o, const invar_recipe *r, bool teacher)
{
    float high = real(r, INVAR_KEY_EPS_CLIP_HIGH);

    *o = (invar_rl_options){
        .loss = loss_of(r),
        .estimator = (invar_estimator)invar_recipe_enum(r, INVAR_KEY_ADVANTAGE_ESTIMATOR),
        .rewards_normalization = !invar_recipe_bool(r, INVAR_KEY_DISABLE_REWARDS_NORMALIZATION),
        .std_normalization = !invar_recipe_bool(r, INVAR_KEY_DISABLE_GRPO_STD_NORMALIZATION),
        .normalize_advantages = invar_recipe_bool(r, INVAR_KEY_NORMALIZE_ADVANTAGES),
        .gamma = real(r, INVAR_KEY_GAMMA),
        .lambd = real(r, INVAR_KEY_LAMBD),
        .kl_coef = real(r, INVAR_KEY_KL_COEF),
        .kl_type = (invar_kl)invar_recipe_enum(r, INVAR_KEY_KL_LOSS_TYPE),
        .use_kl_loss = invar_recipe_bool(r, INVAR_KEY_USE_KL_LOSS),
        .kl_loss_coef = real(r, INVAR_KEY_KL_LOSS_COEF),
        .unbiased_kl = invar_recipe_bool(r, INVAR_KEY_USE_UNBIASED_KL),
        .eps_clip = real(r, INVAR_KEY_EPS_CLIP),
        .eps_clip_high = high < 0.0f ? real(r, INVAR_KEY_EPS_CLIP) : high,
        .eps_clip_c = real(r, INVAR_KEY_EPS_CLIP_C),
        .value_clip = real(r, INVAR_KEY_VALUE_CLIP),
        .entropy_coef = real(r, INVAR_KEY_ENTROPY_COEF),
        .per_token_loss = invar_recipe_bool(r, INVAR_KEY_CALCULATE_PER_TOKEN_LOSS),
        .constant_divisor = real(r, INVAR_KEY_LOSS_DIVISOR),
        .opd_kl_coef = teacher ? real(r, INVAR_KEY_OPD_KL_COEF) : 0.0f};
    read_importance(o, r);
}

static void read_schedules(invar_loop_settings *set, const invar_recipe *r)
{
    double critic_lr = invar_recipe_float(r, INVAR_KEY_CRITIC_LR);

    set->schedule =
        (invar_schedule){.style = (invar_decay)invar_recipe_enum(r, INVAR_KEY_LR_DECAY_STYLE),
                         .lr = invar_recipe_float(r, INVAR_KEY_LR),
                         .min_lr = invar_recipe_float(r, INVAR_KEY_MIN_LR),
                         .warmup_init = invar_recipe_float(r, INVAR_KEY_LR_WARMUP_INIT),
                         .warmup_steps = invar_recipe_int(r, INVAR_KEY_LR_WARMUP_ITERS),
                         .decay_steps = invar_recipe_int(r, INVAR_KEY_LR_DECAY_ITERS)};
    set->critic_schedule = set->schedule;
    set->critic_schedule.warmup_steps = invar_recipe_int(r, INVAR_KEY_CRITIC_LR_WARMUP_ITERS);
    if (critic_lr > 0.0)
        set->critic_schedule.lr = critic_lr;
    set->adamw = (invar_adamw_options){.beta1 = real(r, INVAR_KEY_ADAM_BETA1),
                                       .beta2 = real(r, INVAR_KEY_ADAM_BETA2),
                                       .eps = real(r, INVAR_KEY_ADAM_EPS),
                                       .weight_decay = real(r, INVAR_KEY_WEIGHT_DECAY),
                                       .clip_grad = real(r, INVAR_KEY_CLIP_GRAD)};
}

/* num-rollout, or what num-epoch comes to; the last rest of the data is left out. */
static int64_t rollouts_of(const invar_loop *loop)
{
    int64_t rollouts = invar_recipe_int(loop->recipe, INVAR_KEY_NUM_ROLLOUT);
    int64_t epochs = invar_recipe_int(loop->recipe, INVAR_KEY_NUM_EPOCH);

    if (rollouts || !loop->session.data)
        return rollouts;
    return epochs * invar_dataset_size(loop->session.data) / loop->set.prompts;
}

static void read_settings(invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;
    invar_loop_settings *set = &loop->set;

    read_rl(&set->rl, r, loop->session.teacher != NULL);
    read_schedules(set, r);
    set->prompts = invar_recipe_int(r, INVAR_KEY_ROLLOUT_BATCH_SIZE);
    set->per_prompt = invar_recipe_int(r, INVAR_KEY_N_SAMPLES_PER_PROMPT);
    set->global_batch = invar_config_global_batch_size(r);
    set->steps_per_rollout = invar_config_steps_per_rollout(r);
    set->rollouts = rollouts_of(loop);
    set->sft = set->rl.loss == INVAR_LOSS_SFT;
    set->rollout_only = invar_recipe_bool(r, INVAR_KEY_DEBUG_ROLLOUT_ONLY);
    set->replay_routing = invar_recipe_bool(r, INVAR_KEY_USE_ROLLOUT_ROUTING_REPLAY);
    set->check_logprobs = invar_recipe_bool(r, INVAR_KEY_CHECK_LOGPROBS);
    set->rollout_logprobs = invar_recipe_bool(r, INVAR_KEY_USE_ROLLOUT_LOGPROBS);
    set->stop_on_mismatch = invar_recipe_enum(r, INVAR_KEY_ON_MISMATCH) == 0;
}

/* How much of the moments visits a device with memory of its own; 0: they are there for good. */
static size_t piece_of_moments(const invar_loop *loop)
{
    bool offload = invar_recipe_bool(loop->recipe, INVAR_KEY_OPTIMIZER_CPU_OFFLOAD);

    return offload && invar_device_far(&loop->session.dev) ? INVAR_OPTIMIZER_PIECE : 0;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static invar_status make_trainer(invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;
    const invar_session *s = &loop->session;
    bool dynamic = invar_recipe_bool(r, INVAR_KEY_USE_DYNAMIC_BATCH_SIZE);
    int64_t unit = invar_recipe_int(r, INVAR_KEY_SAMPLES_PER_UNIT);
    int64_t rows = invar_recipe_int(r, INVAR_KEY_LOG_PROBS_CHUNK_SIZE);
    invar_trainer_options o = {
        .plan = {.unit = unit              ? unit
                         : s->spec.experts ? loop->set.per_prompt
                                           : 1,
                 .micro_batch = dynamic ? 0 : invar_recipe_int(r, INVAR_KEY_MICRO_BATCH_SIZE),
                 .max_tokens = dynamic ? invar_recipe_int(r, INVAR_KEY_MAX_TOKENS_PER_GPU) : 0},
        .recompute = invar_recipe_enum(r, INVAR_KEY_RECOMPUTE_GRANULARITY) != 0,
        .head_rows = rows ? rows : invar_trainer_head_rows(&s->dev, &s->spec),
        .temperature = (float)invar_recipe_float(r, INVAR_KEY_ROLLOUT_TEMPERATURE),
        .replay = loop->set.replay_routing ? s->actor : NULL};

    INVAR_TRY(invar_trainer_new(&loop->trainer, &s->dev, &o));
    if (loop->set.rollout_only) // it only scores
        return INVAR_OK;
    INVAR_TRY(invar_grads_new(&loop->grads, s->actor));
    INVAR_TRY(invar_optimizer_new(&loop->optimizer, s->actor, piece_of_moments(loop)));
    if (!s->critic)
        return INVAR_OK;
    INVAR_TRY(invar_grads_new(&loop->critic_grads, s->critic));
    return invar_optimizer_new(&loop->critic_optimizer, s->critic, piece_of_moments(loop));
}

static invar_status attach(invar_loop *loop, int place, invar_key key, uint32_t kinds)
{
    invar_recipe_entry e;
    invar_plugin_options o = {.kinds = kinds,
                              .timeout =
                                  (double)invar_recipe_int(loop->recipe, INVAR_KEY_PLUGIN_TIMEOUT),
                              .log_fd = 2};

    invar_recipe_entry_get(&e, loop->recipe, (int)key);
    if (!e.text || !e.text[0])
        return INVAR_OK;
    o.name = e.key->name;
    o.spec = loop->options->replay ? NULL : e.text;
    return invar_plugin_open(&loop->plugins[place], &o);
}

static invar_status attach_all(invar_loop *loop)
{
    static const invar_key hooks[3] = {INVAR_KEY_CUSTOM_INIT_PATH,
                                       INVAR_KEY_CUSTOM_BEFORE_LOG_PROB_HOOK_PATH,
                                       INVAR_KEY_CUSTOM_BEFORE_TRAIN_STEP_HOOK_PATH};

    INVAR_TRY(
        invar_judge_attach(&loop->plugins[INVAR_LOOP_REWARD], loop->recipe, loop->options->replay));
    INVAR_TRY(attach(loop, INVAR_LOOP_FILTER, INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH,
                     INVAR_PLUGIN_KIND_FILTER));
    INVAR_TRY(
        attach(loop, INVAR_LOOP_LOSS, INVAR_KEY_CUSTOM_LOSS_FUNCTION_PATH, INVAR_PLUGIN_KIND_LOSS));
    for (int i = 0; i < 3; i++)
        INVAR_TRY(attach(loop, INVAR_LOOP_HOOKS + i, hooks[i], INVAR_PLUGIN_KIND_HOOK));
    return INVAR_OK;
}

static invar_status make_probe(invar_loop *loop)
{
    invar_probe_options o = {.level = invar_recipe_enum(loop->recipe, INVAR_KEY_DEBUG_DETERMINISM),
                             .pool = loop->session.pool,
                             .dev = &loop->session.dev};

    return invar_probe_new(&loop->probe, &o);
}

static invar_status make_rollout(invar_loop *loop)
{
    invar_session *s = &loop->session;
    invar_rollout_limits limits = invar_session_limits(s);
    invar_sampling sampling;
    const char *loads = invar_recipe_string(loop->recipe, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA);

    if (!loop->evaluates && (loop->set.sft || loads[0]))
        return INVAR_OK;
    INVAR_TRY(invar_rollout_new(&loop->rollout, s->actor, s->tokenizer, &s->dev, &limits));
    sampling = invar_session_sampling(s);
    return invar_rollout_check(loop->rollout, &sampling);
}

static void tell_dropped(const invar_loop *loop)
{
    const invar_dataset *data = loop->session.data;
    char line[160];

    if (!data || !invar_dataset_dropped(data) || loop->options->replay)
        return;
    (void)snprintf(line, sizeof line,
                   "prompt-data: %" PRId64 " of %" PRId64
                   " prompts are too long and are left out (rollout-max-prompt-len)",
                   invar_dataset_dropped(data),
                   invar_dataset_dropped(data) + invar_dataset_size(data));
    invar_loop_say(loop, line);
}

static void tell_left_out(const invar_loop *loop)
{
    char line[INVAR_HF_WARNING_SIZE];

    invar_hf_files_warning(line, &loop->hf_files);
    if (line[0] && !loop->options->replay)
        invar_loop_say(loop, line);
}

static invar_status open_parts(invar_loop *loop)
{
    const char *hf = invar_recipe_string(loop->recipe, INVAR_KEY_HF_CHECKPOINT);
    const char *trace = invar_recipe_string(loop->recipe, INVAR_KEY_TRACE);
    const char *rollouts = invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA);
    invar_plugin_event started = {.hook = INVAR_PLUGIN_AFTER_INIT, .step = -1, .rollout = -1};

    INVAR_TRY(
        invar_session_open(&loop->session, loop->recipe, INVAR_SESSION_DATA | INVAR_SESSION_LEARN));
    if (hf[0]) // an export has the template that the model was trained with
        INVAR_TRY(invar_hf_files_read(
            &loop->hf_files, hf, invar_recipe_string(loop->recipe, INVAR_KEY_CHAT_TEMPLATE_PATH)));
    read_settings(loop);
    tell_dropped(loop);
    tell_left_out(loop);
    if (loop->set.rollouts == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "num-epoch: so many times through the data is less than one rollout of "
                          "%" PRId64 " prompts; give num-rollout",
                          loop->set.prompts);
    INVAR_TRY(invar_loop_identify(loop));
    if (loop->options->identified)
        INVAR_TRY(loop->options->identified(loop->options->payload, &loop->identity));
    INVAR_TRY(make_trainer(loop));
    INVAR_TRY(make_rollout(loop));
    INVAR_TRY(invar_loop_attach_audit(loop));
    INVAR_TRY(make_probe(loop));
    // a wrong plug-in or folder is found before the ledger has a run with it
    INVAR_TRY(attach_all(loop));
    if (trace[0])
        INVAR_TRY(invar_trace_check_path(trace));
    if (rollouts[0] && !loop->options->replay)
        INVAR_TRY(invar_rollout_file_check(rollouts, loop->set.rollouts));
    INVAR_TRY(invar_loop_find_checkpoint(loop));
    // not sooner: a run that cannot begin, for want of a GPU or of its weights, leaves no folder
    INVAR_TRY(invar_loop_settle(loop));
    INVAR_TRY(invar_loop_resume(loop));
    if (loop->summary->finished)
        return INVAR_OK;
    INVAR_TRY(invar_trace_open(&loop->trace, trace[0] ? trace : NULL));
    loop->custom = (invar_loss_custom){invar_plugin_loss, loop->plugins[INVAR_LOOP_LOSS]};
    loop->set.rl.custom = &loop->custom;
    INVAR_TRY(
        invar_judge_read(&loop->judge, loop->recipe, loop->plugins[INVAR_LOOP_REWARD], false));
    started.run = loop->at.name;
    started.folder = loop->at.run;
    if (loop->plugins[INVAR_LOOP_HOOKS])
        return invar_plugin_hook(loop->plugins[INVAR_LOOP_HOOKS], &started);
    return INVAR_OK;
}

void invar_loop_say(const invar_loop *loop, const char *line)
{
    if (loop->options->say)
        loop->options->say(loop->options->payload, line);
}

invar_status invar_loop_open(invar_loop *loop, const invar_recipe *recipe,
                             const invar_train_options *options, invar_train_summary *summary)
{
    *loop = (invar_loop){.recipe = recipe, .options = options, .recorded = -1, .summary = summary};
    if (!options->replay) // the recorded run has its own
        INVAR_TRY(invar_facts_read(&loop->facts));
    INVAR_TRY(invar_folders_find(&loop->at, recipe, options->recipe_path));
    return open_parts(loop);
}

void invar_loop_close(invar_loop *loop)
{
    for (int i = 0; i < INVAR_LOOP_PLUGINS; i++)
        invar_plugin_close(loop->plugins[i]);
    for (int i = 0; i < INVAR_LOOP_HOOKS; i++)
        invar_plugin_stored_release(&loop->stored[i]);
    invar_rl_samples_reset(&loop->batch);
    invar_rollout_data_release(&loop->loaded);
    invar_free(loop->files);
    invar_flat_release(&loop->flat);
    invar_trace_close(loop->trace);
    invar_probe_free(loop->probe);
    invar_rollout_free(loop->rollout);
    invar_trainer_free(loop->trainer);
    invar_audit_free(loop->audit);
    invar_checkpoint_close(loop->from);
    invar_checkpoint_writer_free(loop->writer);
    invar_grads_free(loop->grads);
    invar_optimizer_free(loop->optimizer);
    invar_grads_free(loop->critic_grads);
    invar_optimizer_free(loop->critic_optimizer);
    invar_ledger_close(loop->ledger);
    invar_checkpoint_claim_release(&loop->claim);
    invar_folder_release(&loop->home);
    invar_facts_release(&loop->facts);
    invar_hf_files_release(&loop->hf_files);
    invar_session_close(&loop->session);
}
