/*
 * resume.c - continues a run from a checkpoint, its own or that of the run it is a fork of.
 *
 * Rank 0 chooses the checkpoint and checks that it belongs to the run: same identity, or for a fork
 * the parent's chain. It broadcasts the choice, and each rank loads its part: weights, optimizer
 * moments, positions, and the samples in flight. The ledger gets a new segment, or a new run for a
 * fork, only after everything was loaded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/hf/hf.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

static void skipped(void *payload, int64_t step, const char *why)
{
    const invar_run_storage *storage = payload;

    invar_recorder_print(&storage->recorder, "stepped over the checkpoint of step %" PRId64 ": %s",
                         step, why);
}

/*
 * Loads the moments of all parameters, one after the other through host memory. A rank keeps its
 * part of each, which may be empty.
 */
static invar_status load_moments(invar_checkpoint *c, const invar_checkpoint_part *p, bool second)
{
    const char *set = second ? p->v : p->m;
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < p->model->n_params && status == INVAR_OK; i++) {
        const invar_param *of = &p->model->params[i];
        float *near;
        INVAR_TRY(INVAR_ALLOC(near, (size_t)invar_param_elements(of), "moments of a checkpoint"));
        status = invar_run_context_load_own(near, of, c, set);
        if (status == INVAR_OK)
            status = invar_optimizer_load(p->optimizer, p->model, i, second, near);
        invar_free(near);
    }
    return status == INVAR_OK ? invar_checkpoint_check_all_loaded(c, set) : status;
}

static invar_status load_part(invar_checkpoint *c, const invar_checkpoint_part *p)
{
    INVAR_TRY(invar_run_context_load_set(p->model, c, p->masters));
    if (p->optimizer) {
        if (!invar_checkpoint_has_set(c, p->m))
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "%.1000s was written with no-save-optim: it can be a start "
                              "(ref-load), but not be resumed; --fresh starts over",
                              invar_checkpoint_path(c));
        INVAR_TRY(load_moments(c, p, false));
        INVAR_TRY(load_moments(c, p, true));
    }
    return INVAR_OK;
}

/* Copies the optimizer's counters; does nothing without an optimizer. */
static void load_optimizer(invar_optimizer *o, const invar_checkpoint_optimizer *from)
{
    if (!o)
        return;
    o->steps = from->steps;
    o->beta1_power = from->beta1_power;
    o->beta2_power = from->beta2_power;
}

/*
 * Loads the checkpoint `c` and its `state` into the loop. `c` is NULL on ranks that keep nothing.
 */
static invar_status load_state(invar_train_loop *loop, invar_checkpoint *c,
                               const invar_checkpoint_state *state)
{
    invar_checkpoint_part parts[INVAR_DISK_PARTS];
    bool bare = c && invar_checkpoint_is_bare(c);
    int n = invar_run_parts(parts, &loop->models);

    // rank 0 alone may have the checkpoint
    if (invar_run_keeps_weights_fixed(&loop->storage) || loop->storage.fork.starting) {
        INVAR_TRY(invar_ranks_broadcast(loop->world.all, "a checkpoint without weights", 0, &bare,
                                        sizeof bare));
        // the weights are those of the identity, which a fork shares with its parent
        n = bare ? 0 : n;
    }
    for (int i = 0; i < n; i++)
        INVAR_TRY(load_part(c, &parts[i]));
    load_optimizer(loop->models.actor.optimizer, &state->actor);
    load_optimizer(loop->models.critic.optimizer, &state->critic);
    loop->storage.position = (invar_train_position){
        .rollout = state->rollout, .step = state->step + 1, .weights = state->weights};
    loop->flow.source.position =
        (invar_source_position){.samples = state->samples, .groups = state->groups};
    for (int64_t i = 0; i < state->n_cursors; i++)
        if (strcmp(state->cursors[i].name, "train") == 0)
            loop->flow.source.position.cursor = state->cursors[i].position;
    loop->storage.checkpoints.next = loop->storage.fork.starting ? 0 : loop->storage.position.step;
    return INVAR_OK;
}

