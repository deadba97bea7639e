/*
 * memory_workload.c - derives the memory workload from a recipe, its settings and its data.
 *
 * Every number is an upper bound on what the run can do: the planner and the run itself use the
 * same workload, so the plan is exact. Lengths come from the data if they were read, else from the
 * recipe or the model's positions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/minmax.h"
#include "engine/config/config.h"
#include "engine/files/hf/hf.h"
#include "engine/run/admission.h"
#include "engine/run/evaluate.h"

#include "base/invar_banned.h"

#define OPEN_TOKENS 16384  // tokens of a micro-batch whose size the recipe leaves open
#define MOST_PROMPTS 65536 // prompts of an evaluation set that was not read

/* ---- lengths --------------------------------------------------------------------------------- */

/* Returns the tokens of the longest prompt that the recipe admits. */
static int64_t longest_prompt(const invar_config *c, int64_t context)
{
    int64_t longest = c->rollout_max_prompt_len;

    return longest ? invar_min_i64(longest, context - 1) : context - 1;
}

/* Returns the largest number of tokens of prompt and response together. */
static int64_t longest_context(const invar_memory_workload *workload, const invar_config *c)
{
    return c->rollout_max_context_len ? c->rollout_max_context_len
                                      : workload->models.actor->max_positions;
}

static bool has_agents(const invar_config *c)
{
    return c->custom_agent_path[0] != '\0';
}

