/*
 * resume.c - checkpoints of a run: what is kept, and how a run goes on from one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/hf/hf.h"
#include "engine/hf/peft.h"
#include "engine/model/shard/whole.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* One model with its optimizer as three sets of tensors. */
typedef struct part {
    const char *masters, *m, *v; /* names of sets */
    invar_model *model;
    invar_optimizer *optimizer; /* NULL: without moments */
} part;

/* Of a model with adapters these alone. */
static part actor_part(invar_model *model, invar_optimizer *optimizer)
{
    if (invar_model_is_adapted(model))
        return (part){INVAR_SESSION_ADAPTERS, INVAR_SESSION_ADAPTERS ".exp_avg",
                      INVAR_SESSION_ADAPTERS ".exp_avg_sq", model, optimizer};
    return (part){"model", "model.exp_avg", "model.exp_avg_sq", model, optimizer};
}

static int parts_of(part out[3], const invar_loop *loop)
{
    const invar_session *s = &loop->session;
    int n = 0;

    if (loop->sides.samples) // it keeps nothing
        return 0;
    out[n++] = actor_part(s->actor, loop->actor.optimizer);
    if (s->critic)
        out[n++] = (part){"critic", "critic.exp_avg", "critic.exp_avg_sq", s->critic,
                          loop->critic.optimizer};
    if (s->reference && invar_settings_reference_moves(loop->recipe))
        out[n++] = (part){"reference", NULL, NULL, s->reference, NULL};
    return n;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void skipped(void *payload, int64_t step, const char *why)
{
    const invar_loop *loop = payload;

    invar_recorder_say(&loop->recorder, "stepped over the checkpoint of step %" PRId64 ": %s", step,
                       why);
}

/* Moments one by one through the host's memory: of some a rank keeps a part, of others nothing. */
static invar_status load_moments(invar_checkpoint *c, const part *p, bool second)
{
    const char *set = second ? p->v : p->m;
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < p->model->n_params && status == INVAR_OK; i++) {
        const invar_param *of = &p->model->params[i];
        float *near;
        INVAR_TRY(invar_alloc((void **)&near, (size_t)invar_param_elements(of), sizeof *near,
                              "moments of a checkpoint"));
        status = invar_session_load_own(near, of, c, set);
        if (status == INVAR_OK)
            status = invar_optimizer_put(p->optimizer, p->model, i, second, near);
        invar_free(near);
    }
    return status == INVAR_OK ? invar_checkpoint_loaded(c, set) : status;
}

static invar_status load_part(invar_checkpoint *c, const part *p)
{
    INVAR_TRY(invar_session_load_set(p->model, c, p->masters));
    if (p->optimizer) {
        if (!invar_checkpoint_has(c, p->m))
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "%.1000s was written with no-save-optim: it can be a start "
                              "(ref-load), but not be resumed; --fresh starts over",
                              invar_checkpoint_path(c));
        INVAR_TRY(load_moments(c, p, false));
        INVAR_TRY(load_moments(c, p, true));
    }
    return INVAR_OK;
}

/* Without an optimizer nothing is learned: there is nothing to go on with. */
static void load_optimizer(invar_optimizer *o, const invar_checkpoint_optimizer *from)
{
    if (!o)
        return;
    o->steps = from->steps;
    o->beta1_power = from->beta1_power;
    o->beta2_power = from->beta2_power;
}

static invar_status load(invar_loop *loop, invar_checkpoint *c, const invar_checkpoint_state *state)
{
    part parts[3];
    int n = parts_of(parts, loop);

    for (int i = 0; i < n; i++)
        INVAR_TRY(load_part(c, &parts[i]));
    load_optimizer(loop->actor.optimizer, &state->actor);
    load_optimizer(loop->critic.optimizer, &state->critic);
    loop->place = (invar_loop_place){
        .rollout = state->rollout, .step = state->step + 1, .weights = state->weights};
    loop->source.place = (invar_source_place){.samples = state->samples, .groups = state->groups};
    for (int64_t i = 0; i < state->n_cursors; i++)
        if (strcmp(state->cursors[i].name, "train") == 0)
            loop->source.place.cursor = state->cursors[i].at;
    loop->store.next = loop->fork.now ? 0 : loop->place.step;
    return INVAR_OK;
}