/* Returns what the file with in-flight samples must contain, by the recipe and the checkpoint. */
static invar_inflight_expectation expected_inflight(const invar_run_storage *storage,
                                                    const invar_run_flow *flow, const char *where)
{
    const invar_sample_source_options *o = &flow->source.options;
    invar_inflight_expectation wants = {.where = where,
                                        .data = o->data,
                                        .spec = o->spec,
                                        .sampling = o->generate.sampling,
                                        .first = storage->position.rollout,
                                        .weights = storage->position.weights,
                                        .samples = flow->source.position.samples,
                                        .groups = flow->source.position.groups,
                                        .round = o->round,
                                        .per_prompt = o->generate.per_prompt,
                                        .schedule = o->schedule,
                                        .fork = storage->fork.step >= 0,
                                        .multi_turn = o->generate.turns.enabled,
                                        .route_size = invar_model_spec_route(o->spec)};

    invar_tokenizer_hash(&wants.tokenizer, o->tokenizer);
    return wants;
}

/*
 * True if `count` rollouts can be in flight. A fork begins with those of its parent, which may be
 * fewer or more than its rollout-lag. After its first rollout none are missing, and with each
 * rollout one of the excess is consumed.
 */
static bool is_valid_inflight_count(const invar_run_storage *storage, int64_t count)
{
    int64_t steps = storage->job->settings.steps_per_rollout;
    int64_t done =
        storage->position.rollout - (storage->fork.step + 1) / steps; // rollouts since the fork

    if (count == storage->job->settings.sampling.lag)
        return true;
    if (storage->job->settings.sampling.recorded) // some may be late; the parser has checked that
        return storage->fork.step >= 0 ? done == 0 || count > 0
                                       : count > storage->job->settings.sampling.lag;
    if (storage->fork.step < 0)
        return false;
    return done == 0 ||
           (count > storage->job->settings.sampling.lag && count <= INVAR_LAG_MAX - done);
}

/*
 * Fails because this run cannot continue in-flight samples: it does not sample before their turn.
 */
static invar_status fail_inflight_unsupported(const char *where)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s: samples are in flight, and the recipe cannot continue them "
                      "(loss-type, load-debug-rollout-data, custom-agent-path): fork a "
                      "checkpoint without " INVAR_INFLIGHT_FILE,
                      where);
}

static invar_status parse_inflight(invar_train_loop *loop, const char *where, const char *text,
                                   size_t bytes)
{
    const invar_inflight_expectation wants = expected_inflight(&loop->storage, &loop->flow, where);
    invar_sample_source *source = &loop->flow.source;
    int64_t lag = loop->job.settings.sampling.lag;

    if (bytes && !source->kind->prefetch)
        return fail_inflight_unsupported(where);
    if (bytes)
        INVAR_TRY(invar_inflight_parse(&source->inflight, text, bytes, &wants));
    if (source->options.generate.agents_lead && source->inflight.count > 0)
        return fail_inflight_unsupported(where);
    if (source->inflight.count > 0 ||
        source->inflight.surplus.count > 0) // possibly only a parent's
        loop->job.settings.sampling.inherited = true;
    if (is_valid_inflight_count(&loop->storage, source->inflight.count))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%.1000s has %" PRId64 " rollouts in flight; rollout-lag is %" PRId64, where,
                      source->inflight.count, lag);
}

invar_status invar_run_share_text(char **text, size_t *bytes, const invar_run_world *world,
                                  const char *what)
{
    INVAR_TRY(invar_ranks_broadcast(world->all, what, 0, bytes, sizeof *bytes));
    if (!invar_ranks_is_leader(world->all))
        INVAR_TRY(INVAR_ALLOC(*text, *bytes + 1, what));
    return *bytes ? invar_ranks_broadcast(world->all, what, 0, *text, *bytes) : INVAR_OK;
}

