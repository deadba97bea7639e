/*
 * setup.c - a run's parts, from its recipe: where it writes, what it learns with, who is attached.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/config/check.h"
#include "engine/program/near.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* Of the models, a rank that only samples has the actor's weights. */
static unsigned wants(const invar_loop *loop)
{
    return INVAR_SESSION_DATA | (loop->sides.samples ? INVAR_SESSION_SAMPLE : INVAR_SESSION_LEARN);
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* What all ranks are refused for alike is no fault of one of them: each tells it by itself. */
static invar_status find_together(invar_loop *loop, invar_status status)
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

/* ---- memory ---------------------------------------------------------------------------------- */

/* Ranks that this one shares its process and its host with. */
static invar_session_crowd crowd_of(const invar_loop *loop)
{
    return (invar_session_crowd){loop->options->threads_for > 1 ? loop->options->threads_for : 1,
                                 invar_agree_here(loop->world), invar_agree_place(loop->world),
                                 loop->ranks};
}

/* How many ranks have the same memory as this one. */
static invar_status count_sharers(int *out, const invar_loop *loop)
{
    const invar_device *dev = &loop->session.dev;
    invar_agree_odd found;
    invar_digest memory;

    *out = crowd_of(loop).host;
    if (!dev->backend->memory.identify)
        return INVAR_OK;
    dev->backend->memory.identify(dev, &memory);
    INVAR_TRY(invar_agree_compare(&found, loop->world, "memory", &memory));
    *out = found.alike;
    return INVAR_OK;
}

/* What each rank may take, the same for all that do the same, measured by each before any of them
   takes it. */
static invar_status find_room(size_t *out, const invar_loop *loop)
{
    const invar_device *dev = &loop->session.dev;
    size_t own = invar_memory_available(dev);
    int64_t least;
    int sharers;

    INVAR_TRY(count_sharers(&sharers, loop));
    own /= (size_t)sharers;
    INVAR_TRY(invar_agree_least(&least, loop->ranks, "memory",
                                own > INT64_MAX ? INT64_MAX : (int64_t)own));
    *out = loop->ranks ? (size_t)least : own;
    return INVAR_OK;
}

/* Ranks that divide layers take the same rows at a time: as many as all of them have room for. */
static invar_status agree_choice(invar_budget_choice *choice, const invar_layout *ranks)
{
    int64_t *const chosen[] = {&choice->head_rows, &choice->max_tokens, &choice->pages,
                               &choice->concurrency};

    if (!ranks || ranks->data.size == invar_agree_size(ranks))
        return INVAR_OK;
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        INVAR_TRY(invar_agree_least(chosen[i], ranks, "the plan of memory", *chosen[i]));
    return INVAR_OK;
}

/* Ranks that only sample, and those that leave it to them, ask for less. */
static void take_side(invar_budget_ask *ask, const invar_loop *loop)
{
    if (loop->sides.first == 0)
        return;
    ask->sides = &loop->sides;
    if (loop->sides.samples)
        invar_memory_sample_alone(ask);
    else {
        memset(ask->rollouts, 0, sizeof ask->rollouts);
        ask->checks = false;
    }
}

/* Before any weights: what cannot fit is refused, and what is open is chosen. */
static invar_status plan_memory(invar_budget *out, invar_loop *loop)
{
    invar_budget_ask *ask = &loop->ask;
    size_t room;

    INVAR_TRY(find_room(&room, loop));
    *ask = invar_memory_ask(&loop->session, &loop->set, &loop->identity.data);
    ask->layout = loop->ranks;
    take_side(ask, loop);
    INVAR_TRY(find_together(loop, invar_budget_make(out, ask, room)));
    INVAR_TRY(invar_budget_verdict(out, ask));
    INVAR_TRY(agree_choice(&out->choice, loop->ranks));
    ask->head_rows = out->choice.head_rows;
    ask->plan.max_tokens = out->choice.max_tokens;
    ask->limits.pages = out->choice.pages;
    ask->limits.concurrency = out->choice.concurrency;
    return INVAR_OK;
}

/* Rollout and trainer have all their memory afterwards. */
static invar_status settle_memory(invar_loop *loop)
{
    const invar_session *s = &loop->session;
    invar_budget_parts parts = {.rollout = loop->rollout,
                                .trainer = loop->trainer,
                                .checker = loop->checker,
                                .sampler = invar_session_sampler(s),
                                .actor = s->actor,
                                .critic = s->critic,
                                .reference = s->ref_apart ? s->reference : NULL,
                                .teacher = s->teacher_apart ? s->teacher : NULL,
                                .actor_grads = loop->actor.grads,
                                .critic_grads = loop->critic.grads};

    return invar_budget_block_open(&loop->block, &parts, &loop->ask);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static invar_trainer_options trainer_options(const invar_loop *loop, const invar_model *model)
{
    const invar_budget_ask *ask = &loop->ask;

    return (invar_trainer_options){
        .plan = ask->plan,
        .recompute = ask->recompute,
        .head_rows = ask->head_rows,
        .temperature = (float)invar_recipe_float(loop->recipe, INVAR_KEY_ROLLOUT_TEMPERATURE),
        .replay = ask->replay ? model : NULL};
}

static invar_status make_trainer(invar_loop *loop)
{
    invar_trainer_options o = trainer_options(loop, loop->session.actor);

    o.scoring = invar_budget_block_dev(&loop->block, INVAR_BUDGET_SCORING);
    o.layout = loop->ranks;
    o.world = loop->world;
    return invar_trainer_new(&loop->trainer,
                             invar_budget_block_dev(&loop->block, INVAR_BUDGET_LEARNING), &o);
}

/* Of what this rank draws beside training: it scores that by itself. */
static invar_status make_checker(invar_loop *loop)
{
    const invar_trainer_options o = trainer_options(loop, invar_session_sampler(&loop->session));

    if (!loop->ask.checks)
        return INVAR_OK;
    return invar_trainer_new(&loop->checker,
                             invar_budget_block_dev(&loop->block, INVAR_BUDGET_CHECKING), &o);
}

/* Without training the actor is only hashed. */
static invar_status make_learners(invar_loop *loop)
{
    const invar_session *s = &loop->session;
    bool learns = !loop->set.rollout_only;
    invar_learner_options o = {.dev = &s->dev,
                               .prefix = "",
                               .schedule = loop->set.schedule,
                               .adamw = loop->set.adamw,
                               .piece = loop->ask.piece};

    INVAR_TRY(invar_learner_open(&loop->actor, s->actor, learns, &o));
    o.prefix = "critic.";
    o.schedule = loop->set.critic_schedule;
    return s->critic && learns ? invar_learner_open(&loop->critic, s->critic, true, &o) : INVAR_OK;
}

static invar_status open_recorder(invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;
    invar_recorder_options o = {
        .level = INVAR_RECIPE_ENUM(invar_probe_level, r, INVAR_KEY_DEBUG_DETERMINISM),
        .stats = invar_recipe_bool(r, INVAR_KEY_DEBUG_STATS),
        .dump = invar_recipe_string(r, INVAR_KEY_DEBUG_DUMP),
        .dump_dir = invar_recipe_string(r, INVAR_KEY_DEBUG_DUMP_DIR),
        .pool = loop->session.pool,
        .dev = &loop->session.dev,
        .sampler = invar_session_sampler_dev(&loop->session),
        .layout = loop->sides.samples ? loop->world : loop->ranks,
        .say = loop->options->say,
        .payload = loop->options->payload};

    return invar_recorder_open(&loop->recorder, &o);
}

/* Points of the rollout are wanted, and its tokens are given. */
static bool follows(const invar_loop *loop)
{
    return loop->recorder.options.level > INVAR_PROBE_STEP && loop->identity.saved.own &&
           !loop->set.sft && !invar_recipe_bool(loop->recipe, INVAR_KEY_DEBUG_TRAIN_ONLY) &&
           invar_recipe_string(loop->recipe, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA)[0];
}

static invar_status make_rollout(invar_loop *loop)
{
    invar_session *s = &loop->session;
    invar_sampling sampling;
    const char *loads = invar_recipe_string(loop->recipe, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA);

    if (loop->sides.first > 0 && !loop->sides.samples)
        return INVAR_OK;
    if (!loop->identity.evaluates && !follows(loop) && (loop->set.sft || loads[0]))
        return INVAR_OK;
    loop->ask.limits.speculation.model = s->draft; // which the plan had not loaded
    INVAR_TRY(invar_rollout_new(&loop->rollout, invar_session_sampler(s), s->tokenizer,
                                invar_budget_block_dev(&loop->block, INVAR_BUDGET_SAMPLING),
                                &loop->ask.limits));
    sampling = invar_session_sampling(s);
    return invar_rollout_check(loop->rollout, &sampling);
}

static invar_status tick(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const invar_loop *loop = payload;
    if (loop->options->progress)
        loop->options->progress(
            loop->options->payload,
            &(invar_train_progress){.rollout = loop->place.rollout,
                                    .rollouts = loop->set.course.rollouts,
                                    .step = loop->place.step,
                                    .phase = "rollout",
                                    .samples_done = samples_done,
                                    .samples = loop->rollout ? loop->source.active : 0,
                                    .tokens_done = tokens_done});
    return INVAR_OK;
}

/* Who only samples goes on with rollouts ahead while others train, unless these would first have
   to score what is drawn, with the weights that training changes. A thread has a copy of them. */
static bool overlaps(const invar_loop *loop)
{
    const invar_settings *set = &loop->set;

    return set->overlap || (loop->sides.first > 0 && set->lag.rollouts > 0 &&
                            (!set->checks_flight || set->checks_ahead));
}

/* An event of the step that learns from the rollout. */
static invar_status tell_agents(void *payload, const char *kind, const char *text)
{
    invar_loop *loop = payload;

    return invar_recorder_event(&loop->recorder, loop->place.step, "warning", kind, text);
}

static invar_door_options door_of(invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;
    const invar_session *s = &loop->session;
    invar_sampling sampling = invar_session_sampling(s);
    int64_t context = sampling.max_context ? sampling.max_context : s->spec.max_positions;

    return (invar_door_options){
        .command = invar_recipe_string(r, INVAR_KEY_CUSTOM_AGENT_PATH),
        .seconds = (double)invar_recipe_int(r, INVAR_KEY_PLUGIN_TIMEOUT),
        .programs = invar_recipe_int(r, INVAR_KEY_AGENT_CONCURRENCY),
        .calls = invar_recipe_int(r, INVAR_KEY_AGENT_MAX_CALLS),
        .branches = invar_recipe_int(r, INVAR_KEY_AGENT_MAX_BRANCHES),
        .tolerant = INVAR_RECIPE_ENUM(invar_agent_failure, r, INVAR_KEY_AGENT_FAILURE) ==
                    INVAR_AGENT_FAILURE_ZERO,
        .rollout = loop->rollout,
        .sampling = sampling,
        .chat = {.tokenizer = s->tokenizer,
                 .hf_dir = invar_recipe_string(r, INVAR_KEY_HF_CHECKPOINT),
                 .template_path = invar_recipe_string(r, INVAR_KEY_CHAT_TEMPLATE_PATH),
                 .template_kwargs = invar_recipe_string(r, INVAR_KEY_APPLY_CHAT_TEMPLATE_KWARGS),
                 .vocab = s->spec.vocab,
                 .context = context},
        .facts = {.model = "invar",
                  .base = s->base_weights,
                  .adapted = s->spec.lora.rank > 0,
                  .numerics = invar_numerics_name(s->dev.numerics),
                  .format = invar_format_name(s->rollout_format),
                  .context = context},
        .tick = tick,
        .payload = loop};
}

/* A replay has the record, and no folder to write to. */
static invar_status make_agents(invar_loop *loop, const invar_judge *judge)
{
    bool replay = loop->options->replay;
    bool recorded = !replay && invar_recipe_string(loop->recipe, INVAR_KEY_AGENT_RECORD)[0];
    const invar_agents_options o = {.plugin = loop->plugins.of[INVAR_PLUGINS_AGENTS],
                                    .door = door_of(loop),
                                    .recorded = recorded,
                                    .folder = replay || recorded ? NULL : loop->home.at.run,
                                    .run = loop->identity.digest,
                                    .key = judge->key,
                                    .tell = tell_agents,
                                    .payload = loop};

    return o.plugin ? invar_agents_new(&loop->agents, &o) : INVAR_OK;
}

static invar_status open_source(invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;
    const invar_session *s = &loop->session;
    const invar_settings *set = &loop->set;
    // which questions a plug-in is asked, and when, must not depend on probes or checkpoints
    const bool led =
        set->lag.rollouts > 0 && invar_recipe_string(r, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH)[0];
    invar_source_options o = {
        .layout = loop->world,
        .data = s->data,
        .tokenizer = s->tokenizer,
        .spec = &s->spec,
        .rollout = loop->rollout,
        .sampling = invar_session_sampling(s),
        .groups = {invar_recipe_string(r, INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH)[0],
                   loop->plugins.of[INVAR_PLUGINS_GROUPS]},
        .samples = {invar_recipe_string(r, INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH)[0],
                    loop->plugins.of[INVAR_PLUGINS_FILTER]},
        .buffer = {invar_recipe_string(r, INVAR_KEY_BUFFER_FILTER_PATH)[0],
                   loop->plugins.of[INVAR_PLUGINS_BUFFER]},
        .chooser = {invar_recipe_string(r, INVAR_KEY_DATA_SOURCE_PATH)[0],
                    loop->plugins.of[INVAR_PLUGINS_PROMPTS]},
        .spread = INVAR_RECIPE_ENUM(invar_group_filter, r, INVAR_KEY_DYNAMIC_SAMPLING_FILTER) ==
                  INVAR_GROUP_FILTER_NONZERO_STD,
        .shuffle = invar_recipe_bool(r, INVAR_KEY_ROLLOUT_SHUFFLE),
        .answers = set->sft,
        .prompts = set->prompts,
        .per_prompt = set->per_prompt,
        .round = set->round,
        .surplus = set->surplus,
        .lag = set->lag,
        .apart = loop->recorder.options.level > INVAR_PROBE_STEP || overlaps(loop) || led,
        .overlaps = overlaps(loop),
        .thread = loop->set.overlap,
        .look = {loop->set.overlap || loop->checker ? invar_loop_look_ahead : NULL, loop},
        .end = loop->home.at.save[0] || led ? 0 : set->course.rollouts,
        .tick = tick,
        .payload = loop,
        .load = invar_recipe_string(r, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA),
        .saved = &loop->identity.saved,
        .run = loop->identity.digest,
        .replay = loop->options->replay,
        .follow = follows(loop),
        .needs_logp = set->rl.use_tis || set->rl.use_mis || set->rollout_logprobs};

    o.turns = invar_turns_read(r, loop->plugins.of[INVAR_PLUGINS_TURNS], &s->spec, s->tokenizer);
    INVAR_TRY(invar_judge_read(&o.judge, r, loop->plugins.of[INVAR_PLUGINS_REWARD], false));
    INVAR_TRY(make_agents(loop, &o.judge));
    o.agents = loop->agents;
    o.judged = invar_estimator_facts_of(set->rl.estimator)->judged;
    invar_source_open(&loop->source, &o);
    return INVAR_OK;
}

static void tell_dropped(const invar_loop *loop)
{
    const invar_dataset *data = loop->session.data;

    if (!data || !invar_dataset_dropped(data) || loop->options->replay)
        return;
    invar_recorder_say(&loop->recorder,
                       "prompt-data: %" PRId64 " of %" PRId64
                       " prompts are too long and are left out (rollout-max-prompt-len)",
                       invar_dataset_dropped(data),
                       invar_dataset_dropped(data) + invar_dataset_size(data));
}

/* Its folder is otherwise where the actor begins. */
static void tell_reference(const invar_loop *loop)
{
    const invar_session *s = &loop->session;

    if (s->ref_apart && !loop->options->replay)
        invar_recorder_say(&loop->recorder,
                           "ref-load: another model than the actor; it is the reference, and the "
                           "actor begins with the weights of %s",
                           invar_config_filled(s->recipe, INVAR_KEY_HF_CHECKPOINT) ? "hf-checkpoint"
                                                                                   : "its seed");
}

static void tell_left_out(const invar_loop *loop)
{
    char line[INVAR_HF_WARNING_SIZE];

    invar_hf_files_warning(line, &loop->store.hf_files);
    if (line[0] && !loop->options->replay)
        invar_recorder_say(&loop->recorder, "%s", line);
}

/* A rank that only samples has none yet, and says of them what the others do. */
static invar_status share_hashes(invar_loop *loop)
{
    invar_session *s = &loop->session;
    invar_digest hashes[] = {s->weights,     s->teacher_weights, s->critic_weights,
                             s->ref_weights, s->base_weights,    s->filled};

    if (loop->sides.first == 0)
        return INVAR_OK;
    INVAR_TRY(invar_agree_share(loop->world, "identity", 0, hashes, sizeof hashes));
    if (!loop->sides.samples)
        return INVAR_OK;
    s->weights = hashes[0];
    s->teacher_weights = hashes[1];
    s->critic_weights = hashes[2];
    s->ref_weights = hashes[3];
    if (s->rollout_format != s->format)
        s->base_weights = hashes[4];
    s->filled = hashes[5];
    return INVAR_OK;
}

/* What came into the models of a rank. */
enum { FILLED = 4 };
typedef struct filling {
    uint64_t of[FILLED][2];
} filling;

static filling filling_of(const invar_session *s)
{
    const invar_model *models[FILLED] = {s->actor, s->teacher, s->critic,
                                         s->ref_apart ? s->reference : NULL};
    filling out = {{{0}}};

    for (int i = 0; i < FILLED; i++)
        for (int k = 0; k < 2; k++)
            out.of[i][k] = models[i] ? models[i]->filled[k] : 0;
    return out;
}

static void add_filling(filling *to, const filling *more)
{
    for (int i = 0; i < FILLED; i++)
        for (int k = 0; k < 2; k++)
            to->of[i][k] += more->of[i][k];
}

/*
 * Hashes of weights are made of the rows that ranks own, so all have the same. What each has read
 * tells them apart: the sum of what the ranks have that hold one copy of the models together.
 */
static invar_status sum_up_fillings(invar_loop *loop)
{
    const invar_layout *ranks = loop->ranks;
    filling own = filling_of(&loop->session), sum = {{{0}}}, *all = NULL;
    invar_status status;

    if (!invar_layout_divides(ranks) || loop->sides.samples)
        return INVAR_OK;
    INVAR_TRY(invar_alloc((void **)&all, (size_t)invar_agree_size(ranks), sizeof *all,
                          "what ranks have read"));
    status = invar_agree_gather(ranks, "identity", &own, sizeof own, all);
    for (int r = 0; status == INVAR_OK && r < invar_agree_size(ranks); r++)
        if (invar_layout_place_of(ranks, r).data == ranks->data.rank)
            add_filling(&sum, &all[r]);
    invar_hash_bytes(&loop->session.filled, &sum, sizeof sum);
    invar_free(all);
    return status;
}

/* Weights are part of what ranks compare. */
static invar_status make_models(invar_loop *loop)
{
    INVAR_TRY(invar_session_make_models(&loop->session, wants(loop)));
    INVAR_TRY(sum_up_fillings(loop));
    INVAR_TRY(share_hashes(loop));
    INVAR_TRY(invar_loop_identify(loop));
    return invar_loop_compare_files(loop);
}

static invar_status make_sync(invar_loop *loop)
{
    invar_session *s = &loop->session;
    const invar_sync_options o = {.sides = &loop->sides,
                                  .model = s->rollout_actor ? s->rollout_actor : s->actor,
                                  .dev = &loop->session.dev,
                                  .bucket = loop->ask.bucket};

    loop->synced = -1;
    return loop->sides.first > 0 ? invar_sync_new(&loop->sync, &o) : INVAR_OK;
}

/* All that is large. */
static invar_status take_memory(invar_loop *loop, const invar_budget *plan)
{
    INVAR_TRY(make_models(loop));
    if (loop->options->identified)
        INVAR_TRY(loop->options->identified(loop->options->payload, &loop->identity.digest));
    INVAR_TRY(invar_budget_block_take(&loop->block, &loop->session.dev,
                                      invar_session_sampler_dev(&loop->session), plan));
    if (!loop->sides.samples) {
        INVAR_TRY(make_trainer(loop));
        INVAR_TRY(make_learners(loop));
    }
    INVAR_TRY(make_rollout(loop));
    INVAR_TRY(make_checker(loop));
    INVAR_TRY(settle_memory(loop));
    return make_sync(loop);
}

/* Of several ranks each shows what it does; `path` is that of the one that writes, else "". */
static invar_status open_trace(invar_loop *loop, const char *path)
{
    bool slices = invar_recipe_string(loop->recipe, INVAR_KEY_TRACE)[0] != '\0';
    invar_work *work;

    INVAR_TRY(invar_trace_open(&loop->recorder.trace, path));
    if (!loop->world)
        return INVAR_OK;
    INVAR_TRY(invar_work_new(&work, loop->world, slices));
    invar_trace_watch(loop->recorder.trace, work);
    return INVAR_OK;
}

/* The other ranks wait as long as plug-ins may take. */
static void wait_for_reply(void *payload)
{
    const invar_loop *loop = payload;

    invar_layout_beat(loop->world);
}

static invar_status open_plugins(invar_loop *loop)
{
    INVAR_TRY(invar_plugins_open(&loop->plugins, loop->recipe, loop->session.tokenizer,
                                 loop->options->replay));
    for (int i = 0; i < INVAR_PLUGINS; i++)
        invar_plugin_watch(loop->plugins.of[i], wait_for_reply, loop);
    return INVAR_OK;
}

/* All that the one rank has that writes. */
static invar_status open_outputs(invar_loop *loop)
{
    const char *trace = invar_recipe_string(loop->recipe, INVAR_KEY_TRACE);
    const char *rollouts = invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA);
    invar_plugin_event started = {.hook = INVAR_PLUGIN_AFTER_INIT, .step = -1, .rollout = -1};

    // a wrong plug-in or folder is found before the ledger has a run with it
    INVAR_TRY(open_plugins(loop));
    INVAR_TRY(open_source(loop));
    if (trace[0])
        INVAR_TRY(invar_trace_check_path(trace));
    if (rollouts[0] && !loop->options->replay)
        INVAR_TRY(invar_rollout_file_check(rollouts, loop->set.course.rollouts));
    INVAR_TRY(invar_loop_find_checkpoint(loop));
    // not sooner: a run that cannot begin, for want of a GPU or of its weights, leaves no folder
    INVAR_TRY(invar_loop_settle(loop));
    INVAR_TRY(invar_loop_resume(loop));
    if (loop->summary->finished)
        return INVAR_OK;
    INVAR_TRY(open_trace(loop, trace));
    started.run = loop->home.at.name;
    started.folder = loop->home.at.run;
    return invar_plugins_hook(&loop->plugins, &started, NULL);
}

/* Before memory is planned: it takes some, and so does NCCL. */
static invar_status connect_devices(invar_loop *loop)
{
    const invar_device *dev = &loop->session.dev;
    invar_distributed_backend wanted =
        INVAR_RECIPE_ENUM(invar_distributed_backend, loop->recipe, INVAR_KEY_DISTRIBUTED_BACKEND);

    if (!loop->world)
        return INVAR_OK;
    INVAR_TRY(invar_layout_choose_transport(&loop->transport, loop->world, dev, wanted));
    return invar_layout_open_transport(&loop->layout, dev, &loop->transport);
}

/* All that is read, but for the weights; what cannot fit is refused. */
static invar_status open_inputs(invar_budget *budget, invar_loop *loop)
{
    const char *hf = invar_recipe_string(loop->recipe, INVAR_KEY_HF_CHECKPOINT);
    const invar_session_crowd crowd = crowd_of(loop);
    invar_status status;

    status = invar_session_open_beside(&loop->session, loop->recipe,
                                       wants(loop) | INVAR_SESSION_NO_WEIGHTS, &crowd);
    INVAR_TRY(find_together(loop, status));
    INVAR_TRY(connect_devices(loop));
    if (hf[0]) // an export has the template that the model was trained with
        INVAR_TRY(
            invar_hf_files_read(&loop->store.hf_files, hf,
                                invar_recipe_string(loop->recipe, INVAR_KEY_CHAT_TEMPLATE_PATH)));
    INVAR_TRY(open_recorder(loop));
    invar_settings_read(&loop->set, loop->recipe,
                        loop->session.data ? invar_dataset_size(loop->session.data) : 0,
                        loop->options->until);
    tell_dropped(loop);
    tell_left_out(loop);
    tell_reference(loop);
    if (loop->set.course.rollouts == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "num-epoch: so many times through the data is less than one rollout of "
                          "%" PRId64 " prompts; give num-rollout",
                          loop->set.prompts);
    INVAR_TRY(invar_loop_read_sets(loop));
    return plan_memory(budget, loop);
}

static invar_status advise_memory(const invar_loop *loop, invar_status status)
{
    return invar_near_advise(status, invar_device_far(&loop->session.dev),
                             "the run was planned to fit: something else takes memory there");
}

static invar_status open_parts(invar_loop *loop)
{
    invar_budget budget;

    INVAR_TRY(open_inputs(&budget, loop));
    INVAR_TRY(advise_memory(loop, take_memory(loop, &budget)));
    INVAR_TRY(invar_loop_attach_audit(loop));
    if (invar_agree_leads(loop->world)) {
        INVAR_TRY(open_outputs(loop));
    } else {
        INVAR_TRY(open_source(loop));
        INVAR_TRY(invar_loop_resume(loop));
        if (!loop->summary->finished)
            INVAR_TRY(open_trace(loop, ""));
    }
    loop->custom = (invar_loss_custom){invar_loop_ask_loss, loop};
    loop->set.rl.custom = &loop->custom;
    return INVAR_OK;
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

    if (invar_recipe_bool(r, INVAR_KEY_ROLLOUT_OVERLAP) && invar_layout_parts(&sizes->train) > 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout-overlap needs ranks that sample by themselves, and here several "
                          "compute a model together: leave it out, or let other ranks sample "
                          "(rollout-num-gpus)");
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
    if (invar_recipe_string(loop->recipe, INVAR_KEY_CUSTOM_AGENT_PATH)[0])
        return invar_config_refuse(loop->recipe, INVAR_KEY_CUSTOM_AGENT_PATH,
                                   "needs a run of one rank: several do not share agents yet");
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

static invar_status open_layout(invar_loop *loop)
{
    join_world(loop);
    INVAR_TRY(invar_loop_compare_words(loop));
    return find_together(loop, divide_model(loop));
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

static invar_status prepare(invar_loop *loop, const invar_recipe *recipe,
                            const invar_train_options *options, invar_train_summary *summary)
{
    *loop = (invar_loop){.recipe = recipe, .options = options, .summary = summary};
    INVAR_TRY(invar_folders_find(&loop->home.at, recipe, options->recipe_path));
    INVAR_TRY(open_layout(loop));
    INVAR_TRY(invar_loop_find_fork(loop));
    return options->replay ? INVAR_OK // the recorded run has its own
                           : invar_facts_read(&loop->identity.facts);
}

invar_status invar_loop_open(invar_loop *loop, const invar_recipe *recipe,
                             const invar_train_options *options, invar_train_summary *summary)
{
    INVAR_TRY(prepare(loop, recipe, options, summary));
    return open_parts(loop);
}

invar_status invar_loop_read(invar_loop *loop, const invar_recipe *recipe,
                             const invar_train_options *options)
{
    invar_budget budget;

    INVAR_TRY(prepare(loop, recipe, options, NULL));
    INVAR_TRY(open_inputs(&budget, loop));
    return advise_memory(loop, make_models(loop));
}

void invar_loop_close(invar_loop *loop)
{
    invar_source_close(&loop->source);
    invar_agents_free(loop->agents);
    invar_flight_release(&loop->flight);
    invar_sync_free(loop->sync);
    invar_plugins_close(&loop->plugins);
    invar_rl_samples_reset(&loop->batch.samples);
    invar_flat_release(&loop->flat);
    invar_rollout_free(loop->rollout);
    invar_trainer_free(loop->checker);
    invar_trainer_free(loop->trainer);
    invar_audit_free(loop->audit);
    invar_checkpoint_close(loop->store.from);
    invar_checkpoint_writer_free(loop->store.writer);
    invar_loop_forget_masters(loop);
    invar_learner_close(&loop->actor);
    invar_learner_close(&loop->critic);
    invar_budget_block_release(&loop->block);
    invar_recorder_close(&loop->recorder);
    invar_saved_release(&loop->identity.saved);
    invar_facts_release(&loop->identity.facts);
    invar_checkpoint_claim_release(&loop->home.claim);
    invar_folder_release(&loop->home.folder);
    invar_hf_files_release(&loop->store.hf_files);
    invar_layout_close_transport(&loop->layout, &loop->session.dev);
    invar_session_close(&loop->session);
    invar_layout_release(&loop->layout);
    invar_sides_close(&loop->sides);
}