/* What of the flight's file the recipe knows. */
static invar_flight_wants flight_wants(const invar_loop *loop, const char *where)
{
    const invar_source_options *o = &loop->source.options;
    const invar_model *model = loop->session.actor;
    invar_flight_wants wants = {.where = where,
                                .data = o->data,
                                .spec = o->spec,
                                .sampling = o->sampling,
                                .first = loop->place.rollout,
                                .weights = loop->place.weights,
                                .samples = loop->source.place.samples,
                                .groups = loop->source.place.groups,
                                .round = o->round,
                                .per_prompt = o->per_prompt,
                                .route_size = invar_model_sparse_layers(model) *
                                              model->spec.experts_per_token};

    invar_tokenizer_hash(&wants.tokenizer, o->tokenizer);
    return wants;
}

/* The file of samples in flight; bytes 0: there is none. */
static invar_status read_flight(char **out, size_t *bytes_out, const invar_checkpoint *c)
{
    invar_status status = invar_checkpoint_read(out, bytes_out, c, INVAR_FLIGHT_FILE);

    if (status != INVAR_E_NOTFOUND)
        return status;
    invar_error_clear();
    return INVAR_OK;
}

/*
 * Whether so many rollouts can be in flight. A fork begins with those of its parent, few or many;
 * after its first rollout none are missing, and with each rollout one of those too many is gone.
 */
static bool can_fly(const invar_loop *loop, int64_t count)
{
    int64_t steps = loop->set.rollout_only ? 1 : loop->set.steps_per_rollout;
    int64_t done = loop->place.rollout - (loop->fork.step + 1) / steps; // since it is a fork

    if (count == loop->set.lag.rollouts)
        return true;
    if (loop->fork.step < 0)
        return false;
    return done == 0 || (count > loop->set.lag.rollouts && count <= INVAR_LAG_MOST - done);
}

/* Whether the run draws samples that it can have begun before their turn. */
static invar_status check_draws(const invar_source *source, const char *where)
{
    if (source->work == invar_source_sample && !source->options.turns.on)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s: samples are in flight, and the recipe cannot go on with them "
                      "(loss-type, load-debug-rollout-data, custom-generate-function-path): fork a "
                      "run with rollout-lag = 0",
                      where);
}

static invar_status take_flight(invar_loop *loop, const char *where, const char *text, size_t bytes)
{
    const invar_flight_wants wants = flight_wants(loop, where);
    int64_t lag = loop->set.lag.rollouts;

    if (bytes) {
        INVAR_TRY(check_draws(&loop->source, where));
        INVAR_TRY(invar_flight_parse(&loop->source.flight, text, bytes, &wants));
    }
    if (can_fly(loop, loop->source.flight.count))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%.1000s has %" PRId64 " rollouts in flight; rollout-lag is %" PRId64, where,
                      loop->source.flight.count, lag);
}

/* All ranks have what is in flight; rank 0 reads it. */
static invar_status load_flight(invar_loop *loop, const invar_checkpoint *c, const char *folder)
{
    bool leads = invar_agree_leads(loop->world);
    char where[INVAR_PATH_SIZE + sizeof INVAR_FLIGHT_FILE + 1], *text = NULL;
    size_t bytes = 0;
    invar_status status = INVAR_OK;

    (void)snprintf(where, sizeof where, "%s/%s", folder, INVAR_FLIGHT_FILE);
    if (leads)
        INVAR_TRY(read_flight(&text, &bytes, c));
    status = invar_agree_share(loop->world, "samples in flight", 0, &bytes, sizeof bytes);
    if (status == INVAR_OK && !leads)
        status = invar_alloc((void **)&text, bytes + 1, 1, "samples in flight");
    if (status == INVAR_OK && bytes)
        status = invar_agree_share(loop->world, "samples in flight", 0, text, bytes);
    if (status == INVAR_OK)
        status = take_flight(loop, where, text, bytes);
    invar_free(text);
    return status;
}

/*
 * NULL: from the start. The run's own folder of checkpoints may have none yet, so that one command
 * both begins a run and goes on with it; any other that is named must have one.
 */
static invar_status open_checkpoint(invar_checkpoint **out, invar_loop *loop, const char *folder,
                                    bool own)
{
    char shown[INVAR_PATH_SHOWN_SIZE], hint[INVAR_CHECKPOINT_HINT_SIZE];
    invar_checkpoint_choice choice = {
        .step = invar_recipe_int(loop->recipe, INVAR_KEY_CKPT_STEP),
        .skip_damaged = invar_recipe_bool(loop->recipe, INVAR_KEY_SKIP_DAMAGED),
        .skipped = skipped,
        .payload = loop,
        .settings = INVAR_CHECKPOINT_CKPT_STEP | INVAR_CHECKPOINT_SKIP_DAMAGED};
    invar_status status;

    *out = NULL;
    if (!folder[0])
        return INVAR_OK;
    status = invar_checkpoint_open(out, folder, &choice);
    if (status != INVAR_E_NOTFOUND || choice.step >= 0)
        return status;
    invar_error_clear();
    if (own)
        return INVAR_OK;
    invar_path_show(shown, folder);
    invar_checkpoint_hint(hint, folder);
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "load: %s has no checkpoint%s; leave load empty to continue with the run's own, or "
        "start from weights with ref-load",
        shown, hint);
}