/* Loads the in-flight samples on all ranks; rank 0 reads them. Collective. */
static invar_status load_flight(invar_train_loop *loop, const invar_checkpoint *c,
                                const char *folder)
{
    char where[INVAR_PATH_SIZE + sizeof INVAR_INFLIGHT_FILE + 1], *text = NULL;
    size_t bytes = 0;
    invar_status status = INVAR_OK;

    (void)snprintf(where, sizeof where, "%s/%s", folder, INVAR_INFLIGHT_FILE);
    if (invar_ranks_is_leader(loop->world.all))
        status = invar_checkpoint_read_blob(&text, &bytes, c, INVAR_INFLIGHT_FILE);
    if (status == INVAR_E_NOTFOUND)
        invar_error_clear(); // nothing was in flight
    else
        INVAR_TRY(status);
    status = invar_run_share_text(&text, &bytes, &loop->world, "samples in flight");
    if (status == INVAR_OK)
        status = parse_inflight(loop, where, text, bytes);
    invar_free(text);
    return status;
}

/*
 * Opens the checkpoint to load; *out is NULL to begin at the start. The run's own folder may have
 * no checkpoint yet, so that one command both starts and continues a run. Any other folder must
 * have one.
 */
static invar_status open_checkpoint(invar_checkpoint **out, invar_run_storage *storage,
                                    const char *folder, bool own)
{
    char shown[INVAR_PATH_SHOWN_SIZE], hint[INVAR_CHECKPOINT_HINT_SIZE];
    invar_checkpoint_open_options choice = {.step = storage->job->config->ckpt_step,
                                            .skip_damaged = storage->job->config->skip_damaged,
                                            .skipped = skipped,
                                            .payload = storage,
                                            .settings = INVAR_CHECKPOINT_CKPT_STEP |
                                                        INVAR_CHECKPOINT_SKIP_DAMAGED};
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
    INVAR_TRY(invar_hf_check_folder("load", folder));
    invar_path_show(shown, folder);
    invar_checkpoint_hint(hint, folder);
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "load: %s has no checkpoint%s; leave load empty to continue with the run's own, or "
        "start from weights with ref-load",
        shown, hint);
}

/* Fails if the checkpoint has another identity than the run. */
static invar_status check_identity(const invar_run_storage *storage, const invar_checkpoint *c)
{
    if (invar_digest_equal(&invar_checkpoint_state_of(c)->identity, &storage->identity.digest))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%.1000s belongs to another run: a semantic key, the data or the initial "
                      "weights differ; to start over give other folders (run, save, load) or "
                      "--fresh, to start from its weights ref-load",
                      invar_checkpoint_path(c));
}

/* Checks the rollout files from `rollout` on, so that none turns out to be missing after hours. */
static invar_status check_rollouts(const invar_run_flow *flow, int64_t rollout)
{
    int64_t steps = flow->job->settings.steps_per_rollout;
    invar_run_progress at = {.rollout = rollout, .step = rollout * steps};

    if (!flow->source.kind->loads || flow->job->options->replay)
        return INVAR_OK;
    for (; !invar_run_schedule_ended(&flow->job->settings.run_schedule, &at);
         at.rollout++, at.step += steps, at.done++)
        INVAR_TRY(invar_sample_source_check_file(&flow->source, at.rollout));
    return INVAR_OK;
}

/* ---- the weights of a fork ------------------------------------------------------------------- */

static invar_status read_weights_row(void *payload, const char *const *columns,
                                     const invar_ledger_value *values, int count)
{
    invar_digest *out = payload;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 1);
    if (values[0].type != INVAR_LEDGER_TYPE_TEXT)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the ledger has a hash that is no text: verify it");
    return invar_digest_parse(out, values[0].data);
}

/*
 * *out = hash of the parent's initial weights, if the folder has its ledger; else *out is
 * unchanged.
 */