static void read_lengths(invar_memory_workload *workload, const invar_config *c,
                         const invar_train_settings *set, const invar_data_lengths *data)
{
    workload->lengths.context = longest_context(workload, c);
    workload->lengths.prompt =
        data->prompt ? data->prompt : longest_prompt(c, workload->lengths.context);
    workload->lengths.response =
        invar_min_i64(c->rollout_max_response_len, workload->lengths.context);
    if (has_agents(c)) { // agents choose their prompts
        workload->lengths.prompt = workload->lengths.context - 1;
        workload->lengths.branches = c->agent_max_branches;
    }
    if (!set->sft)
        return;
    workload->lengths.response = data->answer ? data->answer : workload->lengths.context - 1;
    workload->lengths.context = data->total ? data->total : workload->lengths.context;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void read_rollouts(invar_memory_workload *workload, const invar_config *c,
                          const invar_train_settings *set, const invar_data_lengths *data)
{
    bool loads = c->load_debug_rollout_data[0] != '\0';
    bool follows = workload->level > INVAR_PROBE_STEP && !c->debug_train_only;
    bool turns = c->custom_generate_function_path[0] != '\0';
    int64_t context = longest_context(workload, c);

    if (!set->sft && (!loads || follows)) // loaded rollouts are not sampled
        workload->rollouts[INVAR_MEMORY_PLAN_TRAINING] =
            (invar_rollout_shape){set->round * (1 + set->sampling.lag),
                                  set->config->n_samples_per_prompt,
                                  workload->lengths.prompt,
                                  workload->lengths.response,
                                  context,
                                  data->prompt > 0,
                                  turns || set->sampling.lag > 0};
    if (has_agents(c)) // agents may run any number of samples at a time
        workload->rollouts[INVAR_MEMORY_PLAN_TRAINING] = (invar_rollout_shape){
            MOST_PROMPTS, 1,   workload->lengths.context - 1, workload->lengths.response, context,
            false,        true};
    if (data->evaluates)
        workload->rollouts[INVAR_MEMORY_PLAN_EVALUATION] =
            (invar_rollout_shape){data->eval_prompts ? data->eval_prompts : MOST_PROMPTS,
                                  data->per_prompt,
                                  data->eval ? data->eval : longest_prompt(c, context),
                                  data->response,
                                  context,
                                  data->eval > 0,
                                  turns};
    if (data->evaluates && has_agents(c))
        workload->rollouts[INVAR_MEMORY_PLAN_EVALUATION] =
            (invar_rollout_shape){MOST_PROMPTS,
                                  data->per_prompt,
                                  workload->lengths.context - 1,
                                  data->response,
                                  context,
                                  false,
                                  true};
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Returns the largest number of samples that are scored at once: a batch, or in-flight samples. */
static int64_t max_scored(const invar_train_settings *set)
{
    int64_t ahead = set->round * (1 + set->sampling.lag);

    if (!invar_sample_schedule_off_policy(&set->sampling) || !set->config->check_logprobs)
        ahead = 0;
    else if (set->config->use_rollout_logprobs)
        ahead += set->config->rollout_batch_size;
    return invar_max_i64(set->config->rollout_batch_size, ahead) *
           set->config->n_samples_per_prompt;
}

invar_memory_workload invar_memory_planning_workload(const invar_run_context *s,
                                                     const invar_train_settings *set,
                                                     const invar_data_lengths *data)
{
    const invar_config *c = s->config;
    bool far = invar_device_is_local(&s->dev);
    bool dynamic = c->use_dynamic_batch_size;
    int64_t micro_batch = c->micro_batch_size;
    invar_memory_workload workload = {
        .dev = &s->dev,
        .models = invar_run_context_model_specs(s, INVAR_RUN_CONTEXT_LEARN),
        .verify_inflight = invar_sample_schedule_sampler_checks(&set->sampling),
        .max_inflight = set->round * set->config->n_samples_per_prompt * set->sampling.lag,
        .learns = !set->config->debug_rollout_only,
        .entropy = set->rl.entropy_coef != 0.0f,
        .loss_on_rank0 = invar_loss_traits_of(set->rl.loss)->plugin,
        .level = c->debug_determinism,
        .replay = set->config->use_rollout_routing_replay,
        .adamw = set->adamw,
        .offload_chunk_bytes = far && c->optimizer_cpu_offload ? INVAR_OPTIMIZER_CHUNK_BYTES : 0,
        .ranks.bucket_bytes = (size_t)c->update_weight_buffer_size,
        .plan = {.unit_rows = c->unit_rows,
                 .unit_count = c->unit_count,
                 .micro_batch = dynamic ? 0 : micro_batch,
                 .max_tokens = dynamic            ? c->max_tokens_per_gpu
                               : micro_batch == 0 ? OPEN_TOKENS
                                                  : 0},
        .dynamic = dynamic || micro_batch == 0,
        .micro_batch_unset = !dynamic && micro_batch == 0,
        .recompute = c->recompute_granularity == INVAR_RECOMPUTE_FULL,
        .head_rows = c->log_probs_chunk_size,
        .step_samples = set->global_batch,
        .samples = max_scored(set),
        .limits = invar_run_context_limits(s),
        .sampling = {invar_run_context_sampling(s), data->sampling}};

    read_lengths(&workload, c, set, data);
    read_rollouts(&workload, c, set, data);
    if (!invar_memory_plan_samples(&workload))
        workload.models.draft = NULL;
    return workload;
}

void invar_memory_planning_sample_alone(invar_memory_workload *workload)
{
    invar_model_specs_sample_alone(&workload->models);
    workload->learns = false;
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* Returns the number in a file; SIZE_MAX without one. */
static size_t read_limit(const char *path)
{
    FILE *file = fopen(path, "re");
    char line[32] = "", *end = line;
    unsigned long long bytes = 0;

    if (!file)
        return SIZE_MAX;
    if (fgets(line, sizeof line, file))
        bytes = strtoull(line, &end, 10);
    (void)fclose(file);
    return end == line ? SIZE_MAX : (size_t)bytes; // "max" sets no limit
}

size_t invar_memory_planning_host(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t bytes = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        size_t limit = read_limit(limits[i]);
        bytes = limit < bytes ? limit : bytes;
    }
    return bytes;
}

size_t invar_memory_planning_available(const invar_device *dev)
{
    return dev->backend->memory.free_bytes ? dev->backend->memory.free_bytes(dev)
                                           : invar_memory_planning_host();
}

/* ---- a plan alone ---------------------------------------------------------------------------- */

/* Turns a missing data file into a warning in planning->unread. */
static invar_status warn_if_missing(invar_memory_planning *planning, invar_status status)
{
    if (status != INVAR_E_NOTFOUND)
        return status;
    (void)snprintf(planning->unread, sizeof planning->unread,
                   "warning: the plan is by the recipe's bounds, and train refuses this: %.1000s",
                   invar_error_last()->message);
    invar_error_clear();
    return INVAR_OK;
}

static invar_status read_data(invar_memory_planning *planning)
{
    const invar_config *c = planning->session.config;
    invar_digest digest;

    planning->data.evaluates = invar_config_evaluates(c) && c->eval_interval > 0;
    if (planning->data.evaluates) {
        INVAR_TRY(invar_evaluate_read_sets(&planning->session));
        INVAR_TRY(invar_evaluate_measure(&planning->data, &planning->session));
    }
    if (!planning->session.tokenizer)
        return INVAR_OK;
    if (c->prompt_data[0])
        INVAR_TRY(warn_if_missing(planning, invar_run_context_data(&planning->session.data,
                                                                   &planning->session,
                                                                   c->prompt_data, false)));
    invar_data_lengths_add(&planning->data, planning->session.data, false);
    if (!planning->data.evaluates)
        return INVAR_OK;
    return warn_if_missing(planning,
                           invar_evaluate_hash(&digest, &planning->data, &planning->session));
}

/*
 * Fails if a folder of weights does not exist, although the weights are not read: it was
 * misspelled.
 */
static invar_status check_folders(const invar_config *c)
{
    const invar_config_text folders[] = {{INVAR_KEY_LOAD, c->load},
                                         {INVAR_KEY_REF_LOAD, c->ref_load},
                                         {INVAR_KEY_CRITIC_LOAD, c->critic_load},
                                         {INVAR_KEY_OPD_TEACHER_LOAD, c->opd_teacher_load},
                                         {INVAR_KEY_LORA_ADAPTER_PATH, c->lora_adapter_path}};

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *path = folders[i].text;
        // `load` may name the folder in which this run will save
        if (!path[0] || (folders[i].key == INVAR_KEY_LOAD && strcmp(path, c->save) == 0))
            continue;
        INVAR_TRY(invar_hf_check_folder(invar_config_schema()->keys[folders[i].key].name, path));
    }
    return INVAR_OK;
}

static invar_status read_workload(invar_memory_planning *planning, size_t memory)
{
    INVAR_TRY(check_folders(planning->session.config));
    INVAR_TRY(invar_run_context_check_rollouts(&planning->session));
    INVAR_TRY(read_data(planning));
    INVAR_TRY(
        invar_admission_check_context(&(invar_admission){.config = planning->session.config,
                                                         .data_known = planning->session.data},
                                      &planning->session));
    invar_train_settings_read(&planning->settings, planning->session.config, 0, -1, false);
    planning->workload =
        invar_memory_planning_workload(&planning->session, &planning->settings, &planning->data);
    if (memory == 0 && planning->session.imagined)
        return INVAR_FAIL(INVAR_E_NODEVICE, 0,
                          "there is no GPU here: choose device = cpu, or plan for a GPU of another "
                          "machine with 'invar plan RECIPE --memory 80GB'");
    planning->available = memory ? memory : invar_memory_planning_available(&planning->session.dev);
    return INVAR_OK;
}

invar_status invar_memory_planning_open(invar_memory_planning *out, const invar_config *config,
                                        size_t memory)
{
    invar_status status;

    *out = (invar_memory_planning){.settings = {.global_batch = 0}};
    INVAR_TRY(invar_run_context_open(&out->session, config,
                                     INVAR_RUN_CONTEXT_NO_TOKENIZER | INVAR_RUN_CONTEXT_NO_WEIGHTS |
                                         INVAR_RUN_CONTEXT_ANY_DEVICE));
    status = read_workload(out, memory);
    if (status != INVAR_OK)
        invar_memory_planning_release(out);
    return status;
}

static invar_status simulate_roles(invar_memory_planning *planning, int rank)
{
    invar_rank_roles_close(&planning->roles);
    planning->workload.ranks.roles = NULL;
    if (!planning->split_roles)
        return INVAR_OK;
    INVAR_TRY(
        invar_rank_roles_simulate(&planning->roles, planning->split_roles, planning->world, rank));
    planning->workload.ranks.roles = &planning->roles;
    return INVAR_OK;
}

static invar_status simulate_rank(invar_memory_planning *planning, const invar_layout_sizes *sizes,
                                  int ranks, int rank)
{
    invar_layout_release(&planning->layout);
    INVAR_TRY(simulate_roles(planning, rank));
    INVAR_TRY(invar_layout_simulate(&planning->layout, sizes, ranks, rank));
    planning->workload.ranks.layout = &planning->layout;
    return INVAR_OK;
}

invar_status invar_memory_planning_plan_rank(invar_memory_planning *planning,
                                             const invar_layout_sizes *sizes, int ranks, int rank)
{
    INVAR_TRY(simulate_rank(planning, sizes, ranks, rank));
    return invar_memory_plan_make(&planning->plan, &planning->workload, planning->available);
}

invar_status invar_memory_planning_plan_stage(invar_memory_planning *planning,
                                              const invar_layout_sizes *sizes, int ranks, int stage)
{
    int first = stage * (ranks / (sizes->pipeline > 0 ? sizes->pipeline : 1)), rank = first, next;
    invar_memory_plan most = {.need = 0};

    // the heaviest rank is found first among tensor ranks, then among owners of rows
    for (int i = 0; i < 3; i++, rank = next) {
        INVAR_TRY(invar_memory_planning_plan_rank(planning, sizes, ranks, rank));
        most = planning->plan.need > most.need ? planning->plan : most;
        next = planning->plan.peak_rank;
        if (next == rank || (planning->workload.must_fit && !most.fits))
            break;
    }
    planning->plan = most;
    return simulate_rank(planning, sizes, ranks, first);
}

invar_status invar_memory_planning_plan_sampler(invar_memory_planning *planning)
{
    const invar_rank_role_sizes *sizes = planning->split_roles;
    invar_memory_workload workload;

    invar_layout_release(&planning->layout);
    INVAR_TRY(simulate_roles(planning, planning->world - sizes->rollout_ranks));
    INVAR_TRY(invar_layout_simulate(&planning->layout, &sizes->rollout, sizes->rollout_ranks, 0));
    workload = planning->workload;
    workload.ranks.layout = &planning->layout;
    invar_memory_planning_sample_alone(&workload);
    return invar_memory_plan_make(&planning->plan, &workload, planning->available);
}

void invar_memory_planning_release(invar_memory_planning *planning)
{
    invar_layout_release(&planning->layout);
    invar_rank_roles_close(&planning->roles);
    invar_run_context_close(&planning->session);
}