/* What the run is asked for must be what the checkpoint was asked for. */
static invar_status check_identity(const invar_loop *loop, const invar_checkpoint *c)
{
    if (invar_digest_equal(&invar_checkpoint_state_of(c)->identity, &loop->identity.digest))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%.1000s belongs to another run: a semantic key, the data or the initial "
                      "weights differ; to start over give other folders (run, save, load) or "
                      "--fresh, to start from its weights ref-load",
                      invar_checkpoint_path(c));
}

/* Files with rollouts, from `rollout` on: none should turn out to be missing after hours. */
static invar_status check_rollouts(const invar_loop *loop, int64_t rollout)
{
    int64_t steps = loop->set.rollout_only ? 1 : loop->set.steps_per_rollout;
    invar_course_place at = {.rollout = rollout, .step = rollout * steps};

    if (!loop->source.options.load[0] || loop->options->replay)
        return INVAR_OK;
    for (; !invar_course_ended(&loop->set.course, &at); at.rollout++, at.step += steps, at.done++)
        INVAR_TRY(invar_source_check_file(&loop->source, at.rollout));
    return INVAR_OK;
}

/* Whether the new run can go on where the other one was. */
static invar_status check_fork(const invar_loop *loop, const invar_checkpoint *c)
{
    const invar_checkpoint_state *state = invar_checkpoint_state_of(c);
    int64_t steps = loop->set.rollout_only ? 1 : loop->set.steps_per_rollout;

    INVAR_TRY(invar_model_spec_compare(&loop->session.spec, invar_checkpoint_path(c)));
    INVAR_TRY(invar_session_check_adapters(&loop->session, c));
    if (state->rollout * steps != state->step + 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--fork: %.1000s has %" PRId64 " steps in %" PRId64
                          " rollouts, and this recipe makes %" PRId64
                          " of each: a fork keeps that number (global-batch-size, "
                          "num-steps-per-rollout)",
                          invar_checkpoint_path(c), state->step + 1, state->rollout, steps);
    if (state->rollout >= loop->set.course.rollouts)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--fork: %.1000s has done %" PRId64
                          " rollouts, and num-rollout, which counts them too, is %" PRId64
                          ": give a larger one",
                          invar_checkpoint_path(c), state->rollout, loop->set.course.rollouts);
    return INVAR_OK;
}

invar_status invar_loop_find_checkpoint(invar_loop *loop)
{
    const char *load = invar_recipe_string(loop->recipe, INVAR_KEY_LOAD);
    bool known = invar_path_exists(loop->home.at.ledger) && !loop->options->fresh;

    if (loop->fork.now)
        return check_fork(loop, loop->store.from);
    if (!known)
        INVAR_TRY(check_rollouts(loop, 0));
    if (!load[0] || invar_path_same(load, loop->home.at.save))
        return INVAR_OK;
    INVAR_TRY(open_checkpoint(&loop->store.from, loop, load, false));
    INVAR_TRY(check_identity(loop, loop->store.from));
    if (known || loop->options->replay)
        return INVAR_OK;
    return invar_loop_without_run(loop, invar_checkpoint_state_of(loop->store.from)->step);
}

/* All that is asked for is there, and the ledger says that the run ended well. */
static invar_status look_for_end(invar_ledger_summary *out, const invar_loop *loop,
                                 const invar_checkpoint_state *state)
{
    bool done = state->rollout >= loop->set.course.rollouts ||
                (loop->options->until >= 0 && state->step >= loop->options->until);

    *out = (invar_ledger_summary){.finished = false};
    if (!done || loop->options->replay || !loop->recorder.uuid[0])
        return INVAR_OK;
    return invar_ledger_find(out, loop->recorder.ledger, loop->recorder.uuid);
}