static invar_status read_parent_weights(invar_digest *out, const invar_run_storage *storage,
                                        const char *folder)
{
    const invar_ledger_argument uuid = {"uuid",
                                        {.type = INVAR_LEDGER_TYPE_TEXT,
                                         .data = storage->fork.uuid,
                                         .bytes = strlen(storage->fork.uuid)}};
    const invar_ledger_select_request request = {
        .sql = "SELECT value FROM identity WHERE key = '" INVAR_LEDGER_WEIGHTS
               "' AND run = (SELECT run FROM run WHERE uuid = :uuid)",
        .arguments = &uuid,
        .n_arguments = 1,
        .row = read_weights_row,
        .payload = out};
    char path[INVAR_PATH_SIZE];
    invar_ledger *ledger = NULL;
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, folder, "ledger.db"));
    if (!invar_path_exists(path))
        return INVAR_OK;
    INVAR_TRY(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    status = invar_ledger_select(ledger, &request);
    invar_ledger_close(ledger);
    return status;
}

/*
 * Fails if the fork's initial weights differ from its parent's and the parent's checkpoint has no
 * weights.
 */
static invar_status check_first_weights(const invar_run_storage *storage,
                                        const invar_run_models *models)
{
    const invar_digest none = {{0}};
    char above[INVAR_PATH_SIZE];
    invar_digest had = none;

    if (!storage->checkpoints.resume_from ||
        !invar_checkpoint_is_bare(storage->checkpoints.resume_from))
        return INVAR_OK;
    INVAR_TRY(read_parent_weights(&had, storage, storage->job->options->fork));
    INVAR_TRY(invar_path_join(above, sizeof above, storage->job->options->fork, ".."));
    if (invar_digest_equal(&had, &none))
        INVAR_TRY(read_parent_weights(&had, storage, above));
    if (invar_digest_equal(&had, &models->context.weights))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "--fork: %.1000s has no weights, since its run has debug-rollout-only, and "
                      "%s: give the folder of that run, and the seed, hf-checkpoint or ref-load "
                      "that it began with",
                      invar_checkpoint_path(storage->checkpoints.resume_from),
                      invar_digest_equal(&had, &none)
                          ? "no ledger beside it says which it began with"
                          : "the recipe begins with others than that run did");
}

/* Fails if the fork cannot continue from the parent's checkpoint. */
static invar_status check_fork(const invar_run_models *models, const invar_checkpoint *c)
{
    const invar_checkpoint_state *state = invar_checkpoint_state_of(c);
    int64_t steps = models->job->settings.steps_per_rollout;

    INVAR_TRY(invar_model_spec_compare(&models->context.spec, invar_checkpoint_path(c)));
    // one without weights, and so without moments, can continue only a run that trains nothing
    if (!invar_checkpoint_is_bare(c) || !models->job->config->debug_rollout_only)
        INVAR_TRY(invar_run_context_check_adapters(&models->context, c));
    if (state->rollout * steps != state->step + 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--fork: %.1000s has %" PRId64 " steps in %" PRId64
                          " rollouts, and this recipe makes %" PRId64
                          " of each: a fork keeps that number (global-batch-size, "
                          "num-steps-per-rollout)",
                          invar_checkpoint_path(c), state->step + 1, state->rollout, steps);
    if (state->rollout >= models->job->settings.run_schedule.rollouts)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "--fork: %.1000s has done %" PRId64
            " rollouts, and num-rollout, which counts them too, is %" PRId64 ": give a larger one",
            invar_checkpoint_path(c), state->rollout, models->job->settings.run_schedule.rollouts);
    return INVAR_OK;
}

invar_status invar_train_loop_find_checkpoint(invar_train_loop *loop)
{
    const char *load = loop->job.config->load;
    bool known = invar_path_exists(loop->storage.dirs.paths.ledger) && !loop->job.options->fresh;

    if (loop->storage.fork.starting)
        return check_fork(&loop->models, loop->storage.checkpoints.resume_from);
    if (!known)
        INVAR_TRY(check_rollouts(&loop->flow, 0));
    if (!load[0] || invar_path_same(load, loop->storage.dirs.paths.save))
        return INVAR_OK;
    INVAR_TRY(open_checkpoint(&loop->storage.checkpoints.resume_from, &loop->storage, load, false));
    INVAR_TRY(check_identity(&loop->storage, loop->storage.checkpoints.resume_from));
    if (known || loop->job.options->replay)
        return INVAR_OK;
    return invar_run_fail_missing_run(
        &loop->storage, invar_checkpoint_state_of(loop->storage.checkpoints.resume_from)->step);
}