/* Nothing is written: the run stays as it is. */
static void stay(invar_loop *loop, const invar_checkpoint_state *state)
{
    loop->summary->finished = true;
    loop->summary->resumed_after = state->step;
    loop->summary->last_step = state->step; // as when it ended there, whatever the ledger has
    loop->summary->chain = state->chain;
    if (state->rollout < loop->set.course.rollouts)
        invar_recorder_say(&loop->recorder,
                           "nothing is left to do: the run is at step %" PRId64
                           ", and was to end after step %" PRId64,
                           state->step, loop->options->until);
    else
        invar_recorder_say(&loop->recorder,
                           "the run is finished: %" PRId64
                           " rollouts are done, num-rollout is %" PRId64
                           "; a larger one continues it, --fresh starts over",
                           state->rollout, loop->set.course.rollouts);
}

/* Whether the ledger has ended where this checkpoint stands: the same steps, the same bits. */
static invar_status is_end(bool *out, const invar_loop *loop, const invar_checkpoint_state *state,
                           const invar_ledger_summary *found)
{
    invar_digest chain;

    *out = false;
    if (!found->finished || found->exit_code != 0 || state->step > found->last_step)
        return INVAR_OK;
    INVAR_TRY(invar_ledger_chain_at(&chain, loop->recorder.ledger, found->run, state->step));
    *out = invar_digest_equal(&chain, &state->chain);
    return INVAR_OK;
}

/* What rank 0 has found: where all begin. */
typedef struct origin {
    bool checkpoint;              /* from one; else from the start */
    bool ended;                   /* all is done, nothing begins */
    char folder[INVAR_PATH_SIZE]; /* of the checkpoint, */
    invar_checkpoint_state state; /* and where the run was then */
} origin;

/* Rank 0's part of it; the checkpoint stays open. */
static invar_status decide(origin *out, invar_loop *loop)
{
    const invar_checkpoint_state *state;
    invar_ledger_summary found;

    if (!loop->store.from)
        INVAR_TRY(open_checkpoint(&loop->store.from, loop, loop->home.at.save, true));
    out->checkpoint = loop->store.from != NULL;
    if (!out->checkpoint)
        return INVAR_OK;
    (void)snprintf(out->folder, sizeof out->folder, "%s", invar_checkpoint_path(loop->store.from));
    state = invar_checkpoint_state_of(loop->store.from);
    out->state = *state;
    if (loop->fork.now) // which was looked at
        return INVAR_OK;
    INVAR_TRY(check_identity(loop, loop->store.from));
    INVAR_TRY(look_for_end(&found, loop, state));
    INVAR_TRY(is_end(&out->ended, loop, state, &found));
    if (out->ended)
        stay(loop, state);
    return INVAR_OK;
}

/* The ledger and people learn where the run goes on. */
static invar_status tell_resumed(invar_loop *loop, invar_checkpoint *c)
{
    const invar_checkpoint_state *state = invar_checkpoint_state_of(c);

    INVAR_TRY(invar_loop_begin(loop, state->step, &state->chain));
    loop->summary->resumed_after = state->step;
    invar_recorder_say(&loop->recorder, "resumed after step %" PRId64 " from %s", state->step,
                       invar_checkpoint_path(c));
    INVAR_TRY(invar_plugins_compare(&loop->plugins, &loop->recorder, state->step));
    return invar_checkpoint_settle(c, loop->recorder.ledger);
}

/* The same of a run that goes on from another one. */
static invar_status tell_forked(invar_loop *loop)
{
    const invar_fork *fork = &loop->fork;

    INVAR_TRY(invar_loop_begin(loop, fork->step, &fork->chain));
    invar_recorder_say(&loop->recorder, "forked from run %.8s (%s) after step %" PRId64, fork->uuid,
                       fork->name, fork->step);
    return INVAR_OK;
}

/* A rank that keeps nothing needs no checkpoint. */
static invar_status go_on(invar_loop *loop, invar_checkpoint *c, const origin *from)
{
    INVAR_TRY(load(loop, c, &from->state));
    INVAR_TRY(load_flight(loop, c, from->folder));
    INVAR_TRY(check_rollouts(loop, loop->place.rollout));
    if (!invar_agree_leads(loop->world))
        return INVAR_OK;
    return loop->fork.now ? tell_forked(loop) : tell_resumed(loop, c);
}

static invar_status start(invar_loop *loop)
{
    if (!invar_agree_leads(loop->world))
        return check_rollouts(loop, 0);
    INVAR_TRY(invar_loop_check_save(loop));
    if (loop->fork.step >= 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "the run is a fork of run %.8s after step %" PRId64
                          ", and has no checkpoint to go on from: start it again with --fork and "
                          "that run's folder",
                          loop->fork.uuid, loop->fork.step);
    if (loop->recorder.recorded >= 0) // else they are checked
        INVAR_TRY(check_rollouts(loop, 0));
    INVAR_TRY(invar_loop_begin(loop, -1, NULL));
    if (loop->recorder.recorded < 0 || loop->options->replay)
        return INVAR_OK;
    invar_recorder_say(&loop->recorder,
                       "no checkpoint: the run starts again at step 0; its ledger has %" PRId64
                       " step%s",
                       loop->recorder.recorded + 1, invar_text_plural(loop->recorder.recorded + 1));
    return INVAR_OK;
}

invar_status invar_loop_resume(invar_loop *loop)
{
    bool leads = invar_agree_leads(loop->world);
    origin from = {.checkpoint = false};

    if (leads)
        INVAR_TRY(decide(&from, loop));
    INVAR_TRY(invar_agree_share(loop->world, "resume", 0, &from, sizeof from));
    loop->summary->finished = from.ended;
    if (from.checkpoint && !from.ended && !leads && !loop->sides.samples)
        INVAR_TRY(invar_checkpoint_open_folder(&loop->store.from, from.folder));
    if (!from.ended)
        INVAR_TRY(from.checkpoint ? go_on(loop, loop->store.from, &from) : start(loop));
    invar_checkpoint_close(loop->store.from);
    loop->store.from = NULL;
    return invar_loop_sign(loop);
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The tensors of a checkpoint, and where they come from. */
typedef struct listing {
    invar_checkpoint_tensor *tensors; /* (count) */
    invar_whole_source *sources;      /* (count) */
    int64_t count;
    bool divided; /* no rank has them whole */
    invar_whole whole;
} listing;

static void add_set(listing *l, const char *set, const invar_model *model, const invar_tensor *of,
                    const invar_device *dev)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        const invar_tensor *tensor = of ? &of[i] : invar_param_f32(p);

        l->tensors[l->count] = (invar_checkpoint_tensor){
            set, p->name, l->divided ? invar_param_whole(p, NULL) : *tensor,
            l->divided ? NULL : dev};
        l->sources[l->count++] = (invar_whole_source){model, i, tensor, dev};
    }
}

static void add_part(listing *l, const part *p, const invar_masters *masters, bool moments)
{
    const invar_optimizer *o = p->optimizer;

    add_set(l, p->masters, p->model, masters->of, masters->of ? NULL : &p->model->dev);
    if (!moments || !o)
        return;
    add_set(l, p->m, p->model, o->m, invar_optimizer_place(o));
    add_set(l, p->v, p->model, o->v, invar_optimizer_place(o));
}

static invar_status list(listing *out, const invar_loop *loop)
{
    bool moments = !invar_recipe_bool(loop->recipe, INVAR_KEY_NO_SAVE_OPTIM);
    part parts[3];
    int n = parts_of(parts, loop);
    size_t most = 0;

    *out = (listing){.divided = invar_model_is_divided(loop->session.actor)};
    for (int i = 0; i < n; i++)
        most += 3 * (size_t)parts[i].model->n_params;
    INVAR_TRY(invar_alloc((void **)&out->tensors, most, sizeof *out->tensors,
                          "the list of a checkpoint's tensors"));
    INVAR_TRY(invar_alloc((void **)&out->sources, most, sizeof *out->sources,
                          "the list of a checkpoint's tensors"));
    for (int i = 0; i < n; i++)
        add_part(out, &parts[i], &loop->store.masters[i], moments);
    return INVAR_OK;
}

static void listing_release(listing *l)
{
    invar_whole_release(&l->whole);
    invar_free(l->tensors);
    invar_free(l->sources);
}

static invar_status fetch(const void **out, void *payload, int64_t number)
{
    listing *l = payload;
    const invar_whole_source *from = &l->sources[number];

    return invar_whole_read((const float **)out, &l->whole, from, 0,
                            from->model->params[from->param].stack);
}

/* What rank 0 writes, from the other ranks. */
static invar_status give(const invar_loop *loop)
{
    listing l;
    invar_status status = list(&l, loop);
    const void *none;

    for (int64_t i = 0; i < l.count && status == INVAR_OK; i++)
        status = fetch(&none, &l, i);
    listing_release(&l);
    return status;
}

static void fill_optimizer(invar_checkpoint_optimizer *out, const invar_optimizer *o)
{
    if (o)
        *out = (invar_checkpoint_optimizer){o->steps, o->beta1_power, o->beta2_power};
}