/* Reports that the run is finished. Nothing is written. */
static void report_nothing_to_do(invar_run_storage *storage, const invar_checkpoint_state *state)
{
    storage->summary->finished = true;
    storage->summary->resumed_after = state->step;
    // the state at its end, even if the ledger has more steps
    storage->summary->last_step = state->step;
    storage->summary->chain = state->chain;
    if (state->rollout < storage->job->settings.run_schedule.rollouts)
        invar_recorder_print(&storage->recorder,
                             "nothing is left to do: the run is at step %" PRId64
                             ", and was to end after step %" PRId64,
                             state->step, storage->job->options->until);
    else
        invar_recorder_print(&storage->recorder,
                             "the run is finished: %" PRId64
                             " rollouts are done, num-rollout is %" PRId64
                             "; a larger one continues it, --fresh starts over",
                             state->rollout, storage->job->settings.run_schedule.rollouts);
}

/*
 * *out is true if the checkpoint has all that is asked for, the run ended well, and its ledger has
 * the checkpoint's chain at this step.
 */
static invar_status is_end(bool *out, const invar_run_storage *storage,
                           const invar_checkpoint_state *state)
{
    bool done = state->rollout >= storage->job->settings.run_schedule.rollouts ||
                (storage->job->options->until >= 0 && state->step >= storage->job->options->until);
    invar_ledger_summary found;
    invar_digest chain;

    *out = false;
    if (!done || storage->job->options->replay || !storage->recorder.uuid[0])
        return INVAR_OK;
    INVAR_TRY(invar_ledger_find(&found, storage->recorder.ledger, storage->recorder.uuid));
    if (!found.finished || found.exit_code != 0 || state->step > found.last_step)
        return INVAR_OK;
    INVAR_TRY(invar_ledger_chain_at(&chain, storage->recorder.ledger, found.run, state->step));
    *out = invar_digest_equal(&chain, &state->chain);
    return INVAR_OK;
}

/* Position where the run begins; rank 0 chooses it and broadcasts it. */
typedef struct start_point {
    bool checkpoint;              /* begin from a checkpoint; else at the start */
    bool ended;                   /* the run is done, and nothing begins */
    char folder[INVAR_PATH_SIZE]; /* folder of the checkpoint */
    invar_checkpoint_state state; /* state in the checkpoint */
} start_point;

/* Chooses where to begin, on rank 0. The checkpoint stays open. */
static invar_status choose_start(start_point *out, invar_run_storage *storage,
                                 invar_run_models *models)
{
    const invar_checkpoint_state *state;

    if (!storage->checkpoints.resume_from)
        INVAR_TRY(open_checkpoint(&storage->checkpoints.resume_from, storage,
                                  storage->dirs.paths.save, true));
    out->checkpoint = storage->checkpoints.resume_from != NULL;
    if (!out->checkpoint)
        return INVAR_OK;
    (void)snprintf(out->folder, sizeof out->folder, "%s",
                   invar_checkpoint_path(storage->checkpoints.resume_from));
    state = invar_checkpoint_state_of(storage->checkpoints.resume_from);
    out->state = *state;
    if (storage->fork.starting) // the parent was checked when it was opened
        return check_first_weights(storage, models);
    INVAR_TRY(check_identity(storage, storage->checkpoints.resume_from));
    INVAR_TRY(is_end(&out->ended, storage, state));
    if (out->ended)
        report_nothing_to_do(storage, state);
    return INVAR_OK;
}