static void fill_state(invar_checkpoint_state *out, const invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;

    *out = (invar_checkpoint_state){.step = loop->place.step - 1,
                                    .rollout = loop->place.rollout,
                                    .weights = loop->place.weights,
                                    .samples = loop->source.place.samples,
                                    .groups = loop->source.place.groups,
                                    .identity = loop->identity.digest,
                                    .n_cursors = 1};
    fill_optimizer(&out->actor, loop->actor.optimizer);
    fill_optimizer(&out->critic, loop->critic.optimizer);
    (void)snprintf(out->uuid, sizeof out->uuid, "%s", loop->recorder.uuid);
    (void)snprintf(out->name, sizeof out->name, "%s", loop->home.at.name);
    (void)snprintf(out->format, sizeof out->format, "%s", invar_format_name(loop->session.format));
    (void)snprintf(out->numerics, sizeof out->numerics, "%s",
                   invar_numerics_name(INVAR_RECIPE_ENUM(invar_numerics, r, INVAR_KEY_NUMERICS)));
    if (invar_model_is_adapted(loop->session.actor))
        invar_session_describe_adapters(&out->adapters, &loop->session);
    (void)snprintf(out->cursors[0].name, sizeof out->cursors[0].name, "train");
    out->cursors[0].at = loop->source.place.cursor;
}

/*
 * After a failure to write to `path`: true where the folder was moved meanwhile, which is why; then
 * it is known where it is. Else the failure stays what it was.
 */
static bool was_moved(invar_loop *loop, const char *path)
{
    char before[INVAR_PATH_SIZE];
    invar_error first;

    (void)snprintf(before, sizeof before, "%s", path); // `path` may be what changes
    invar_error_take(&first);
    if (invar_loop_follow(loop) == INVAR_OK && strcmp(before, loop->home.at.save) != 0)
        return true;
    invar_error_put(&first);
    return false;
}

static invar_status write_now(invar_loop *loop, const invar_checkpoint_content *content,
                              const invar_checkpoint_options *options)
{
    invar_status status = invar_checkpoint_write(NULL, loop->home.at.save, content, options);

    // what other ranks have given they do not give again
    if (status != INVAR_OK && !content->fetch && was_moved(loop, loop->home.at.save))
        status = invar_checkpoint_write(NULL, loop->home.at.save, content, options);
    return status;
}

/*
 * While a far device goes on its memory is copied away and written from the copy. After the last
 * rollout nothing goes on, and the memory of a near device is copied by nobody.
 */
static invar_status write_content(invar_loop *loop, const invar_checkpoint_content *content,
                                  bool last)
{
    const invar_recipe *r = loop->recipe;
    invar_checkpoint_options options = {.ledger = loop->recorder.ledger,
                                        .keep = invar_recipe_int(r, INVAR_KEY_KEEP_CHECKPOINTS),
                                        .pool = loop->session.pool,
                                        .claimed = loop->home.claim.held};

    if (last || content->fetch || !invar_device_far(&loop->session.dev) ||
        !invar_recipe_bool(r, INVAR_KEY_ASYNC_SAVE))
        return write_now(loop, content, &options);
    if (!loop->store.writer)
        INVAR_TRY(invar_checkpoint_writer_new(&loop->store.writer, &loop->session.dev));
    return invar_checkpoint_begin(loop->store.writer, loop->home.at.save, content, &options);
}

/* *out stays NULL where nothing is in flight. */
static invar_status format_flight(char **out, size_t *bytes_out, const invar_loop *loop)
{
    const invar_source_options *o = &loop->source.options;
    invar_rollout_header header = {.run = loop->identity.digest,
                                   .weights = loop->place.weights,
                                   .n_samples_per_prompt = o->per_prompt,
                                   .sampling = o->sampling};

    if (loop->source.flight.count == 0)
        return INVAR_OK;
    invar_tokenizer_hash(&header.tokenizer, o->tokenizer);
    return invar_flight_format(out, bytes_out, &loop->source.flight, &header);
}

static invar_status write(invar_loop *loop, listing *l, bool last)
{
    invar_checkpoint_state state;
    invar_checkpoint_blob blobs[2 + INVAR_HF_FILES] = {{.name = "config.json"}};
    invar_checkpoint_content content = {.state = &state,
                                        .tensors = l->tensors,
                                        .n_tensors = l->count,
                                        .blobs = blobs,
                                        .n_blobs = 1 + loop->store.hf_files.count,
                                        .fetch = l->divided ? fetch : NULL,
                                        .payload = l};
    invar_checkpoint_blob *flight = &blobs[content.n_blobs];
    char *text = NULL, *flying = NULL;
    invar_status status;

    fill_state(&state, loop);
    INVAR_TRY(invar_ledger_chain(&state.step, &state.chain, loop->recorder.ledger));
    memcpy(&blobs[1], loop->store.hf_files.items,
           (size_t)loop->store.hf_files.count * sizeof *blobs);
    INVAR_TRY(invar_model_spec_json(&text, &blobs[0].bytes, &loop->session.spec, "float32"));
    blobs[0].data = text;
    status = format_flight(&flying, &flight->bytes, loop);
    *flight = (invar_checkpoint_blob){INVAR_FLIGHT_FILE, flying, flight->bytes};
    content.n_blobs += flying != NULL;
    if (status == INVAR_OK)
        status = write_content(loop, &content, last);
    invar_free(flying);
    invar_free(text);
    return status;
}

/*
 * The export of a rollout goes into a folder that is new or empty. One of a rollout that the ledger
 * had when the run was started may be the run's own, of before.
 */
static invar_status check_export(const invar_loop *loop, const char *pattern, int64_t rollout)
{
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    int64_t steps = loop->set.rollout_only ? 1 : loop->set.steps_per_rollout;
    bool empty;

    if ((rollout + 1) * steps <= loop->recorder.recorded + 1)
        return INVAR_OK;
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, rollout));
    INVAR_TRY(invar_folder_is_empty(&empty, path));
    if (empty)
        return INVAR_OK;
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "save-hf: %s is not empty, and this run did not write it; remove it, or give "
                      "another name",
                      shown);
}

invar_status invar_loop_check_exports(const invar_loop *loop)
{
    const char *pattern = invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_HF);
    int64_t interval = invar_recipe_int(loop->recipe, INVAR_KEY_SAVE_INTERVAL);

    if (!pattern[0] || loop->options->replay)
        return INVAR_OK;
    for (int64_t end = interval; interval > 0 && end < loop->set.course.rollouts; end += interval)
        INVAR_TRY(check_export(loop, pattern, end - 1));
    return check_export(loop, pattern, loop->set.course.rollouts - 1);
}

static invar_status export_hf(invar_loop *loop)
{
    const char *pattern = invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_HF);
    char path[INVAR_PATH_SIZE];

    if (!pattern[0])
        return INVAR_OK;
    if (invar_agree_leads(loop->world)) // a stop exports any
        INVAR_TRY(check_export(loop, pattern, loop->place.rollout - 1));
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, loop->place.rollout - 1));
    if (!loop->store.masters[0].of) // no checkpoint has them already
        INVAR_TRY(invar_masters_collect(&loop->store.masters[0], loop->session.actor));
    if (invar_model_is_adapted(loop->session.actor))
        return invar_peft_save(loop->session.actor, loop->store.masters[0].of, path,
                               invar_recipe_string(loop->recipe, INVAR_KEY_HF_CHECKPOINT));
    return invar_hf_save(loop->session.actor, loop->store.masters[0].of, path,
                         loop->session.format == INVAR_FORMAT_FP32 ? INVAR_DTYPE_F32
                                                                   : INVAR_DTYPE_BF16,
                         0, &loop->store.hf_files);
}

static invar_status save_checkpoint(invar_loop *loop, bool last)
{
    listing l;
    invar_status status;

    INVAR_TRY(invar_loop_finish_save(loop));
    INVAR_TRY(invar_loop_follow(loop));
    status = list(&l, loop);
    if (status == INVAR_OK)
        status = write(loop, &l, last);
    listing_release(&l);
    if (status == INVAR_OK)
        loop->store.next = loop->place.step;
    return status;
}

/* Of all ranks to the one that writes, and a checkpoint before may still read what was. */
static invar_status collect(invar_loop *loop)
{
    part parts[3];
    int n = parts_of(parts, loop);

    INVAR_TRY(invar_loop_finish_save(loop));
    for (int i = 0; i < n; i++) {
        INVAR_TRY(invar_masters_collect(&loop->store.masters[i], parts[i].model));
        if (parts[i].optimizer && !invar_recipe_bool(loop->recipe, INVAR_KEY_NO_SAVE_OPTIM))
            INVAR_TRY(invar_optimizer_collect(parts[i].optimizer, parts[i].model));
    }
    return INVAR_OK;
}

/* One rank writes; those that have a part of the model give it. */
static invar_status save_together(invar_loop *loop, bool last)
{
    INVAR_TRY(collect(loop));
    return invar_agree_leads(loop->world) ? save_checkpoint(loop, last) : give(loop);
}