/* Begins a new segment in the ledger and reports where the run continues. */
static invar_status record_resume(invar_train_loop *loop, invar_checkpoint *c)
{
    const invar_checkpoint_state *state = invar_checkpoint_state_of(c);

    INVAR_TRY(invar_train_loop_begin(loop, state->step, &state->chain));
    loop->storage.summary->resumed_after = state->step;
    invar_recorder_print(&loop->storage.recorder, "resumed after step %" PRId64 " from %s",
                         state->step, invar_checkpoint_path(c));
    INVAR_TRY(invar_run_plugins_compare(&loop->flow.plugins, &loop->storage.recorder, state->step));
    return invar_checkpoint_finish_pending(c, loop->storage.recorder.ledger);
}

/* Continues from a checkpoint; `c` is NULL on a rank that keeps nothing. */
static invar_status continue_from_checkpoint(invar_train_loop *loop, invar_checkpoint *c,
                                             const start_point *from)
{
    const invar_fork *fork = &loop->storage.fork;

    INVAR_TRY(load_state(loop, c, &from->state));
    INVAR_TRY(load_flight(loop, c, from->folder));
    INVAR_TRY(invar_run_open_schedule(&loop->storage, &loop->flow));
    INVAR_TRY(check_rollouts(&loop->flow, loop->storage.position.rollout));
    if (!invar_ranks_is_leader(loop->world.all))
        return INVAR_OK;
    if (!fork->starting) {
        INVAR_TRY(record_resume(loop, c));
    } else {
        INVAR_TRY(invar_train_loop_begin(loop, fork->step, &fork->chain));
        invar_recorder_print(&loop->storage.recorder,
                             "forked from run %.8s (%s) after step %" PRId64, fork->uuid,
                             fork->name, fork->step);
    }
    return invar_run_begin_schedule(&loop->storage, &loop->flow);
}

/* Begins the run at the start. All ranks call it; rank 0 writes the ledger. */
static invar_status start_at_zero(invar_train_loop *loop)
{
    INVAR_TRY(invar_run_open_schedule(&loop->storage, &loop->flow));
    if (!invar_ranks_is_leader(loop->world.all))
        return check_rollouts(&loop->flow, 0);
    if (loop->storage.fork.step >= 0)
        return INVAR_FAIL(
            INVAR_E_NOTFOUND, 0,
            "the run is a fork of run %.8s after step %" PRId64
            ", and has no checkpoint to continue from: start it again with --fork and "
            "that run's folder",
            loop->storage.fork.uuid, loop->storage.fork.step);
    if (loop->storage.recorder.last_recorded_step >= 0) // for a new run they are checked already
        INVAR_TRY(check_rollouts(&loop->flow, 0));
    INVAR_TRY(invar_train_loop_begin(loop, -1, NULL));
    INVAR_TRY(invar_run_begin_schedule(&loop->storage, &loop->flow));
    if (loop->storage.recorder.last_recorded_step < 0 || loop->job.options->replay)
        return INVAR_OK;
    invar_recorder_print(&loop->storage.recorder,
                         "no checkpoint: the run starts again at step 0; its ledger has %" PRId64
                         " step%s",
                         loop->storage.recorder.last_recorded_step + 1,
                         invar_text_plural(loop->storage.recorder.last_recorded_step + 1));
    return INVAR_OK;
}

invar_status invar_train_loop_resume(invar_train_loop *loop)
{
    bool leads = invar_ranks_is_leader(loop->world.all);
    start_point from = {.checkpoint = false};

    if (leads)
        INVAR_TRY(choose_start(&from, &loop->storage, &loop->models));
    INVAR_TRY(invar_ranks_broadcast(loop->world.all, "resume", 0, &from, sizeof from));
    loop->storage.summary->finished = from.ended;
    if (from.checkpoint && !from.ended && !leads && !loop->world.roles.is_rollout_rank)
        INVAR_TRY(
            invar_checkpoint_open_folder(&loop->storage.checkpoints.resume_from, from.folder));
    if (!from.ended)
        INVAR_TRY(from.checkpoint
                      ? continue_from_checkpoint(loop, loop->storage.checkpoints.resume_from, &from)
                      : start_at_zero(loop));
    invar_checkpoint_close(loop->storage.checkpoints.resume_from);
    loop->storage.checkpoints.resume_from = NULL;
    return invar_run_write_owner(&loop->storage);
}