invar_status invar_loop_save(invar_loop *loop, bool last)
{
    if (loop->home.at.save[0])
        INVAR_TRY(save_together(loop, last));
    return export_hf(loop);
}

invar_status invar_loop_keep_fork(invar_loop *loop)
{
    return loop->fork.now && !loop->sides.samples ? save_together(loop, true) : INVAR_OK;
}

/* ---- after a failure ------------------------------------------------------------------------- */

invar_status invar_loop_remember(invar_loop *loop)
{
    invar_loop_forget(loop);
    loop->flew = true;
    if (loop->home.at.save[0] && invar_agree_leads(loop->world))
        INVAR_TRY(invar_flight_copy(&loop->flight, &loop->source.flight));
    loop->untouched = true;
    return INVAR_OK;
}

void invar_loop_forget(invar_loop *loop)
{
    loop->before = loop->source.place;
    loop->flew = false;
    invar_flight_release(&loop->flight);
}

/* The source is where it was before the rollout. */
static void go_back(invar_loop *loop)
{
    invar_source *source = &loop->source;

    source->place = loop->before;
    if (!loop->flew)
        return;
    invar_flight_release(&source->flight);
    invar_rl_samples_reset(&source->ahead);
    source->flight = loop->flight;
    loop->flight = (invar_flight){.count = 0};
}

bool invar_loop_whole(const invar_loop *loop)
{
    return loop->untouched && loop->home.at.save[0] && !loop->options->replay;
}

/* Where a rank is, for the others. */
typedef struct stand {
    int64_t whole, step;
    int64_t next; /* of rank 0: its newest checkpoint is of the step before */
} stand;

/* Whether all ranks are where a checkpoint can be made of what they have. */
static invar_status agree_rescue(bool *out, const invar_loop *loop, const stand *own)
{
    size_t size = (size_t)invar_agree_size(loop->world);
    stand *all = NULL;
    invar_status status;

    *out = false;
    INVAR_TRY(invar_alloc((void **)&all, size, sizeof *all, "what ranks have"));
    status = invar_agree_gather(loop->world, "rescue", own, sizeof *own, all);
    if (status == INVAR_OK)
        *out = all[0].step > all[0].next;
    for (size_t r = 0; r < size && status == INVAR_OK; r++)
        *out = *out && all[r].whole && all[r].step == all[0].step;
    invar_free(all);
    return status;
}

invar_status invar_loop_rescue(bool *saved_out, invar_loop *loop, bool sound)
{
    const stand own = {sound && invar_loop_whole(loop), loop->place.step, loop->store.next};
    int64_t unused;

    *saved_out = false;
    if (loop->world && !invar_comm_revive(loop->world->world))
        return INVAR_OK; // a rank is gone, and what it had of the moments
    INVAR_TRY(agree_rescue(saved_out, loop, &own));
    if (!*saved_out)
        return INVAR_OK;
    go_back(loop);
    INVAR_TRY(invar_loop_renew_layout(loop));
    if (!loop->sides.samples)
        INVAR_TRY(save_together(loop, true));
    // a launcher ends all ranks as soon as one has ended
    return invar_agree_least(&unused, loop->world, "rescue", 0);
}

void invar_loop_forget_masters(invar_loop *loop)
{
    for (size_t i = 0; i < sizeof loop->store.masters / sizeof *loop->store.masters; i++)
        invar_masters_release(&loop->store.masters[i]);
}

/* ---- a checkpoint that is being written ------------------------------------------------------ */

void invar_loop_before_change(invar_loop *loop)
{
    loop->untouched = false;
    if (loop->store.writer && invar_checkpoint_copying(loop->store.writer)) {
        invar_trace_begin(loop->recorder.trace, "save");
        invar_checkpoint_await_copy(loop->store.writer);
        invar_trace_end(loop->recorder.trace);
    }
    invar_loop_forget_masters(loop);
}

invar_status invar_loop_finish_save(invar_loop *loop)
{
    invar_status status;

    if (!loop->store.writer)
        return INVAR_OK;
    INVAR_TRY(invar_loop_follow(loop));
    status = invar_checkpoint_finish(NULL, loop->store.writer);
    if (status == INVAR_OK || !was_moved(loop, invar_checkpoint_writer_save(loop->store.writer)))
        return status;
    invar_recorder_say(&loop->recorder,
                       "a checkpoint is missing: the run was moved while it was written");
    return INVAR_OK;
}
